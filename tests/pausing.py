"""Runs a verb until it blocks, or past one of its scripts, so that no test has to guess when that is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.coordination import leases
from agentbus.coordination.hold import Upkeep
from agentbus.store.steps import Emit, LinkDown, Pause, Script, ServerReply, Wait
from agentbus.store.verb import Patient


class Blocked:
    """A verb of a bus that has gone as far as it can and would block now; `finish` lets it go on.

    Whatever a test does in between happens while the verb waits, on every kind of server.
    """

    def __init__(
        self, bus: agentbus.Bus, verb: str | Patient[Any], *args: object, **options: object
    ) -> None:
        waiting: Any = verb
        if isinstance(verb, str):
            define: Any = inspect.unwrap(getattr(type(bus), verb))
            waiting = define(bus, *args, **options)
        self._link = bus.runner.link
        self._op = bus.runner.attempt(waiting.op, waiting.seconds)
        # Time stands still meanwhile: on a busy machine a short wait would be over before it begins.
        clock, now = bus.scope.monotonic, bus.scope.monotonic()
        bus.scope.monotonic = lambda: now
        self._step = next(self._op)
        while not isinstance(self._step, Wait):
            self._go_on()
        bus.scope.monotonic = clock

    def finish(self) -> Any:
        """Go on to the end, blocking, and return the verb's result."""
        try:
            while True:
                self._go_on()
        except StopIteration as end:
            return end.value

    def emitted(self) -> list[Any]:
        """Go on to the end, blocking, and return what the verb emits."""
        found = []
        try:
            while True:
                if isinstance(self._step, Emit):
                    found.append(self._step.value)
                    self._step = self._op.send(None)
                else:
                    self._go_on()
        except StopIteration:
            return found

    def look_again(self) -> None:
        """Go on until it would block once more."""
        self._go_on()
        while not isinstance(self._step, Wait):
            self._go_on()

    def _go_on(self) -> None:
        assert not isinstance(self._step, Pause)
        self._step = next_step(self._link, self._op, self._step)


def hurry(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Renew what blocks hold a thousand times as often; return the intervals that they asked for.

    A hold that is renewed for its TTL long before it is over outlives it on any machine.
    """
    intervals: list[float] = []
    begin = Upkeep.__init__

    def hurried(self: Upkeep, renew: Callable[[], Any], seconds: float) -> None:
        intervals.append(seconds)
        begin(self, renew, seconds / 1000)

    monkeypatch.setattr(Upkeep, "__init__", hurried)
    return intervals


def next_step(link: Any, op: Any, step: Any) -> Any:
    """Execute a step of an operation, and return the next one. Raises `StopIteration` at the end."""
    try:
        reply = link.execute(step)
    except (LinkDown, ServerReply) as failure:
        return op.throw(failure)
    return op.send(reply)


def run_past(bus: agentbus.Bus, op: Any, script: str, meanwhile: Callable[[], object]) -> Any:
    """Run an operation and return its result; `meanwhile` is called each time a script has run."""
    tried = bus.runner.attempt(op)
    step = next(tried)
    try:
        while True:
            ran, step = step, next_step(bus.runner.link, tried, step)
            if isinstance(ran, Script) and ran.script == script:
                meanwhile()
    except StopIteration as end:
        return end.value


def leasing(bus: agentbus.Bus, *paths: str, wait: float) -> Blocked:
    """Return a lease that is waiting for others to end."""
    return Blocked(bus, Patient(leases.take(bus.scope, paths, wait=wait), wait))


def awaiting(bus: agentbus.Bus, *flags: str, **options: object) -> Blocked:
    """Return an `await_` that is waiting."""
    return Blocked(bus, "await_", *flags, **options)
