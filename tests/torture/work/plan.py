"""How much is done and goes wrong, for a release and for each wrong implementation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, LATENCY, SERVER_KILL, WIPE
from tests.torture.work import checks, liveness, loads, mixed_checks
from tests.torture.work.faulty import FAULTS
from tests.torture.work.loads import LOST_TAIL, NO_ANSWER, MixedLoad, QueueLoad
from tests.torture.work.publisher import MAXLEN
from tests.torture.work.worker import KINDS
from tests.torture.workload import Check

PUBLISHER_KILL = "publisher_kill"
# By the minute: a little more than 10,000 tasks, since the outcome of some publications stays unknown.
_TASKS, _POISON = 10_200, 8
# In minutes: shorter runs have no loads, which take half a minute.
_SHORTEST = 0.5
_FAULTS = {
    KILL: 100,
    SERVER_KILL: 20,
    FREEZE: 6,
    "cut": 10,
    "half_open": 10,
    "lost_reply": 10,
    "lost_request": 10,
    PUBLISHER_KILL: 3,
}


class WorkPlan(NamedTuple):
    """A run; `gap` is about the time from one fault to the next, in seconds.

    With `late_workers`, workers start when all is published, and are killed only at work. With a `fault`,
    they are the library with it. The `loads` follow, one after the other, then the `mixed` ones.
    """

    tasks: int
    poison: int
    workers: Sequence[str]
    faults: dict[str, int]
    checks: Collection[Check] = (*checks.CHECKS, *liveness.LIVENESS, *mixed_checks.MIXED)
    publisher: str = "library"
    late_workers: bool = False
    toil: float = 0.06
    visibility: float = 1.0
    gap: float = 0.2
    loads: Sequence[QueueLoad] = ()
    mixed: Sequence[MixedLoad] = ()
    fault: str | None = None


def planned(trial: Trial) -> WorkPlan:
    """Return the plan for a trial."""
    if trial.control is not None:
        return _CONTROLS[trial.control]
    return WorkPlan(
        tasks=trial.number(_TASKS, 100),
        poison=trial.number(_POISON, 3),
        workers=[KINDS[number % len(KINDS)] for number in range(6)],
        faults=trial.faults(_FAULTS),
        loads=[*loads.LOADS.values()] * _rounds(trial.minutes),
        # A server that is not ours loses nothing.
        mixed=[*loads.MIXED.values()][: 1 if trial.url else None] * _rounds(trial.minutes),
    )


def _rounds(minutes: float) -> int:
    """Return how often a run has all loads: once, again for every five minutes; never in the short form."""
    return round(minutes / 5) or int(minutes >= _SHORTEST)


def _control(
    name: str, tasks: int, toil: float, faults: dict[str, int], check: Check, poison: int = 0
) -> WorkPlan:
    """Return a small plan by which this check catches a control: its workers always have work."""
    return WorkPlan(
        *(tasks, poison, [name] * 3, faults, [check]),
        publisher=MAXLEN if name == MAXLEN else "plain",
        late_workers=True,
        toil=toil,
    )


def _faulty(fault: str, under: Sequence[QueueLoad], *found_by: Check) -> WorkPlan:
    """Return a plan of the loads under which these checks catch a fault of the library."""
    assert fault in FAULTS
    return WorkPlan(0, 0, [], {}, found_by, loads=under)


def _mixed(fault: str, load: MixedLoad, found_by: Check) -> WorkPlan:
    """Return a plan of the mixed load under which this check catches a fault of the library."""
    assert fault in FAULTS
    return WorkPlan(0, 0, [], {}, [found_by], mixed=[load])


# Nobody has to die for what is wrong all the time.
_CALM = loads.TOGETHER._replace(faults={LATENCY: 4})
_CONTROLS = {
    "ack_first": _control("ack_first", 300, 0.03, {KILL: 4}, checks.lost),
    "ack_after": _control("ack_after", 600, 0.03, {FREEZE: 2}, checks.stale_accepted),
    "count_deliveries": _control(
        *("count_deliveries", 300, 0.03, {KILL: 4}, checks.innocents_buried), poison=2
    ),
    # Tasks are long enough that a kill at work hits a task, not an acknowledgement.
    "set_nx": _control("set_nx", 200, 0.1, {KILL: 6}, checks.lost),
    MAXLEN: _control(MAXLEN, 300, 0.01, {}, checks.lost),
    "log_own": WorkPlan(
        *(300, 0, ["library"] * 3, {KILL: 4}, [checks.attempts_unlogged]),
        late_workers=True,
        toil=0.03,
        fault="log_own",
    ),
    "whole_stream": _faulty("whole_stream", [loads.BOUND], liveness.refused_early),
    "whole_pages": _faulty("whole_pages", [loads.POISON], liveness.innocents_late),
    "fetch_together": _faulty("fetch_together", [loads.FETCHERS], liveness.buried_unbegun),
    "full_pages": _faulty(
        "full_pages",
        # One of six executors would be busy; a worker with threads would keep four.
        [loads.SLOW._replace(workers=["library"] * 6), loads.KILLED],
        liveness.workers_idle,
        liveness.repeated_though_done,
    ),
    "no_renewal": _faulty("no_renewal", [loads.FROZEN], liveness.begun_though_lost),
    "hands_mixed": _mixed("hands_mixed", _CALM, mixed_checks.handed_wrong),
    "forgets_steps": _mixed("forgets_steps", _CALM, mixed_checks.steps_repeated),
    "starts_all": _mixed("starts_all", _CALM, mixed_checks.beyond_limit),
    "lets_all_in": _mixed("lets_all_in", _CALM, mixed_checks.beyond_slots),
    "cancels_nothing": _mixed("cancels_nothing", _CALM, mixed_checks.begun_though_cancelled),
    "drains_early": _mixed(
        "drains_early", _CALM._replace(faults={LATENCY: 8}), mixed_checks.drained_early
    ),
    "knows_no_doubt": _mixed(
        "knows_no_doubt",
        loads.TOGETHER._replace(faults={NO_ANSWER: 2}),
        mixed_checks.refused_and_done,
    ),
    "trusts_memory": _mixed(
        "trusts_memory", loads.LOSSES._replace(faults={LOST_TAIL: 6}), mixed_checks.handed_wrong
    ),
    "absent_is_done": _mixed(
        "absent_is_done", loads.LOSSES._replace(faults={WIPE: 3}), mixed_checks.results_wrong
    ),
    "waits_for_none": _mixed("waits_for_none", loads.PROMOTED, mixed_checks.accepted_undone),
}
