"""The checks of mixed loads see each fault there is, and none in a sound history or in what was lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.verdict import found_by
from tests.torture.work import mixed_checks
from tests.torture.work.checks import NOTHING, DataLoss, MixedEvidence, by_process
from tests.torture.work.mixed_checks import CANCEL, DRAIN, LIMITED, RESULT, SLOT, STEP, STEPPED
from tests.torture.work.tasks import LIFE, PUBLISH, RUN

Line = tuple[float, str, str, str, dict[str, Any]]


def published(at: float, *tasks: int, phase: str = OK, **of: Any) -> Line:
    told = {"do": "flow", "tasks": tasks, "undo": (), "fails": False, "durable": False, **of}
    return at, "ada", PUBLISH, phase, {**told, "error": "BackendUnavailable"}


def ran(at: float, task: int, value: str | None = None, **of: Any) -> list[Line]:
    """Return a run of half a second, by default by worker `a` in the first attempt."""
    who = of.pop("who", "a")
    told = {"i": task, "do": "flow", "attempt": 1, "id": f"id {task}", "after": [], "given": []}
    told |= of
    return [
        (at, who, RUN, INVOKE, told),
        (at + 0.5, who, RUN, OK, {**told, "value": value or f"value of {task}"}),
    ]


def step(at: float, phase: str, value: str = "x", op: str = STEP, attempt: int = 1) -> Line:
    return at, "a", op, phase, {"i": 1, "name": "one", "attempt": attempt, "value": value}


def evidence(*lines: Line, losses: tuple[DataLoss, ...] = ()) -> MixedEvidence:
    entries = [
        HistoryEntry(round(at * 1e9), who, op, phase, of) for at, who, op, phase, of in lines
    ]
    return MixedEvidence([*by_process(entries)], losses)


def lost(at: float, *, everything: bool = False) -> tuple[DataLoss, ...]:
    return (DataLoss(round(at * 1e9), round((at + 0.1) * 1e9), everything),)


def violations(one: MixedEvidence) -> set[str]:
    return set(found_by(NOTHING._replace(mixed=[one]), mixed_checks.MIXED))


# Task 2 gets what task 1 returned.
HANDED = [*ran(2, 1), *ran(3, 2, after=[1], given=["value of 1"])]
# Flow of tasks 1 to 3, whose last one fails; 4 and 5 undo the first two.
FAILS = published(1, 1, 2, 3, undo=(4, 5), fails=True)
BURIED = (4.5, "a", RUN, FAIL, {"i": 3, "do": "flow", "why": "buried"})
UNDONE = [
    *ran(5, 5, after=[2], given=["value of 2"]),
    *ran(6, 4, after=[1], given=["value of 1"]),
]


def test_sound_histories_have_no_violation() -> None:
    assert violations(evidence()) == set()
    assert violations(evidence(published(1, 1, 2), *HANDED)) == set()
    assert violations(evidence(FAILS, *HANDED, BURIED, *UNDONE)) == set()
    assert violations(evidence(published(1, 1, phase=FAIL), published(1, 2), *ran(2, 2))) == set()
    assert violations(evidence(published(1, 1, phase=UNKNOWN), *ran(2, 1))) == set()
    again = [*ran(2, 1, "x"), *ran(3, 1, "y", attempt=2), *ran(4, 2, after=[1], given=["y"])]
    assert violations(evidence(published(1, 1, 2), *again)) == set()


def test_a_refused_task_that_ran_is_found() -> None:
    assert violations(evidence(published(1, 1, phase=FAIL), *ran(2, 1))) == {"refused_and_done"}
    # It was on its way when it was called refused.
    assert violations(evidence(published(3, 1, phase=FAIL), *ran(2, 1))) == {"refused_and_done"}


def test_an_accepted_task_that_was_not_done_is_found_unless_it_was_lost() -> None:
    durable, plain = published(1, 1, durable=True), published(1, 1)

    assert violations(evidence(plain)) == {"accepted_undone"}
    assert violations(evidence(plain, *ran(3, 2), losses=lost(2))) == set()
    assert violations(evidence(plain, *ran(3, 2), losses=lost(0.5))) == {"accepted_undone"}
    assert violations(evidence(durable, *ran(3, 2), losses=lost(2))) == {"accepted_undone"}
    assert violations(evidence(durable, *ran(3, 2), losses=lost(2, everything=True))) == set()
    # The first task is not undone.
    assert violations(evidence(FAILS, *HANDED, BURIED, *UNDONE[:2])) == {"accepted_undone"}


def test_a_task_that_begins_after_its_undo_and_a_wrong_order_of_undo_are_found() -> None:
    sound = [FAILS, *HANDED, BURIED, *UNDONE]
    other = [
        *ran(5, 4, after=[1], given=["value of 1"]),
        *ran(6, 5, after=[2], given=["value of 2"]),
    ]

    assert violations(evidence(*sound, *ran(8, 1, attempt=2))) == {"undone_early"}
    assert violations(evidence(FAILS, *HANDED, BURIED, *other)) == {"undone_early"}


@pytest.mark.parametrize("given", [[None], ["value of 2"], [], ["value of 1", "value of 1"]])
def test_a_result_that_was_not_returned_is_not_handed_on(given: list[Any]) -> None:
    lines = [published(1, 1, 2), *ran(2, 1), *ran(4, 2, after=[1], given=given)]

    assert violations(evidence(*lines)) == {"handed_wrong"}
    assert violations(evidence(*lines, losses=lost(3))) == {"handed_wrong"}
    assert violations(evidence(*lines, losses=lost(3, everything=True))) == {"handed_wrong"}


def test_a_result_that_no_run_had_returned_is_found() -> None:
    def answered(at: float, value: str | None) -> MixedEvidence:
        return evidence(
            published(1, 1), *ran(2, 1), (at, "ada", RESULT, OK, {"i": 1, "value": value})
        )

    assert violations(answered(3, "value of 1")) == set()
    assert violations(answered(3, None)) == {"results_wrong"}
    assert violations(answered(2.2, "value of 1")) == {"results_wrong"}


def test_a_recorded_step_that_is_called_again_or_has_another_result_is_found() -> None:
    first = [step(1, INVOKE), step(2, OK), step(3, OK, op=STEPPED)]
    again = [step(5, INVOKE, attempt=2), step(6, OK, "y", attempt=2)]
    other = step(7, OK, "y", STEPPED, attempt=2)

    assert violations(evidence(*first, step(7, OK, op=STEPPED, attempt=2))) == set()
    assert violations(evidence(*first, *again)) == {"steps_repeated"}
    assert violations(evidence(*first, *again, other)) == {"steps_repeated", "steps_differ"}
    assert violations(evidence(*first, *again, other, losses=lost(4))) == set()
    assert violations(evidence(*first, other)) == {"steps_differ"}
    # A former owner that is late is refused afterwards.
    second = step(6, OK, "y", STEPPED, attempt=2)
    assert violations(evidence(*again, second, step(7, INVOKE))) == set()


@pytest.mark.parametrize(
    ("op", "most", "found"), [(RUN, 3, "beyond_limit"), (SLOT, 2, "beyond_slots")]
)
def test_too_many_at_once_are_found(op: str, most: int, found: str) -> None:
    def at_once(number: int, **of: Any) -> list[Line]:
        told = {"do": LIMITED, "attempt": 1, "after": [], "given": [], "value": "x", **of}
        return [
            (at, f"w{task}", op, phase, {"i": task, "id": str(task), **told})
            for task in range(number)
            for at, phase in ((1 + task / 10, INVOKE), (5, OK))
        ]

    def only(lines: list[Line], **more: Any) -> set[str]:
        return violations(evidence(*lines, **more)) & {found}

    assert only(at_once(most)) == set()
    assert only(at_once(most + 1)) == {found}
    assert only(at_once(most + 1), losses=lost(1)) == set()
    # Nobody knows how long a killed one held it, and a task that is not limited does not count.
    assert only([x for x in at_once(most + 1) if x[3] == INVOKE]) == set()
    assert only(at_once(most + 1, do="flow")) == set()


def test_a_task_that_begins_though_it_was_cancelled_is_found() -> None:
    def cancelled(state: str, begins: float, **more: Any) -> MixedEvidence:
        cancel = (2, "ada", CANCEL, OK, {"i": 1, "state": state})
        return evidence(published(1, 1), cancel, *ran(begins, 1), **more)

    assert violations(cancelled("cancelled", 1.5)) == set()
    assert violations(cancelled("cancelled", 3)) == {"begun_though_cancelled"}
    assert violations(cancelled("cancelled", 3, losses=lost(2.5))) == set()
    assert violations(cancelled("stopping", 3)) == set()
    assert violations(cancelled("stopping", 8)) == {"begun_though_cancelled"}


def test_a_drain_that_ends_before_its_tasks_is_found() -> None:
    drained = [(at, "b", DRAIN, phase, {"n": 1}) for at, phase in ((1.5, INVOKE), (3, OK))]
    one = published(1, 1, do=DRAIN)
    cancelled = [
        (2, "ada", CANCEL, phase, {"i": 1, "state": "cancelled"}) for phase in (INVOKE, OK)
    ]

    assert violations(evidence(one, *drained, *ran(2, 1))) == set()
    assert violations(evidence(one, *drained, *ran(4, 1))) == {"drained_early"}
    assert violations(evidence(one, *drained, *ran(4, 1), losses=lost(2))) == set()
    assert violations(evidence(one, *cancelled, *drained)) == set()
    assert violations(evidence(published(2, 1, do=DRAIN), *drained, *ran(4, 1))) == set()


def test_a_task_that_runs_under_two_ids_is_found_unless_something_was_lost() -> None:
    lines = [published(1, 1), *ran(2, 1), *ran(4, 1, id="another", attempt=2)]

    assert violations(evidence(*lines)) == {"doubled"}
    assert violations(evidence(*lines, losses=lost(3))) == set()


def test_the_processes_of_a_role_are_told_apart() -> None:
    # Nobody knows how long the first one ran, and the second one ended nothing of it.
    run = {"i": 1, "do": LIMITED, "attempt": 1}
    one = evidence(
        *((1, "a", LIFE, INVOKE, {}), (2, "a", SLOT, INVOKE, run)),
        *((3, "a", LIFE, INVOKE, {}), (4, "a", SLOT, OK, run)),
    )

    assert mixed_checks.figures(NOTHING._replace(mixed=[one]))["slots held at once, at most"] == 0
