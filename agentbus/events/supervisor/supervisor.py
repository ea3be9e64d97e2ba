"""Runs each consumer of a module in its own process, and restarts or quarantines it."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError, ConfigError, UsageError
from agentbus.core.loggers import emit
from agentbus.core.settings_check import make_private
from agentbus.core.signals import StopEvent, stops_at_signals
from agentbus.events import leases
from agentbus.events.leases import LEASE_SECONDS
from agentbus.events.supervisor.options import RELAY, ProcessOptions
from agentbus.events.supervisor.process import ConsumerProcess, ProcessFactory
from agentbus.events.supervisor.quarantine import (
    CRASH_LOOP,
    HEARTBEAT,
    Quarantined,
    QuarantineSync,
)
from agentbus.events.supervisor.status import (
    Happening,
    PostStatus,
    Supervised,
    SupervisorStatus,
)
from agentbus.processes.crash_loop import BACKOFF, HEALTHY, CrashHistory, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.events.cleanup import Cleanup
    from agentbus.events.ledger import Ledger
    from agentbus.events.supervisor.options import SupervisedJob
    from agentbus.processes.crash_loop import CrashWindow
    from agentbus.queues.retry import Backoff
    from agentbus.queues.runner import BlockingBus

SILENCE = 30.0
GRACE = 30.0
# Seconds for a process to load its module.
START = 60.0
# Minimum: a process that waits for its server sends heartbeats less often.
_LEAST_SILENCE = 2.0
_GLANCE = 0.2
_LEVELS = {"crashed": "warning", "killed": "warning", "quarantined": "error"}


class Supervisor:
    """Runs each consumer that a module declares in its own process, and keeps it running.

    With `relay` it also runs a relay, and each of `jobs`; then the module may be None. They are restarted
    and quarantined as consumers are.

    A process that ends by itself has crashed; one without a heartbeat for `heartbeat_timeout` seconds is
    killed, which counts as a crash. Both are restarted after a pause (`backoff`), until one of the `within`
    windows is full: then the consumer is quarantined, and no supervisor of the project starts it before it
    is released. A run of `healthy` seconds ends a series of crashes. `start_timeout` is the time to load
    the module, `grace` the time to stop, `lease` the duration of a consumer's lease, all in seconds. `only`
    names the one consumer to run.

    Processes open the database of `ledger` by its URL, and the server of `bus`; no connection is shared.
    Raises `ConfigError` if other processes cannot reach them.
    """

    def __init__(
        self,
        module: str | None,
        ledger: Ledger,
        bus: BlockingBus,
        *,
        only: str | None = None,
        relay: bool = False,
        jobs: Sequence[SupervisedJob] = (),
        heartbeat_timeout: float = SILENCE,
        start_timeout: float = START,
        grace: float = GRACE,
        healthy: float = HEALTHY,
        within: Sequence[CrashWindow] | None = None,
        backoff: Backoff = BACKOFF,
        lease: float = LEASE_SECONDS,
        lease_renewal: float | None = None,
        poll_interval: float | None = None,
        batch_size: int | None = None,
        cleanup: Cleanup | None = None,
        heartbeat_dir: str | None = None,
    ) -> None:
        if heartbeat_timeout < _LEAST_SILENCE:
            raise ConfigError(
                f"the heartbeat timeout is {heartbeat_timeout:g} s",
                hint=f"give at least {_LEAST_SILENCE:g} s: a healthy process sends one heartbeat a second",
            )
        if ledger.place == ":memory:" or (bus.runner.settings.url or "").startswith("memory:"):
            raise ConfigError(
                "a supervisor's processes cannot reach a database or server in this one's memory",
                hint="name a file or a server",
            )
        self.module = module
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        self._bus = bus
        options = ProcessOptions(
            *(lease, lease_renewal, poll_interval, batch_size, cleanup, heartbeat_dir)
        )
        self._processes = ProcessFactory(module, ledger, bus, heartbeat_timeout, options)
        self._only = only
        self._heartbeats = heartbeat_dir
        self._beside: dict[str, SupervisedJob | None] = {RELAY: None} if relay else {}
        for job in jobs:
            if job.name in self._beside:
                raise ConfigError(
                    f"two of the supervisor's processes are named {job.name!r}",
                    hint=f"give each job its own name; {RELAY!r} is that of the relay",
                )
            self._beside[job.name] = job
        self._silence = heartbeat_timeout
        self._start_timeout = start_timeout
        self._grace = grace
        longest = max(heartbeat_timeout, start_timeout)
        self._within = within or windows(healthy, longest, backoff.longest)
        self._healthy, self._backoff = healthy, backoff
        self._posts: dict[str, Supervised] = {}
        self._quarantine = QuarantineSync(bus)
        self._releases = ThreadPoolExecutor(1, thread_name_prefix="leases")
        self._stopped = StopEvent()
        self._on_happening: Callable[[Happening], None] | None = None
        # The error of a process with an invalid configuration.
        self._wrong: str | None = None

    @stops_at_signals
    def run(self, on_happening: Callable[[Happening], None] | None = None) -> None:
        """Supervise until `stop` is called and all processes have ended; at most once per object.

        `on_happening` is called with each change of a process. Raises `UsageError` if at the start
        the module cannot be loaded or does not declare the consumer; later that counts as a crash.
        Raises `ConfigError` if a process cannot use its database or server, such as that of another
        project: other supervisors may be configured correctly, so nothing is quarantined.
        """
        self._on_happening = on_happening
        try:
            if not self._find():
                return
            self._quarantine.start()
            while not self._stopped.is_set() and self._wrong is None:
                self._turn()
                time.sleep(_GLANCE)
            self._end()
            if self._wrong is not None:
                raise ConfigError(self._wrong)
        finally:
            for post in self._posts.values():
                if post.worker is not None:
                    post.worker.end()
            self._quarantine.close(self._bus.runner.settings.deadline + 1)
            self._releases.shutdown(wait=True)

    def _find(self) -> bool:
        """Find the consumers and jobs to run; False if `stop` was called first."""
        if self._heartbeats is not None:
            try:
                make_private(self._heartbeats)
            except OSError as error:
                raise ConfigError(
                    f"the directory {self._heartbeats!a} for heartbeats cannot be made ({error.strerror})",
                    hint="name another one",
                ) from error
        consumers: dict[str, str] | None = {}
        if self.module is not None:
            consumers = self._processes.declared(self._only, self._start_timeout, self._stopped)
        if consumers is None:
            return False
        if twice := sorted(consumers.keys() & self._beside.keys()):
            raise UsageError(
                f"a job and a consumer are named {twice[0]!r}",
                hint="give the consumer another name",
            )
        for name in (*consumers, *self._beside):
            crashes = CrashHistory(self._within, healthy=self._healthy, backoff=self._backoff)
            post = Supervised(name, consumers.get(name, ""), crashes, self._beside.get(name))
            self._posts[name] = post
        return True

    def stop(self) -> None:
        """Make `run` end all processes after their current event, or kill them after `grace`."""
        self._stopped.set()

    def status(self) -> SupervisorStatus:
        """Return the numbers of processes, starts and crashes, and the status of each consumer."""
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

    def _start(self, post: Supervised) -> None:
        try:
            worker = self._processes.worker(post.name, post.job)
        except OSError as error:
            # Memory or processes have run out: that may pass, and is not the consumer's fault.
            self._warn(post, f"no process could be started ({error.strerror})")
            post.start_at = time.monotonic() + self._backoff.longest
            return
        if post.started:
            post.restarts += 1
        post.worker, post.started = worker, True
        self._tell(post, "started", pid=worker.pid)

    # -- a turn --

    def _turn(self) -> None:
        if not self._quarantine.known.is_set():
            # Start no process until the server has reported which consumers are quarantined.
            return
        self._release()
        for post in self._posts.values():
            if post.worker is None:
                if (record := self._quarantine.about(post.name)) is not None:
                    self._hold(post, record)
                elif time.monotonic() >= post.start_at:
                    self._start(post)
            elif self._over(post, worker := post.worker):
                self._after(post, worker)

    def _over(self, post: Supervised, worker: ConsumerProcess) -> bool:
        """Reap a process that has ended; kill one without heartbeats, which ends in a later turn."""
        worker.listen()
        for warning in worker.warnings:
            self._warn(post, warning)
        worker.warnings.clear()
        worker.code = worker.ended()
        limit = self._silence if worker.ready else self._start_timeout
        if worker.code is not None:
            worker.close()
            post.worker, post.error = None, worker.error
            if worker.silent:
                post.error = f"it said nothing for {limit:g} s, and was killed"
            self._releases.submit(self._release_lease, post, worker.owner)
            return True
        if time.monotonic() - worker.beat_at > limit and not worker.silent:
            worker.silent = True
            worker.kill()
        return False

    def _after(self, post: Supervised, worker: ConsumerProcess) -> None:
        """Count a crash, then quarantine the consumer or schedule its next start."""
        if worker.own and not worker.silent:
            self._wrong = f"{post.name}: {worker.error}"
            self._ended(post, worker, "stopped")
            return
        full = post.crashes.add(time.monotonic(), worker.lived)
        reason = HEARTBEAT if worker.silent else CRASH_LOOP
        if worker.silent:
            self._ended(post, worker, "killed", reason)
        else:
            self._ended(post, worker, "crashed")
        if full is None:
            post.start_at = time.monotonic() + post.crashes.pause()
            return
        at, count = rfc3339(self._bus.runner.scope.now()), post.crashes.count
        why = post.error or _how(worker.code or 0)
        self._quarantine.add(Quarantined(post.name, post.stream, at, reason, count, why))
        post.quarantined = True
        self._tell(post, "quarantined", reason=reason, window=full.seconds)

    def _hold(self, post: Supervised, record: Quarantined) -> None:
        """Report once that a consumer does not start, as it was quarantined before or elsewhere."""
        if not post.quarantined:
            post.quarantined, post.error = True, record.error
            self._tell(post, "quarantined", reason=record.reason, crashes=record.crashes)

    def _release(self) -> None:
        for name in self._quarantine.released():
            post = self._posts.get(name)
            if post is not None:
                post.quarantined = False
                post.crashes.clear()
                post.start_at = 0.0
                self._tell(post, "released")

    def _release_lease(self, post: Supervised, owner: str) -> None:
        """Release a dead process's lease, so that the next process need not wait for its expiry."""
        try:
            with self.ledger.committing("a dead process's lease was released") as connection:
                leases.release_dead(connection, self.ledger.tables, owner)
        except AgentBusError as error:
            # The lease will expire by itself.
            self._warn(post, str(error))
        except Exception as error:  # noqa: BLE001 (supervision goes on without the database)
            self._warn(post, f"{type(error).__name__} while a lease was released")

    # -- the end --

    def _end(self) -> None:
        """Stop all processes, and kill those that do not end in time."""
        running = {post: post.worker for post in self._posts.values() if post.worker is not None}
        for worker in running.values():
            worker.stop()
        until = time.monotonic() + self._grace
        while running:
            for post, worker in list(running.items()):
                if time.monotonic() >= until:
                    worker.kill()
                if self._over(post, worker):
                    del running[post]
                    self._ended(post, worker, "stopped")
            if running:
                time.sleep(_GLANCE / 10)

    # -- reporting --

    def _ended(
        self, post: Supervised, worker: ConsumerProcess, event: str, reason: str | None = None
    ) -> None:
        code = worker.code or 0
        how: dict[str, Any] = {"exit": code} if code >= 0 else {"signal": _signal(-code)}
        self._tell(post, event, pid=worker.pid, reason=reason, **how)

    def _tell(
        self, post: Supervised, event: str, *, window: float | None = None, **more: Any
    ) -> None:
        self.counts[event] += 1
        error = post.error if event in _LEVELS else None
        more = {"crashes": post.crashes.count, **more}
        happening = Happening(post.name, post.stream, event, error=error, **more)
        fields = {"verb": "supervise", **asdict(happening), "window_seconds": window}
        fields["crash_count"] = fields.pop("crashes")
        known = {key: value for key, value in fields.items() if value is not None}
        emit(_LEVELS.get(event, "info"), known)
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
