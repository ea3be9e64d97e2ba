"""Contenders that do it wrong, as many programs do: the checks must catch each of them."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import agentbus
from agentbus.core.errors import FlagFailed, FlagHeld, NotHolder, TimedOut
from agentbus.core.keys import Keys
from tests.torture.plain import library_errors, plain_client

_ANSWERS_WITHIN = 5.0
_PAUSE = 0.05
# How long a lease lasts without a TTL, in seconds.
_LEASE = 0.5


class CheckThenWait:
    """A bus whose user looks at a flag, and then waits for news from then on."""

    def __init__(self, bus: agentbus.Bus, url: str) -> None:
        self._keys = Keys(bus.project)
        self._redis = plain_client(url, _ANSWERS_WITHIN, decode_responses=True)
        self.announce, self.hold = bus.announce, bus.hold
        self.satisfy, self.release, self.fail = bus.satisfy, bus.release, bus.fail

    def await_(
        self, *wanted: str, until: str, any: bool, fresh: bool, timeout: float
    ) -> list[SimpleNamespace]:
        """Wait for flags to be satisfied; `until` is taken for that."""
        end = time.monotonic() + timeout
        flags = set(wanted)
        enough = 1 if any else len(flags)
        with library_errors():
            known = () if fresh else flags
            found = [flag for flag in known if self._redis.exists(self._keys.done(flag))]
            last = "$"
            while len(found) < enough:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"nothing was said of {flags}")
                for entry_id, flag in self._news(last, min(left, _ANSWERS_WITHIN / 2)):
                    last = entry_id
                    if flag in flags:
                        found.append(flag)
        return [SimpleNamespace(flag=flag) for flag in found]

    def _news(self, last: str, seconds: float) -> Iterator[tuple[str, str | None]]:
        block = max(1, round(seconds * 1000))
        reply: Any = self._redis.xread({self._keys.channel: last}, block=block)
        for _, entries in reply or ():
            for entry_id, fields in entries:
                yield entry_id, fields["flag"] if fields.get("event") == "satisfied" else None


class AnyEnd:
    """A bus whose user waits until a hold is over, and does not ask how it ended."""

    def __init__(self, bus: agentbus.Bus, url: str) -> None:
        self._await = bus.await_
        self.announce, self.hold = bus.announce, bus.hold
        self.satisfy, self.release, self.fail = bus.satisfy, bus.release, bus.fail

    def await_(self, *wanted: str, **options: Any) -> Sequence[Any]:
        """Wait for flags to be satisfied or failed."""
        try:
            return self._await(*wanted, **options)
        except FlagFailed as failure:
            return [SimpleNamespace(flag=failure.flag)]


class PlainLock(abc.ABC):
    """A key that exists while the flag is held; it names no holder and no token."""

    # How long it is tried for, in seconds, and whether the key expires.
    patience, expires = 2.0, True

    def __init__(self, bus: agentbus.Bus, url: str) -> None:
        self._keys = Keys(bus.project)
        self._me = bus.agent
        self._redis = plain_client(url, _ANSWERS_WITHIN)

    @abc.abstractmethod
    def take(self, key: str, ttl: float) -> bool:
        """Take the flag at a key."""

    def announce(
        self, flag: str, *, ttl: float | None, force: bool, wait: float | None
    ) -> SimpleNamespace:
        """Take a flag, for a hold that nobody can check."""
        until = time.monotonic() + self.patience
        lease = ttl or _LEASE
        with library_errors(unsure=True):
            while not self.take(self._keys.flag(flag), lease):
                if time.monotonic() > until:
                    raise FlagHeld(f"{flag} is held")
                time.sleep(_PAUSE)
        return SimpleNamespace(
            token=None,
            renewed=False,
            # Without an expiry there is nothing to renew.
            ttl=lease if self.expires else None,
            renew=lambda: self._renew(flag, lease),
        )

    def _renew(self, flag: str, ttl: float) -> None:
        # No matter which contender holds it by now.
        with library_errors(unsure=True):
            if not self._redis.pexpire(self._keys.flag(flag), round(ttl * 1000)):
                raise NotHolder(f"{flag} is not held")

    def satisfy(self, flag: str, *, token: int | None) -> None:
        """End a hold."""
        with library_errors(unsure=True):
            self._redis.delete(self._keys.flag(flag))

    release = satisfy


class UnfencedLease(PlainLock):
    """Takes a flag with an expiry, and trusts in it while it works."""

    def take(self, key: str, ttl: float) -> bool:
        return bool(self._redis.set(key, self._me, nx=True, px=round(ttl * 1000)))


class CheckThenSet(PlainLock):
    """Looks whether a flag is free, and then takes it."""

    expires = False

    def take(self, key: str, ttl: float) -> bool:
        if self._redis.get(key) is not None:
            return False
        return bool(self._redis.set(key, self._me))


CONTROLS: dict[str, Callable[[agentbus.Bus, str], Any]] = {
    "check_then_wait": CheckThenWait,
    "unfenced_lease": UnfencedLease,
    "check_then_set": CheckThenSet,
    "any_end": AnyEnd,
}
