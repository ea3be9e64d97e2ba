"""A scheduler publishes the ticks of a project's schedules as they fall due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.core.loggers import emit
from agentbus.core.stream import text
from agentbus.queues.runner import LastingRunner, Runner
from agentbus.store.steps import Pause, Script, Wait
from agentbus.tasks.ticks import tick

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.tasks.ticks import Tick

_AT_ONCE = 1_000
# Seconds until it looks again at a schedule that it could not publish, and at one that was changed.
_ASIDE, _CHANGED = 2.0, 0.02
_COARSE = 0.1


class Scheduler:
    """Publishes the ticks of all schedules of the project of a `Bus` or an `AsyncBus`.

    Any number of schedulers may run: each tick is published once, whatever becomes of them. They go by the
    server's clock. `on_tick` is called in the scheduler's thread with each tick that it has handled.
    """

    def __init__(self, bus: Any, *, on_tick: Callable[[Tick], object] = lambda _tick: None) -> None:
        # The runner of an `AsyncBus` has another one for threads.
        self._runner: Runner = getattr(bus.runner, "blocking", bus.runner)
        self._lasting: LastingRunner | None = None
        self._scope: Scope = bus.scope
        self._policies: Policies = self._runner.policies
        self._on_tick = on_tick
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # The times to look again at schedules that failed, and the last error that was logged of each.
        self._aside: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Publish ticks until `stop`. Waits out a server that does not answer, once it has answered."""
        # Its waits keep a connection from others, so that it opens one.
        with Runner(self._runner.settings, self._runner) as link:
            self._lasting = lasting = LastingRunner(link)
            try:
                while not self._stopping.is_set():
                    handled, seconds, bell = self._look(lasting.run)
                    if not handled and not self._stopping.is_set():
                        lasting.run(_ring(self._scope, bell, seconds))
            except BackendUnavailable:
                # It holds nothing that had to be given back first.
                if not self._stopping.is_set():
                    raise

    def run_once(self) -> list[Tick]:
        """Publish the ticks that are due now, and return them."""
        published: list[Tick] = []
        while ticks := self._look(self._runner.run)[0]:
            published += ticks
        return published

    def stop(self) -> None:
        """Make `run` return within about a second; may be called twice, and from a signal handler."""
        self._stopping.set()
        if self._lasting is not None:
            self._lasting.hurry()

    def start(self) -> Self:
        """Run in a background thread until `stop` or `close`, and return this scheduler."""
        self._thread = threading.Thread(target=self._run_logged, name="scheduler", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and wait until the background thread has ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run_logged(self) -> None:
        try:
            self.run()
        except AgentBusError as error:
            emit("error", {"verb": "schedule", "error": str(error)}, error=error)

    def _look(self, run: Callable[[Op[Any]], Any]) -> tuple[list[Tick], float, str]:
        """Handle the schedules that are due; return the ticks, seconds to wait, and the bell's last id."""
        now, later, bell, due = run(_due(self._scope))
        ticks, waits = [], [self._scope.intervals.look, *(() if later is None else (later,))]
        for name in due:
            clock = self._scope.monotonic()
            if self._aside.get(name, clock) > clock or self._stopping.is_set():
                continue
            self._aside.pop(name, None)
            published = self._tick(run, name, now)
            if published is not None:
                ticks.append(published)
            else:
                waits.append(_CHANGED)
        return ticks, min(waits), bell

    def _tick(self, run: Callable[[Op[Any]], Any], name: str, now: int) -> Tick | None:
        """Publish a tick; return None if another scheduler did, or nobody can here."""
        try:
            published: Tick | None = run(tick(self._scope, name, now, self._policies))
        except AgentBusError as error:
            self._aside[name] = self._scope.monotonic() + _ASIDE
            self._say(name, error.message)
            return None
        if published is None:
            self._aside[name] = self._scope.monotonic() + _CHANGED
            return None
        if published.error is None:
            self._said.pop(name, None)
        else:
            self._say(name, published.error)
        self._on_tick(published)
        return published

    def _say(self, name: str, error: str) -> None:
        if self._said.get(name) != error:
            self._said[name] = error
            emit("warning", {"verb": "schedule", "schedule": name, "error": f"{name}: {error}"})


def _due(scope: Scope) -> Op[tuple[int, float | None, str, list[str]]]:
    """Return the server's time in ms, seconds to the next due time, the bell's last id, and what is due."""
    keys = scope.keys
    reply = yield Script("list_due_schedules", (keys.schedules, keys.schedule_bell), (_AT_ONCE,))
    later = text(reply[1])
    return (
        int(reply[0]),
        int(later) / 1000 if later else None,
        text(reply[2]),
        [text(name) for name in reply[3:]],
    )


def _ring(scope: Scope, bell: str, seconds: float) -> Op[None]:
    """Wait until a schedule changes, for some seconds at most."""
    # A server ends a wait up to a tenth of a second late.
    if seconds > 2 * _COARSE:
        yield Wait(scope.keys.schedule_bell, bell, seconds - _COARSE)
    else:
        yield Pause(seconds)
