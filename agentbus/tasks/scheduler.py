"""The scheduler publishes the ticks of a project's schedules when they become due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from agentbus.core import greenlets
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
# Seconds until the next check of a schedule that could not be published, and of one that was
# changed.
_ASIDE, _CHANGED = 2.0, 0.02
_COARSE = 0.1


class Scheduler:
    """Publishes the ticks of all schedules in the project of a `Bus` or an `AsyncBus`.

    Any number of schedulers may run: each tick is published once, even if schedulers fail. They use the
    server's clock. `on_tick` is called in the scheduler's thread with each handled tick.
    """

    def __init__(self, bus: Any, *, on_tick: Callable[[Tick], object] = lambda _tick: None) -> None:
        # An `AsyncBus` has a separate runner for threads.
        self._runner: Runner = getattr(bus.runner, "blocking", bus.runner)
        self._lasting: LastingRunner | None = None
        self._scope: Scope = bus.scope
        self._policies: Policies = self._runner.policies
        self._on_tick = on_tick
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # Time of the next check of each failed schedule, and its last logged error.
        self._aside: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Publish ticks until `stop`. Once the server has answered, outages are waited out."""
        greenlets.check("a scheduler")
        # Open a separate connection, because the scheduler's waits would block the shared one.
        with self._runner.beside(), Runner(self._runner.settings, self._runner) as link:
            self._lasting = lasting = LastingRunner(link)
            try:
                while not self._stopping.is_set():
                    handled, seconds, bell = self._look(lasting.run)
                    if not handled and not self._stopping.is_set():
                        lasting.run(_ring(self._scope, bell, seconds))
            except BackendUnavailable:
                # After `stop`, ignore the failure: the scheduler holds nothing that it would have
                # to give back.
                if not self._stopping.is_set():
                    raise

    def run_once(self) -> list[Tick]:
        """Publish the ticks that are due now, and return them."""
        published: list[Tick] = []
        with self._runner.beside():
            while ticks := self._look(self._runner.run)[0]:
                published += ticks
        return published

    def stop(self) -> None:
        """Make `run` return within about a second; safe to call twice, and in a signal handler."""
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
        """Handle due schedules; return the ticks, the seconds to wait, and the bell's last id."""
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
        """Publish a tick; return None if another scheduler has, or if it cannot be published here."""
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
    """Return the time in ms, seconds to the next due time, the bell's last id, and due schedules."""
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
    """Wait until a schedule changes, for at most `seconds`."""
    # A server ends a blocked read up to a tenth of a second late.
    if seconds > 2 * _COARSE:
        yield Wait(scope.keys.schedule_bell, bell, seconds - _COARSE)
    else:
        yield Pause(seconds)
