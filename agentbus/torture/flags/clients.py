"""How a contender takes, ends and awaits flags: by the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import agentbus
from agentbus.coordination.flags import Hold
from agentbus.torture.flags.plan import AwaitPart, RacePart


class Grant(NamedTuple):
    """A hold: `token` is None without fencing; `left` are the seconds until it ends, None for no end."""

    token: int | None
    left: float | None
    renewed: bool = False
    hold: Any = None


class FlagClient:
    """Flags by the library; each method raises its errors."""

    # Whether flags are kept and awaited in this way, too, or only taken and ended.
    complete = True

    def __init__(self, bus: agentbus.Bus) -> None:
        self._bus = bus

    def announce(self, flag: str, race: RacePart) -> Grant:
        """Take a flag."""
        return _grant(self._bus.announce(flag, ttl=race.ttl, force=race.force, wait=race.wait))

    @contextmanager
    def keep(self, flag: str, race: RacePart) -> Iterator[Grant]:
        """Hold a flag while a block runs, and renew it meanwhile."""
        assert race.ttl is not None
        with self._bus.hold(flag, ttl=race.ttl, wait=race.wait) as hold:
            yield _grant(hold)

    def renew(self, flag: str, held: Grant) -> None:
        """Renew a hold's TTL."""
        held.hold.renew()

    def satisfy(self, flag: str, held: Grant) -> None:
        """End a hold as done."""
        self._bus.satisfy(flag, token=held.token)

    def release(self, flag: str, held: Grant) -> None:
        """End a hold."""
        self._bus.release(flag, token=held.token)

    def await_(self, wanted: AwaitPart) -> list[str]:
        """Wait, and return the flags that were met."""
        options = wanted._asdict()
        found = self._bus.await_(*options.pop("flags"), **options)
        return [completion.flag for completion in found]


def _grant(hold: Hold) -> Grant:
    return Grant(hold.token, hold.ttl, hold.renewed, hold)
