"""Contenders that do it wrong, as many programs do: the checks must catch each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import agentbus
from agentbus.core.errors import FlagHeld, NotHolder, TimedOut
from agentbus.core.keys import Keys
from agentbus.torture.flags.clients import FlagClient, Grant
from agentbus.torture.flags.plan import AwaitPart, RacePart
from agentbus.torture.plain import library_errors, plain_client

_ANSWERS_WITHIN = 5.0
_PAUSE = 0.05


class _PlainFlags(FlagClient):
    """The library, but for what a program does by plain commands."""

    def __init__(self, bus: agentbus.Bus, url: str) -> None:
        super().__init__(bus)
        self._keys = Keys(bus.project)
        self._me = bus.agent
        self._redis = plain_client(url, _ANSWERS_WITHIN)


class CheckThenWait(_PlainFlags):
    """Looks at a flag, and then waits for news from then on."""

    def await_(self, wanted: AwaitPart) -> list[str]:
        until = time.monotonic() + wanted.timeout
        flags = set(wanted.flags)
        enough = 1 if wanted.any else len(flags)
        with library_errors():
            known = () if wanted.fresh else flags
            found = [flag for flag in known if self._redis.exists(self._keys.done(flag))]
            last: bytes | str = "$"
            while len(found) < enough:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"nothing was said of {flags}")
                for entry_id, flag in self._news(last, min(left, _ANSWERS_WITHIN / 2)):
                    last = entry_id
                    if flag in flags:
                        found.append(flag)
        return found

    def _news(self, last: bytes | str, seconds: float) -> Iterator[tuple[bytes, str | None]]:
        block = max(1, round(seconds * 1000))
        reply: Any = self._redis.xread({self._keys.channel: last}, block=block)
        for _, entries in reply or ():
            for entry_id, fields in entries:
                satisfied = fields.get(b"event") == b"satisfied"
                yield entry_id, fields[b"flag"].decode() if satisfied else None


class _PlainLock(_PlainFlags):
    """A key that exists while the flag is held; it names no holder and no token."""

    complete = False
    # How long a lease lasts without a TTL, and how long it is tried for, in seconds.
    lease = 0.5
    patience = 2.0

    def take(self, key: str, race: RacePart) -> bool:
        raise NotImplementedError

    def announce(self, flag: str, race: RacePart) -> Grant:
        until = time.monotonic() + self.patience
        with library_errors(unsure=True):
            while not self.take(self._keys.flag(flag), race):
                if time.monotonic() > until:
                    raise FlagHeld(f"{flag} is held")
                time.sleep(_PAUSE)
        return Grant(None, race.ttl)

    def renew(self, flag: str, held: Grant) -> None:
        # No matter which contender holds it by now.
        with library_errors(unsure=True):
            if not self._redis.pexpire(self._keys.flag(flag), round((held.left or 1.0) * 1000)):
                raise NotHolder(f"{flag} is not held")

    def satisfy(self, flag: str, held: Grant) -> None:
        with library_errors(unsure=True):
            self._redis.delete(self._keys.flag(flag))

    release = satisfy


class UnfencedLease(_PlainLock):
    """Takes a flag with an expiry, and trusts in it while it works."""

    def take(self, key: str, race: RacePart) -> bool:
        lease = round((race.ttl or self.lease) * 1000)
        return bool(self._redis.set(key, self._me, nx=True, px=lease))

    def announce(self, flag: str, race: RacePart) -> Grant:
        return super().announce(flag, race._replace(ttl=race.ttl or self.lease))


class CheckThenSet(_PlainLock):
    """Looks whether a flag is free, and then takes it."""

    def take(self, key: str, race: RacePart) -> bool:
        if self._redis.get(key) is not None:
            return False
        return bool(self._redis.set(key, self._me))

    def announce(self, flag: str, race: RacePart) -> Grant:
        return super().announce(flag, race._replace(ttl=None))


CONTROLS: dict[str, type[_PlainFlags]] = {
    "check_then_wait": CheckThenWait,
    "unfenced_lease": UnfencedLease,
    "check_then_set": CheckThenSet,
}
