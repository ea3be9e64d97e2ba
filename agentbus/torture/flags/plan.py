"""What a contender does in a round: the same again for the same seed, round and name."""

from __future__ import annotations

import random
from typing import NamedTuple

# The flag of every other round, so that its fencing tokens go on from round to round.
REUSED = "again"
RACE, AWAIT = "race", "await"
# Seconds. The generous ones are never over but by a fault of the library's.
GENEROUS = 60.0
BRIEF = 3.0
_TTLS = (0.3, 0.6, 1.0)
_WAIT = 5.0
_SAFE_TTL = 10.0
_SHORT, LONG = 0.02, 0.3


class Race(NamedTuple):
    """How one takes a flag, and what one does with it; spans in seconds."""

    ttl: float | None
    wait: float | None
    force: bool
    # Whether the library keeps the hold meanwhile, as in `with bus.hold(…)`.
    kept: bool
    section: float
    # Whether the holder gives the flag up first, and takes it once more.
    releases: bool


class Watch(NamedTuple):
    """What one awaits."""

    flags: tuple[str, ...]
    until: str = "satisfied"
    any: bool = False
    fresh: bool = False
    timeout: float = GENEROUS


def flag_of(number: int) -> str:
    """Return the flag of a round."""
    return REUSED if number % 2 == 0 else f"round-{number}"


def choice(seed: int, number: int, who: str, slow: float) -> Race | Watch:
    """Return what a contender does in a round; `slow` is the share of sections that take long."""
    chance = random.Random(f"{seed}/{number}/{who}")  # noqa: S311 - a seed gives the same again
    return _race(chance, slow) if chance.random() < 0.6 else _watch(chance, number)


def again(race: Race) -> Race:
    """Return how one contends for a flag that one has lost, or given up: so that it is kept this time."""
    ttl = None if race.ttl is None else _SAFE_TTL
    return Race(ttl, _WAIT, force=False, kept=False, section=_SHORT, releases=False)


def _race(chance: random.Random, slow: float) -> Race:
    kept = chance.random() < 0.15
    long = chance.random() < slow
    return Race(
        ttl=chance.choice(_TTLS) if kept or chance.random() < 0.6 else None,
        wait=_WAIT if chance.random() < 0.1 else None,
        force=not kept and chance.random() < 0.03,
        kept=kept,
        section=chance.uniform(LONG, 0.8) if long else chance.uniform(0.01, 0.06),
        releases=chance.random() < 0.1,
    )


def _watch(chance: random.Random, number: int) -> Watch:
    flag = flag_of(number)
    kind = chance.random()
    if kind < 0.6 or number == 1:
        return Watch((flag,))
    if kind < 0.75:
        return Watch((flag, flag_of(number - 1)))
    if kind < 0.85:
        return Watch((flag, f"never-{number}"), any=True)
    if kind < 0.93:
        return Watch((flag,), fresh=True, timeout=BRIEF)
    return Watch((flag,), until="announced", timeout=BRIEF)
