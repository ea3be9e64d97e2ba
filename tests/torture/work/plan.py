"""How much is done and goes wrong, for a release and for each wrong implementation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, SERVER_KILL
from tests.torture.work import checks, liveness, loads
from tests.torture.work.faulty import FAULTS
from tests.torture.work.loads import QueueLoad
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
    they are the library with it. The `loads` follow, one after the other.
    """

    tasks: int
    poison: int
    workers: Sequence[str]
    faults: dict[str, int]
    checks: Collection[Check] = (*checks.CHECKS, *liveness.LIVENESS)
    publisher: str = "library"
    late_workers: bool = False
    toil: float = 0.06
    visibility: float = 1.0
    gap: float = 0.2
    loads: Sequence[QueueLoad] = ()
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
        loads=_loads(trial.minutes),
    )


def _loads(minutes: float) -> list[QueueLoad]:
    """Return the loads of a run: all of them, and again for every five minutes; none in the short form."""
    rounds = round(minutes / 5) or int(minutes >= _SHORTEST)
    return [*loads.LOADS.values()] * rounds


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
}
