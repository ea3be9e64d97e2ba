"""The publisher under torture publishes the same for the same seed, and goes on where another one died."""

from __future__ import annotations

import pathlib

from agentbus.errors import BackendUnavailable, OutcomeUnknown
from tests.torture.assignment import Allowance
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, Scribe, read_history
from tests.torture.work import checks
from tests.torture.work.publisher import publish, resumed_at
from tests.torture.work.tasks import PUBLISH, Publication, TaskPlan


def test_a_seed_gives_the_same_tasks_from_wherever_one_begins() -> None:
    tasks = TaskPlan(7, 110, 3)
    whole = list(tasks.publications())
    asked = [task for one in whole[: tasks.size] for task in one.payloads]

    assert list(TaskPlan(7, 110, 3).publications(3)) == whole[3:]
    assert [task["i"] for task in asked][:110] == list(range(110))
    assert {task["i"] for task in asked if "poison" in task} == tasks.poison
    assert list(TaskPlan(8, 110, 3).publications()) != whole


def test_a_publisher_ends_where_it_is_told_to(tmp_path: pathlib.Path) -> None:
    sent: list[int] = []

    limit = Allowance(3, over=True)
    publish(lambda one: sent.append(one.number), limit, tmp_path / "a", TaskPlan(7, 1000, 0))

    assert sent == [0, 1, 2]


def test_what_is_refused_is_published_again_and_what_is_in_doubt_is_not(
    tmp_path: pathlib.Path,
) -> None:
    sent: list[int] = []
    troubles: list[Exception | None] = [BackendUnavailable("full"), OutcomeUnknown("?"), None, None]

    def send(one: Publication) -> None:
        sent.append(one.first)
        if trouble := troubles.pop(0):
            if isinstance(trouble, OutcomeUnknown):
                assert one.first == 0
            raise trouble

    publish(send, Allowance(3, over=True), tmp_path / "a", TaskPlan(7, 30, 0, plain=True))

    told = read_history(tmp_path / "a")
    assert sent == [0, 0, 24, 25]
    assert [entry.phase for entry in told if entry.phase != INVOKE] == [FAIL, UNKNOWN, OK, OK]
    assert checks.published(told).unsure == set(range(24))


def test_a_publisher_that_died_is_followed_by_one_that_knows_how_far_it_came(
    tmp_path: pathlib.Path,
) -> None:
    history = tmp_path / "publisher"
    scribe = Scribe(history)

    assert resumed_at(history) == 0
    scribe.note(PUBLISH, INVOKE, n=0, first=0, last=23)
    assert resumed_at(history) == 1
    scribe.note(PUBLISH, FAIL, n=0)
    assert resumed_at(history) == 0
    scribe.note(PUBLISH, INVOKE, n=0, first=0, last=23)
    scribe.note(PUBLISH, OK, n=0)
    assert resumed_at(history) == 1
