"""Runs a verb up to the moment in which it blocks, so that no test has to guess when that is."""

from __future__ import annotations

import inspect
from typing import Any

import agentbus
from agentbus.coordination import leases
from agentbus.store.steps import Emit, LinkDown, Pause, ServerReply, Wait
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
        self._step = next(self._op)
        while not isinstance(self._step, Wait):
            self._go_on()

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
        try:
            reply = self._link.execute(self._step)
        except (LinkDown, ServerReply) as failure:
            self._step = self._op.throw(failure)
        else:
            self._step = self._op.send(reply)


def leasing(bus: agentbus.Bus, *paths: str, wait: float) -> Blocked:
    """Return a lease that is waiting for others to end."""
    return Blocked(bus, Patient(leases.take(bus.scope, paths, wait=wait), wait))


def awaiting(bus: agentbus.Bus, *flags: str, **options: object) -> Blocked:
    """Return an `await_` that is waiting."""
    return Blocked(bus, "await_", *flags, **options)
