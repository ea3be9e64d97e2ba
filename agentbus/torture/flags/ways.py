"""How a contender takes, ends and awaits flags: as the library does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import agentbus
from agentbus.coordination.flags import Hold
from agentbus.torture.flags.plan import Race, Watch


class Held(NamedTuple):
    """A hold: `token` is None where nothing fences; `left` are the seconds to its end, None for none."""

    token: int | None
    left: float | None
    renewed: bool = False
    hold: Any = None


class Library:
    """The library's ways; each raises its errors."""

    # Whether flags are kept and awaited in these ways, too, or only taken and ended.
    complete = True

    def __init__(self, bus: agentbus.Bus) -> None:
        self._bus = bus

    def announce(self, flag: str, race: Race) -> Held:
        """Take a flag."""
        hold = self._bus.announce(flag, ttl=race.ttl, force=race.force, wait=race.wait)
        return _held(hold)

    @contextmanager
    def keep(self, flag: str, race: Race) -> Iterator[Held]:
        """Hold a flag for as long as a block runs, renewed meanwhile."""
        assert race.ttl is not None
        with self._bus.hold(flag, ttl=race.ttl, wait=race.wait) as hold:
            yield _held(hold)

    def renew(self, flag: str, held: Held) -> None:
        """Give a hold its TTL again."""
        held.hold.renew()

    def satisfy(self, flag: str, held: Held) -> None:
        """End a hold as done."""
        self._bus.satisfy(flag, token=held.token)

    def release(self, flag: str, held: Held) -> None:
        """End a hold."""
        self._bus.release(flag, token=held.token)

    def await_(self, watch: Watch) -> list[str]:
        """Wait, and return the flags for which it was over."""
        found = self._bus.await_(
            *watch.flags,
            until=watch.until,
            any=watch.any,
            fresh=watch.fresh,
            timeout=watch.timeout,
        )
        return [completion.flag for completion in found]


def _held(hold: Hold) -> Held:
    return Held(hold.token, hold.ttl, hold.renewed, hold)
