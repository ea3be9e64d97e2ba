"""A process that contends for the flag of each round, and writes down all that it asks and is told."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import agentbus
from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    FlagHeld,
    NotHolder,
    OutcomeUnknown,
)
from agentbus.torture.flags.acts import (
    ANNOUNCE,
    AWAIT,
    READY,
    RELEASE,
    RENEW,
    ROUND,
    SATISFY,
    WRITE,
)
from agentbus.torture.flags.orders import Orders
from agentbus.torture.flags.plan import GENEROUS, LONG, Race, Watch, again, choice, flag_of
from agentbus.torture.flags.resource import Resource
from agentbus.torture.flags.ways import Held, Library
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Reader, Scribe

T = TypeVar("T")
_DEADLINE = 2.0
# A server that is full refuses at once.
_BREATH = 0.1
# How many sections take long.
_USUALLY, _MOSTLY = 0.12, 0.6
# How one contends again for what one held, or may have held, before one died.
_FINISH = Race(ttl=None, wait=5.0, force=False, kept=False, section=0.01, releases=False)


class Contender:
    """One of those who want the flag."""

    def __init__(
        self, ways: Library, scribe: Scribe, resource: Resource, who: str, patience: float
    ) -> None:
        """`patience` are the seconds for which it awaits what must come."""
        self._ways = ways
        self._scribe = scribe
        self._resource = resource
        self._who = who
        self._patience = patience

    def play(self, seed: int, number: int) -> None:
        """Do one's part in a round."""
        # What is wrong with the others is what happens to them while they hold.
        slow = _USUALLY if self._ways.complete else _MOSTLY
        does = choice(seed, number, self._who, slow)
        if isinstance(does, Watch):
            self.watch(does)
        elif not self.contend(flag_of(number), does):
            self.watch(Watch((flag_of(number),)))

    def contend(self, flag: str, race: Race) -> bool:
        """Take a flag, work, and satisfy it, however often it is lost; False if another holds it."""
        while True:
            try:
                if self._once(flag, race):
                    return True
            except FlagHeld:
                return False
            except (NotHolder, OutcomeUnknown):
                # What nobody ends would keep its awaiters for good: one contends until somebody has.
                race = again(race)
            except BackendUnavailable:
                race = again(race)
                time.sleep(_BREATH)
            else:
                race = again(race)

    def watch(self, watch: Watch) -> None:
        """Await flags, and write down when it was over."""
        if not self._ways.complete:
            return
        if watch.timeout == GENEROUS:
            watch = watch._replace(timeout=self._patience)
        with contextlib.suppress(AgentBusError):
            self._ask(
                AWAIT, lambda: self._ways.await_(watch), watch._asdict(), lambda x: {"flags": x}
            )

    def _once(self, flag: str, race: Race) -> bool:
        """Hold a flag once; False if it was given up."""
        kept = race.kept and self._ways.complete
        hold = time.monotonic_ns()
        asked = {"flag": flag, "hold": hold, **race._asdict()}
        with contextlib.ExitStack() as stack:
            held: Held = self._ask(
                ANNOUNCE,
                lambda: (
                    stack.enter_context(self._ways.keep(flag, race))
                    if kept
                    else self._ways.announce(flag, race)
                ),
                asked,
                lambda x: {"token": x.token, "left": x.left, "renewed": x.renewed},
            )
            about = {"flag": flag, "token": held.token, "hold": hold}
            self._work(race, held, about, renews=not kept)
            if kept:
                self._ask(SATISFY, stack.close, about)
            elif race.releases:
                self._ask(RELEASE, lambda: self._ways.release(flag, held), about)
                return False
            else:
                self._ask(SATISFY, lambda: self._ways.satisfy(flag, held), about)
        return True

    def _work(self, race: Race, held: Held, about: dict[str, Any], *, renews: bool) -> None:
        self._write(**about)
        parts = 4 if race.section >= LONG else 1
        for part in range(parts):
            time.sleep(race.section / parts)
            if part < parts - 1 and renews and held.left is not None:
                # Who has lost the hold works on, as a program does that does not look: it is fenced.
                with contextlib.suppress(AgentBusError):
                    self._ask(
                        RENEW,
                        lambda: self._ways.renew(about["flag"], held),
                        {**about, "ttl": race.ttl},
                    )
        self._write(**about)

    def _write(self, **about: Any) -> None:
        n = time.monotonic_ns()
        self._scribe.note(WRITE, INVOKE, at=n, n=n, **about)
        accepted, at = self._resource.write(about["flag"], about["token"])
        self._scribe.note(WRITE, OK if accepted else FAIL, at=at, n=n)

    def _ask(
        self,
        op: str,
        act: Callable[[], T],
        asked: dict[str, Any],
        tell: Callable[[T], dict[str, Any]] = lambda _found: {},
    ) -> T:
        n = time.monotonic_ns()
        self._scribe.note(op, INVOKE, at=n, n=n, **asked)
        try:
            found = act()
        except OutcomeUnknown:
            self._scribe.note(op, UNKNOWN, n=n)
            raise
        except AgentBusError as error:
            self._scribe.note(op, FAIL, n=n, error=type(error).__name__)
            raise
        self._scribe.note(op, OK, n=n, **tell(found))
        return found


def unfinished(histories: pathlib.Path, who: str) -> str | None:
    """Return the flag that an earlier process of this name contended for when it died."""
    reader = Reader(histories)
    reader.follow(who)
    flag = None
    for entry in reader.news():
        if entry.op == ROUND:
            flag = None
        elif entry.op == ANNOUNCE and entry.phase == INVOKE:
            flag = entry.of["flag"]
    return flag


def main(
    kind: str, seed: str, url: str, project: str, place: str, who: str, patience: str, first: str
) -> None:
    """Contend in round after round, until told that it was the last."""
    orders = Orders(first)
    orders.listen()
    # A contender that ends with its terminal's interrupt would look like one that gave up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    histories = pathlib.Path(place) / "histories"
    left = unfinished(histories, who)
    scribe = Scribe(histories / who)
    resource = Resource(pathlib.Path(place) / "guarded")
    with agentbus.connect(url, project=project, agent=who, deadline=_DEADLINE) as bus:
        ways = _ways(kind, bus, url)
        contender = Contender(ways, scribe, resource, who, float(patience))
        if left is not None:
            contender.contend(left, _FINISH)
        scribe.note(READY, OK)
        number = 0
        while (told := orders.after(number)) is not None:
            number = told
            contender.play(int(seed), number)
            scribe.note(ROUND, OK, k=number)


def _ways(kind: str, bus: agentbus.Bus, url: str) -> Library:
    if not kind:
        return Library(bus)
    from agentbus.torture.flags.controls import CONTROLS

    return CONTROLS[kind](bus, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
