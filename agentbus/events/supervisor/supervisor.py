"""The supervisor: a process for each consumer of a module, started again when it ends, or given up."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.core.loggers import emit
from agentbus.events import leases
from agentbus.events.leases import LEASE_SECONDS
from agentbus.events.supervisor.crash_loop import BACKOFF, HEALTHY, CrashHistory, windows
from agentbus.events.supervisor.hiring import ProcessFactory
from agentbus.events.supervisor.process import WorkerProcess
from agentbus.events.supervisor.quarantine import CRASH_LOOP, HEARTBEAT, QuarantineSync, record
from agentbus.events.supervisor.status import (
    Happening,
    PostStatus,
    Supervised,
    SupervisorStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.events.ledger import Ledger
    from agentbus.events.supervisor.crash_loop import CrashWindow
    from agentbus.events.supervisor.quarantine import Quarantined
    from agentbus.queues.retry import Backoff
    from agentbus.queues.runner import BlockingBus

SILENCE = 30.0
GRACE = 10.0
# A worker has so long to load its module.
START = 60.0
# Less than this a worker that waits for its server may well be silent.
_LEAST_SILENCE = 2.0
_GLANCE = 0.2
_LEVELS = {"crashed": "warning", "killed": "warning", "quarantined": "error"}


class Supervisor:
    """Runs each consumer that a module declares in a process of its own, and keeps it running.

    A worker that ends unasked has crashed; one whose working loop says nothing for `heartbeat_timeout`
    seconds is killed, which counts as a crash. Both are replaced after a pause (`backoff`), until one of
    the `within` windows is full: then the consumer is in quarantine, here and wherever a supervisor is
    about to start it, until it is released. A run of `healthy` seconds ends a series of crashes.
    `start_timeout` is how long a module may take to load, `grace` how long a worker may take to stop,
    `lease` how long a consumer's lease is. `only` names the one consumer to run.

    Workers open the database of `ledger` by its URL, and the server of `bus`; neither connection is shared.
    Raises `ConfigError` where other processes cannot reach them.
    """

    def __init__(
        self,
        module: str,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        only: str | None = None,
        heartbeat_timeout: float = SILENCE,
        start_timeout: float = START,
        grace: float = GRACE,
        healthy: float = HEALTHY,
        within: Sequence[CrashWindow] | None = None,
        backoff: Backoff = BACKOFF,
        lease: float = LEASE_SECONDS,
    ) -> None:
        if heartbeat_timeout < _LEAST_SILENCE:
            raise ConfigError(
                f"the heartbeat timeout is {heartbeat_timeout:g} s",
                hint=f"give at least {_LEAST_SILENCE:g} s: a healthy worker speaks once a second",
            )
        if ledger.place == ":memory:" or (bus.runner.settings.url or "").startswith("memory:"):
            raise ConfigError(
                "a supervisor's workers cannot reach what lies in the memory of another process",
                hint="name a file or a server",
            )
        self.module = module
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        self._bus = bus
        self._hiring = ProcessFactory(module, ledger, bus, heartbeat_timeout, lease)
        self._only = only
        self._silence = heartbeat_timeout
        self._start_timeout = start_timeout
        self._grace = grace
        longest = max(heartbeat_timeout, start_timeout)
        self._within = within or windows(healthy, longest, backoff.longest)
        self._healthy, self._backoff = healthy, backoff
        self._posts: dict[str, Supervised] = {}
        self._stopped = threading.Event()
        self._wake_heard, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._on_happening: Callable[[Happening], None] | None = None

    def run(self, on_happening: Callable[[Happening], None] | None = None) -> None:
        """Supervise until `stop` is called, once for each supervisor; every worker has ended then.

        `on_happening` is called with what happens to workers. Raises `UsageError` if the module cannot
        be loaded at the start or declares no such consumer; later that is a crash of the worker.
        """
        self._on_happening = on_happening
        board = QuarantineSync(self._bus)
        returning = ThreadPoolExecutor(1, thread_name_prefix="leases")
        self._selector.register(self._wake_heard, selectors.EVENT_READ)
        try:
            found = self._hiring.declared(self._only, self._start_timeout, self._stopped)
            if found is None:
                return
            self._posts = {
                name: Supervised(name, stream, self._crashes()) for name, stream in found.items()
            }
            board.start()
            while not self._stopped.is_set():
                self._turn(board, returning)
                self._wait()
            # Nothing more wakes us: what is written there is not taken out.
            self._selector.unregister(self._wake_heard)
            self._end(returning)
        finally:
            for post in self._posts.values():
                if post.worker is not None:
                    post.worker.end()
            board.close(self._bus.runner.settings.deadline + 1)
            returning.shutdown(wait=True)
            self._selector.close()
            os.close(self._wake_heard)
            os.close(self._wake)

    def stop(self) -> None:
        """Have `run` end all workers after the event in hand, killed after the grace time, and return."""
        self._stopped.set()
        try:
            os.write(self._wake, b"!")
        except OSError:
            # It has returned already, or was woken often enough.
            return

    def status(self) -> SupervisorStatus:
        """Return how many workers run, what was counted, and how each consumer is."""
        posts = tuple(self._status(post) for post in list(self._posts.values()))
        return SupervisorStatus(
            running=sum(post.pid is not None for post in posts),
            starts=self.counts["started"],
            restarts=sum(post.restarts for post in posts),
            crashes=self.counts["crashed"] + self.counts["killed"],
            quarantined=sum(post.state == "quarantined" for post in posts),
            consumers=posts,
        )

    def _status(self, post: Supervised) -> PostStatus:
        worker = post.worker
        if worker is not None:
            state = "running" if worker.ready else "starting"
        else:
            state = "quarantined" if post.quarantined else "waiting"
        pid = None if worker is None else worker.pid
        return PostStatus(
            *(post.name, post.stream, state, pid, post.restarts, post.crashes.count, post.error)
        )

    # -- starting --

    def _crashes(self) -> CrashHistory:
        return CrashHistory(self._within, healthy=self._healthy, backoff=self._backoff)

    def _start(self, post: Supervised) -> None:
        try:
            worker = self._hiring.worker(post.name)
        except OSError as error:
            # No memory, no process left: that may pass, and is nothing of the consumer's.
            self._warn(post, f"no process could be started ({error.strerror})")
            post.start_at = time.monotonic() + self._backoff.longest
            return
        if post.started:
            post.restarts += 1
        post.worker, post.started = worker, True
        self._selector.register(worker, selectors.EVENT_READ)
        self._tell(post, "started", pid=worker.pid)

    # -- a turn --

    def _wait(self, seconds: float = _GLANCE) -> None:
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, WorkerProcess) and not key.fileobj.listen():
                # It has closed its end, and is about to be reaped.
                self._selector.unregister(key.fileobj)

    def _turn(self, board: QuarantineSync, returning: ThreadPoolExecutor) -> None:
        if not board.known.is_set():
            # Until the server has said who is in quarantine, nobody is started.
            return
        self._release(board)
        for post in self._posts.values():
            if post.worker is None:
                if (given_up := board.about(post.name)) is not None:
                    self._hold(post, given_up)
                elif time.monotonic() >= post.start_at:
                    self._start(post)
            elif self._over(post, post.worker, returning):
                self._after(post, board)

    def _over(self, post: Supervised, worker: WorkerProcess, returning: ThreadPoolExecutor) -> bool:
        """Reap a worker that has ended, and tell so; kill one that is silent, which ends in a next turn."""
        for warning in worker.warnings:
            self._warn(post, warning)
        worker.warnings.clear()
        code = worker.ended()
        if code is not None:
            self._reap(post, worker, code, returning)
            return True
        limit = self._silence if worker.ready else self._start_timeout
        if time.monotonic() - worker.beat_at > limit and not worker.silent:
            worker.listen()
            if time.monotonic() - worker.beat_at > limit:
                worker.silent = True
                worker.kill()
        return False

    def _reap(
        self,
        post: Supervised,
        worker: WorkerProcess,
        code: int,
        returning: ThreadPoolExecutor,
    ) -> None:
        if worker in self._selector.get_map():
            self._selector.unregister(worker)
        worker.close()
        post.worker, post.code, post.lived = None, code, worker.lived
        post.silent, post.pid = worker.silent, worker.pid
        post.error = worker.error
        if worker.silent:
            limit = self._silence if worker.ready else self._start_timeout
            post.error = f"it said nothing for {limit:g} s, and was killed"
        returning.submit(self._give_back, post, worker.owner)

    def _after(self, post: Supervised, board: QuarantineSync) -> None:
        """Count a crash, and decide whether its consumer is started again."""
        full = post.crashes.add(time.monotonic(), post.lived)
        reason = HEARTBEAT if post.silent else CRASH_LOOP
        self._ended(post, "killed" if post.silent else "crashed", reason if post.silent else None)
        if full is not None:
            why = post.error or _how(post.code)
            made = record(
                *(post.name, post.stream, reason, post.crashes.count, why),
                self._bus.runner.scope.now(),
            )
            board.add(made)
            post.quarantined = True
            self._tell(post, "quarantined", reason=reason, window=full.seconds)
            return
        post.start_at = time.monotonic() + post.crashes.pause()

    def _hold(self, post: Supervised, given_up: Quarantined) -> None:
        """Tell once of a consumer that is not started since it was given up before, or elsewhere."""
        if not post.quarantined:
            post.quarantined, post.error = True, given_up.error
            self._tell(post, "quarantined", reason=given_up.reason, crashes=given_up.crashes)

    def _release(self, board: QuarantineSync) -> None:
        for name in board.released():
            post = self._posts.get(name)
            if post is not None:
                post.quarantined = False
                post.crashes.clear()
                post.start_at = 0.0
                self._tell(post, "released")

    def _give_back(self, post: Supervised, owner: str) -> None:
        """Give back the lease of a worker that is dead, so that the next need not wait for its end."""
        try:
            with self.ledger.committing("a dead worker's lease was given back") as connection:
                leases.surrender(connection, self.ledger.tables, post.stream, post.name, owner)
        except AgentBusError as error:
            # It runs out by itself.
            self._warn(post, str(error))
        except Exception as error:  # noqa: BLE001 (whatever the database says, supervision goes on)
            self._warn(post, f"{type(error).__name__} while a lease was given back")

    # -- the end --

    def _end(self, returning: ThreadPoolExecutor) -> None:
        """Stop all workers, and kill those that do not end in time."""
        running = {post: post.worker for post in self._posts.values() if post.worker is not None}
        for worker in running.values():
            worker.stop()
        until = time.monotonic() + self._grace
        while running:
            for post, worker in list(running.items()):
                if time.monotonic() >= until:
                    worker.kill()
                if self._over(post, worker, returning):
                    del running[post]
                    self._ended(post, "stopped", None)
            if running:
                self._wait(_GLANCE / 10)

    # -- telling --

    def _ended(self, post: Supervised, event: str, reason: str | None) -> None:
        code = post.code
        self._tell(
            post,
            event,
            pid=post.pid,
            exit=code if code >= 0 else None,
            signal=_signal(-code) if code < 0 else None,
            reason=reason,
        )

    def _tell(
        self, post: Supervised, event: str, *, window: float | None = None, **more: Any
    ) -> None:
        self.counts[event] += 1
        error = post.error if event in _LEVELS else None
        more.setdefault("crashes", post.crashes.count)
        happening = Happening(post.name, post.stream, event, error=error, **more)
        fields: dict[str, object] = {
            "verb": "supervise",
            "event": event,
            "consumer": post.name,
            "stream": post.stream,
            "pid": happening.pid,
            "exit": happening.exit,
            "signal": happening.signal,
            "crash_count": happening.crashes,
            "window_seconds": window,
            "reason": happening.reason,
            "error": error,
        }
        fields = {key: value for key, value in fields.items() if value is not None}
        emit(_LEVELS.get(event, "info"), fields)
        if self._on_happening is not None:
            self._on_happening(happening)

    def _warn(self, post: Supervised, error: str) -> None:
        emit("warning", {"verb": "consume", "consumer": post.name, "error": error})


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _how(code: int) -> str:
    return f"exit {code}" if code >= 0 else f"killed by {_signal(-code)}"
