"""The checks that judge whether queues go on see each delay there is, and none in a sound history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torture.history import FAIL, INVOKE, OK, HistoryEntry
from tests.torture.verdict import found_by
from tests.torture.work import liveness
from tests.torture.work.checks import NOTHING, BuriedTask, LoadEvidence, Moment, TaskEvent
from tests.torture.work.liveness import LIVENESS
from tests.torture.work.loads import QueueLoad
from tests.torture.work.tasks import ACK, PUBLISH, RUN

BEGIN, DONE, ACCEPTED = (RUN, INVOKE), (RUN, OK), (ACK, OK)
A, B = "library-0.1", "library-1.1"
# Two workers with a visibility of 2 s, which may take 10 s.
LOAD = QueueLoad(
    *("mail", "beside others", [{}, {}, {"poison": 1}], ["library"] * 2),
    visibility=2.0,
    within=10.0,
    bound=4,
)


def told(*lines: tuple[Any, ...], **more: Any) -> LoadEvidence:
    """Return a load's evidence from (second, who, what, task) and, if it is not the first, the attempt."""
    events = [
        TaskEvent(round(at * 1e9), who, *what, task, attempt[0] if attempt else 1, f"id {task}")
        for at, who, what, task, *attempt in sorted(lines, key=lambda line: line[0])
    ]
    return LoadEvidence(LOAD, 0, events, **more)


def violations(one: LoadEvidence) -> set[str]:
    return set(found_by(NOTHING._replace(loads=[one]), LIVENESS))


def moment(who: str, second: float) -> list[Moment]:
    return [Moment(who, round(second * 1e9))]


def ran(task: int, who: str, begin: float, end: float, attempt: int = 1) -> list[tuple[Any, ...]]:
    return [(begin, who, BEGIN, task, attempt), (end, who, DONE, task, attempt)]


SOUND = [*ran(0, A, 0.1, 1), *ran(1, B, 0.2, 1)]


def test_tasks_that_are_done_at_once_by_all_workers_have_no_violation() -> None:
    assert violations(told(*SOUND)) == set()
    assert liveness.figures(NOTHING._replace(loads=[told(*SOUND)])) == {
        "seconds to do tasks beside others": 1.0,
        "publications refused at the bound": 0,
        "publications refused early": 0,
        "innocents buried and never begun": 0,
    }


def test_an_innocent_that_is_done_late_or_never_is_found_and_poison_is_not() -> None:
    late = [*SOUND[:2], *ran(1, B, 0.2, 11)]

    assert violations(told(*late)) == {"innocents_late"}
    assert violations(told(*late, starting=0.6)) == set()
    assert "innocents_late" in violations(told(*SOUND[:3]))


def test_workers_that_are_idle_while_one_has_all_the_tasks_are_found() -> None:
    shared = told(*ran(0, A, 0, 4), *ran(1, B, 3, 5))._replace(load=LOAD._replace(idle=0.5))
    kept = told(*ran(0, A, 0, 3), *ran(1, A, 4, 5))._replace(load=LOAD._replace(idle=0.5))

    assert violations(shared) == set()
    assert violations(kept) == {"workers_idle"}
    figures = liveness.figures(NOTHING._replace(loads=[kept]))
    assert figures["percent of time idle beside slow tasks"] == 62


def published(*lines: tuple[float, str, int]) -> list[HistoryEntry]:
    return [
        HistoryEntry(round(at * 1e9), "publisher", PUBLISH, phase, {"n": task})
        for at, phase, task in lines
    ]


def test_a_refusal_counts_only_while_less_than_half_of_the_bound_is_open() -> None:
    # given two tasks that were accepted, of which one is acknowledged
    two = [(0.1, INVOKE, 0), (0.2, OK, 0), (0.3, INVOKE, 1), (0.4, OK, 1)]
    acked = [*SOUND, (1.1, A, ACCEPTED, 0)]
    before = published(*two, (1.0, INVOKE, 2), (1.2, FAIL, 2))
    after = published(*two, (1.2, INVOKE, 2), (1.3, FAIL, 2))

    assert violations(told(*acked, publications=before)) == set()
    assert violations(told(*acked, publications=after)) == {"refused_early"}


def test_an_innocent_that_was_buried_and_never_begun_is_found() -> None:
    never = told(*SOUND[:2], letters=[BuriedTask(1, "", 4), BuriedTask(2, "", 4)])
    begun = told(*SOUND, letters=[BuriedTask(1, "", 4)])

    assert "buried_unbegun" in violations(never)
    assert violations(begun) == set()


@pytest.mark.parametrize(("died", "found"), [(1.5, set()), (2.5, {"repeated_though_done"})])
def test_what_was_done_long_before_a_kill_must_not_be_repeated(died: float, found: Any) -> None:
    again = ran(1, A, died + 3, died + 4, 2)

    assert violations(told(*SOUND, *again, killed=moment(B, died))) == found
    assert violations(told(*SOUND, killed=moment(B, died))) == set()


def test_one_task_for_each_executor_may_begin_though_it_was_lost() -> None:
    # given that B was frozen, A has done its tasks, and B goes on after 5 s
    taken = [*ran(0, A, 1, 2, 2), *ran(1, A, 2, 3, 2)]
    late = [*ran(0, B, 5.1, 5.2), *ran(1, B, 5.2, 5.3)]
    busy = [*ran(0, A, 0, 1), *taken]

    assert violations(told(*busy, *late[:2], resumed=moment(B, 5))) == set()
    assert violations(told(*busy, *late, resumed=moment(B, 5))) == {"begun_though_lost"}
    # Long after it went on, it may have been frozen again.
    assert violations(told(*busy, *late, resumed=moment(B, 4))) == set()
