"""Contenders that do it wrong, as many programs do: the checks must find each of them out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis

import agentbus
from agentbus.core.errors import BackendUnavailable, FlagHeld, NotHolder, OutcomeUnknown, TimedOut
from agentbus.core.keys import Keys
from agentbus.torture.flags.plan import Race, Watch
from agentbus.torture.flags.ways import Held, Library

_ANSWERS_WITHIN = 5.0
_PAUSE = 0.05


class _Raw(Library):
    """The library's ways, but for those that a program has thought out for itself."""

    def __init__(self, bus: agentbus.Bus, url: str) -> None:
        super().__init__(bus)
        self._keys = Keys(bus.project)
        self._me = bus.agent
        self._redis = redis.Redis.from_url(
            url, protocol=2, driver_info=None, socket_timeout=_ANSWERS_WITHIN
        )

    @contextlib.contextmanager
    def _asking(self, *, writes: bool = True) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as refused:
            raise BackendUnavailable(str(refused)) from refused
        except redis.RedisError as trouble:
            raise (OutcomeUnknown if writes else BackendUnavailable)(str(trouble)) from trouble


class CheckThenWait(_Raw):
    """Looks at a flag, and then waits for whatever is said from then on."""

    def await_(self, watch: Watch) -> list[str]:
        """Wait, and return the flags for which it was over."""
        until = time.monotonic() + watch.timeout
        wanted = set(watch.flags)
        enough = 1 if watch.any else len(wanted)
        with self._asking(writes=False):
            known = () if watch.fresh else wanted
            found = [flag for flag in known if self._redis.exists(self._keys.done(flag))]
            last: bytes | str = "$"
            while len(found) < enough:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"nothing was said of {wanted}")
                for entry_id, flag in self._news(last, min(left, _ANSWERS_WITHIN / 2)):
                    last = entry_id
                    if flag in wanted:
                        found.append(flag)
        return found

    def _news(self, last: bytes | str, seconds: float) -> Iterator[tuple[bytes, str | None]]:
        block = max(1, round(seconds * 1000))
        reply: Any = self._redis.xread({self._keys.channel: last}, block=block)
        for _, entries in reply or ():
            for entry_id, fields in entries:
                satisfied = fields.get(b"event") == b"satisfied"
                yield entry_id, fields[b"flag"].decode() if satisfied else None


class _Lock(_Raw):
    """A key that is there while somebody holds the flag; nothing tells who, or for the how-manieth time."""

    complete = False
    # What a lease of such a program lasts if it was not given a TTL, and how long it tries, in seconds.
    lease = 0.5
    patience = 2.0

    def take(self, key: str, race: Race) -> bool:
        """Take the lock if it is free."""
        raise NotImplementedError

    def announce(self, flag: str, race: Race) -> Held:
        """Take a flag."""
        until = time.monotonic() + self.patience
        with self._asking():
            while not self.take(self._keys.flag(flag), race):
                if time.monotonic() > until:
                    raise FlagHeld(f"{flag} is held")
                time.sleep(_PAUSE)
        return Held(None, race.ttl)

    def renew(self, flag: str, held: Held) -> None:
        """Give a hold its TTL again, whoever's it is now."""
        with self._asking():
            if not self._redis.pexpire(self._keys.flag(flag), round((held.left or 1.0) * 1000)):
                raise NotHolder(f"{flag} is held by nobody")

    def satisfy(self, flag: str, held: Held) -> None:
        """End a hold, whoever's it is now."""
        with self._asking():
            self._redis.delete(self._keys.flag(flag))

    release = satisfy


class UnfencedLease(_Lock):
    """Takes a flag with an expiry, and believes in it for as long as it works."""

    def take(self, key: str, race: Race) -> bool:
        """Take the lock if it is free."""
        lease = round((race.ttl or self.lease) * 1000)
        return bool(self._redis.set(key, self._me, nx=True, px=lease))

    def announce(self, flag: str, race: Race) -> Held:
        """Take a flag."""
        return super().announce(flag, race._replace(ttl=race.ttl or self.lease))


class CheckThenSet(_Lock):
    """Looks whether a flag is free, and then takes it."""

    def take(self, key: str, race: Race) -> bool:
        """Take the lock if it is free."""
        if self._redis.get(key) is not None:
            return False
        return bool(self._redis.set(key, self._me))

    def announce(self, flag: str, race: Race) -> Held:
        """Take a flag."""
        return super().announce(flag, race._replace(ttl=None))


CONTROLS: dict[str, type[_Raw]] = {
    "check_then_wait": CheckThenWait,
    "unfenced_lease": UnfencedLease,
    "check_then_set": CheckThenSet,
}
