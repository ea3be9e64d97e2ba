"""The process of a contender: contends for the flag of each round, and writes a history."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import time
from typing import Any

import agentbus
from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    FlagHeld,
    NotHolder,
    OutcomeUnknown,
)
from tests.torture.assignment import Allowance, Assignment
from tests.torture.flags.controls import CONTROLS, PlainLock
from tests.torture.flags.evidence import (
    ANNOUNCE,
    AWAIT,
    FAILING,
    READY,
    RELEASE,
    RENEW,
    ROUND,
    SATISFY,
    WRITE,
)
from tests.torture.flags.plan import (
    GENEROUS,
    LONG,
    REUSED,
    AwaitPart,
    RacePart,
    again,
    choice,
    flag_of,
)
from tests.torture.history import FAIL, INVOKE, OK, read_history

_DEADLINE = 2.0
# A full server refuses at once.
_BREATH = 0.1
# The share of long sections.
_USUALLY, _MOSTLY = 0.12, 0.6
# How the successor of a dead process contends for the flag that it held, or may have held.
_FINISH = RacePart(None, 5.0, force=False, kept=False, section=0.01, releases=False, fails=False)


class Resource:
    """Guarded files, one for each flag, in a directory that all contenders share."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True)

    def write(self, flag: str, token: int | None) -> tuple[bool, int]:
        """Write; return whether it was accepted, and when (monotonic, in ns), in the file's order.

        A write without a token cannot be refused.
        """
        file = os.open(self._place / flag, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            highest = int(os.pread(file, 32, 0) or b"0")
            if token is not None and token < highest:
                return False, time.monotonic_ns()
            if token is not None:
                os.pwrite(file, b"%020d" % token, 0)
            return True, time.monotonic_ns()
        finally:
            os.close(file)


class Contender:
    """One of the processes that want the flag; it has a bus, or a control in its place."""

    def __init__(self, assignment: Assignment, bus: Any) -> None:
        self._bus = bus
        # Whether flags are kept and awaited in this way, too, or only taken and ended.
        self._complete = not isinstance(bus, PlainLock)
        self._scribe = assignment.scribe()
        self._resource = Resource(pathlib.Path(assignment.place) / "guarded")
        self._assignment = assignment

    def play(self, number: int) -> None:
        """Do this contender's part in a round."""
        # Controls are caught by what happens to a holder.
        slow = _USUALLY if self._complete else _MOSTLY
        fails = self._assignment.options["fails"]
        part = choice(self._assignment.seed, number, self._assignment.name, slow, fails)
        if isinstance(part, AwaitPart):
            self.await_(part)
        elif not self.contend(flag_of(number), part):
            self.await_(AwaitPart((flag_of(number),)))
        self.note(ROUND, k=number)

    def note(self, op: str, **of: Any) -> None:
        """Write down how far this process is."""
        self._scribe.note(op, OK, **of)

    def contend(self, flag: str, race: RacePart) -> bool:
        """Take a flag, work, and end it, however often it is lost; False if it is held by another."""
        while True:
            try:
                if self._once(flag, race):
                    return True
            except FlagHeld:
                return False
            except (NotHolder, OutcomeUnknown):
                # A flag that is never satisfied would keep its awaiters forever: go on until it is.
                pass
            except BackendUnavailable:
                time.sleep(_BREATH)
            race = again(race)

    def await_(self, part: AwaitPart) -> None:
        """Await flags."""
        if not self._complete:
            return
        if part.timeout == GENEROUS:
            part = part._replace(timeout=self._assignment.options["patience"])
        with (
            contextlib.suppress(AgentBusError),
            self._asking(AWAIT, **part._asdict()) as answer,
        ):
            options = part._asdict()
            found = self._bus.await_(*options.pop("flags"), **options)
            answer["flags"] = [completion.flag for completion in found]

    def _once(self, flag: str, race: RacePart) -> bool:
        """Hold a flag once; False if it was given up."""
        kept = race.kept and self._complete
        started = time.monotonic_ns()
        with contextlib.ExitStack() as stack:
            with self._asking(ANNOUNCE, flag=flag, hold=started, **race._asdict()) as answer:
                if kept:
                    hold = stack.enter_context(self._bus.hold(flag, ttl=race.ttl, wait=race.wait))
                else:
                    hold = self._bus.announce(flag, ttl=race.ttl, force=race.force, wait=race.wait)
                answer.update(token=hold.token, left=hold.ttl, renewed=hold.renewed)
            about = {"flag": flag, "token": hold.token, "hold": started}
            self._work(race, hold, about, renews=not kept)
            if race.releases and not kept:
                with self._asking(RELEASE, **about):
                    self._bus.release(flag, token=hold.token)
                return False
            if race.fails:
                with self._asking(FAILING, **about):
                    if kept:
                        _leave_failing(stack)
                    else:
                        self._bus.fail(flag, token=hold.token, note="on purpose")
                # Only a flag that is announced again in later rounds may stay failed.
                return flag == REUSED
            with self._asking(SATISFY, **about):
                if kept:
                    stack.close()
                else:
                    self._bus.satisfy(flag, token=hold.token)
        return True

    def _work(self, race: RacePart, hold: Any, about: dict[str, Any], *, renews: bool) -> None:
        self._write(**about)
        parts = 4 if race.section >= LONG else 1
        for part in range(parts):
            time.sleep(race.section / parts)
            if part < parts - 1 and renews and hold.ttl is not None:
                # Having lost the hold, it works on, as a program does that does not look: it is fenced.
                with (
                    contextlib.suppress(AgentBusError),
                    self._asking(RENEW, **about, ttl=race.ttl),
                ):
                    hold.renew()
        self._write(**about)

    def _write(self, **about: Any) -> None:
        n = time.monotonic_ns()
        self._scribe.note(WRITE, INVOKE, at=n, n=n, **about)
        accepted, at = self._resource.write(about["flag"], about["token"])
        self._scribe.note(WRITE, OK if accepted else FAIL, at=at, n=n)

    def _asking(self, op: str, **of: Any) -> contextlib.AbstractContextManager[dict[str, Any]]:
        return self._scribe.asking(op, n=time.monotonic_ns(), **of)


def _leave_failing(stack: contextlib.ExitStack) -> None:
    """Leave a `with bus.hold(…)` block as an error does."""
    error = RuntimeError("on purpose")
    stack.__exit__(RuntimeError, error, None)
    if getattr(error, "__notes__", None):
        raise OutcomeUnknown(f"the hold did not end: {error.__notes__[0]}")


def unfinished(history: pathlib.Path) -> str | None:
    """Return the flag that an earlier process of this name contended for when it died."""
    flag = None
    for entry in read_history(history):
        if entry.op == ROUND:
            flag = None
        elif entry.op == ANNOUNCE and entry.phase == INVOKE:
            flag = entry.of["flag"]
    return flag


def main(assignment: Assignment, limit: Allowance) -> None:
    """Contend in each round, until the last."""
    left = unfinished(assignment.history)
    with agentbus.connect(
        assignment.url, project=assignment.project, agent=assignment.name, deadline=_DEADLINE
    ) as bus:
        control = CONTROLS.get(assignment.kind)
        contender = Contender(assignment, control(bus, assignment.url) if control else bus)
        if left is not None:
            contender.contend(left, _FINISH)
        contender.note(READY)
        number = 0
        # A contender that was away goes on with the round that is on.
        while limit.reaches(number + 1) and not limit.over:
            number = limit.number
            contender.play(number)
