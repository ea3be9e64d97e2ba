"""How many rounds there are, with which faults, and what each contender does in a round."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.torture.mode import Trial

# The flag of every other round, so that its fencing tokens go on from round to round.
REUSED = "again"
# In seconds. Only a defect of the library outlasts the generous timeout.
GENEROUS = 60.0
_BRIEF = 3.0
_TTLS = (0.3, 0.6, 1.0)
_WAIT = 5.0
_SAFE_TTL = 10.0
_SHORT, LONG = 0.02, 0.3
_ROUNDS_A_MINUTE = 100.0
_CONTENDERS, _FEW, _FEW_BELOW = 50, 12, 1.0
# The share of the time for the faults.
_SHARE = 0.55


class FlagPlan(NamedTuple):
    """A run; times in seconds.

    `share` is the share of kills and freezes that are to hit holders, `delay` how late all answers are.
    """

    rounds: int
    contenders: int
    faults: dict[str, int]
    gap: float
    patience: float = GENEROUS
    bound: float = 30.0
    delay: float = 0.0
    share: float = 0.7
    # The share of holders that fail their flag.
    fails: float = 0.15


# Only the faults that reveal their mistake happen to controls, and they give up sooner.
_CONTROLS = {
    "check_then_wait": FlagPlan(3, 8, {}, 1.0, patience=4.0, bound=2.0, delay=0.04, fails=0.0),
    "unfenced_lease": FlagPlan(8, 8, {"freeze": 4}, 0.3, share=1.0, fails=0.0),
    "check_then_set": FlagPlan(5, 8, {}, 1.0, fails=0.0),
    "any_end": FlagPlan(6, 8, {}, 1.0, patience=4.0, fails=0.7),
}


def planned(trial: Trial) -> FlagPlan:
    """Return the plan for a trial."""
    if trial.control is not None:
        return _CONTROLS[trial.control]
    faults = trial.faults({"kill": 20.0, "freeze": 6.0})
    return FlagPlan(
        rounds=trial.number(_ROUNDS_A_MINUTE, least=10),
        contenders=_CONTENDERS if trial.minutes >= _FEW_BELOW else _FEW,
        faults=faults,
        gap=trial.minutes * 60 * _SHARE / sum(faults.values()),
    )


class RacePart(NamedTuple):
    """How a contender takes a flag, and how long it works; times in seconds.

    `kept`: the library keeps the hold meanwhile, as in `with bus.hold(…)`. `releases`: the holder gives the
    flag up first, and takes it once more. `fails`: the holder fails the flag, and takes it once more to
    satisfy it if no later round has this flag.
    """

    ttl: float | None
    wait: float | None
    force: bool
    kept: bool
    section: float
    releases: bool
    fails: bool


class AwaitPart(NamedTuple):
    """What a contender awaits."""

    flags: tuple[str, ...]
    until: str = "satisfied"
    any: bool = False
    fresh: bool = False
    timeout: float = GENEROUS


def flag_of(number: int) -> str:
    """Return the flag of a round."""
    return REUSED if number % 2 == 0 else f"round-{number}"


def choice(
    seed: int, number: int, who: str, slow: float, fails: float = 0.0
) -> RacePart | AwaitPart:
    """Return what a contender does in a round.

    `slow` is the share of long sections, `fails` that of holders that fail their flag.
    """
    chance = random.Random(f"{seed}/{number}/{who}")
    return _race(chance, slow, fails) if chance.random() < 0.6 else _watch(chance, number)


def again(race: RacePart) -> RacePart:
    """Return how to contend for a flag that was lost or given up: this time it is kept."""
    ttl = None if race.ttl is None else _SAFE_TTL
    return RacePart(
        ttl, _WAIT, force=False, kept=False, section=_SHORT, releases=False, fails=False
    )


def _race(chance: random.Random, slow: float, fails: float) -> RacePart:
    kept = chance.random() < 0.15
    long = chance.random() < slow
    return RacePart(
        ttl=chance.choice(_TTLS) if kept or chance.random() < 0.6 else None,
        wait=_WAIT if chance.random() < 0.1 else None,
        force=not kept and chance.random() < 0.03,
        kept=kept,
        section=chance.uniform(LONG, 0.8) if long else chance.uniform(0.01, 0.06),
        releases=chance.random() < 0.1,
        fails=chance.random() < fails,
    )


def _watch(chance: random.Random, number: int) -> AwaitPart:
    flag = flag_of(number)
    kind = chance.random()
    if kind < 0.6 or number == 1:
        return AwaitPart((flag,))
    if kind < 0.75:
        return AwaitPart((flag, flag_of(number - 1)))
    if kind < 0.85:
        return AwaitPart((flag, f"never-{number}"), any=True)
    if kind < 0.93:
        return AwaitPart((flag,), fresh=True, timeout=_BRIEF)
    return AwaitPart((flag,), until="announced", timeout=_BRIEF)
