"""The checks that judge a crash run see each fault there is, and none in a sound history."""

from __future__ import annotations

from typing import Any

import pytest

from tests import history
from tests.history import ACCEPTED, BEGIN, DONE, REFUSED, Event, Letter, Reader, Scribe, Story


def told(*lines: tuple[Any, ...]) -> list[Event]:
    """Return events from (when, worker, what, task) and, if it is not the first, the attempt."""
    return [
        Event(at, worker, what, task, attempt[0] if attempt else 1, f"id {task}")
        for at, worker, what, task, *attempt in lines
    ]


BY_A = [(1, "a", BEGIN, 1), (2, "a", DONE, 1), (3, "a", ACCEPTED, 1)]
BURIED = Letter(2, "id 2", 4, "its worker died")


def story(events: list[Event], **changes: Any) -> Story:
    """Return a story of two tasks, of which 2 is poison and was buried."""
    sound = Story(
        frozenset({1, 2}), frozenset(), frozenset({2}), 4, events, [BURIED], {"pending": 0}
    )
    return sound._replace(**changes)


def test_a_sound_history_has_no_violation() -> None:
    taken_over = told(
        *((1, "a", BEGIN, 1), (4, "b", BEGIN, 1, 2), (5, "a", DONE, 1), (6, "a", REFUSED, 1)),
        *((7, "b", DONE, 1, 2), (8, "b", ACCEPTED, 1, 2), (9, "a", BEGIN, 2)),
    )
    former_owner_late = told(
        *((1, "b", BEGIN, 1, 2), (2, "a", BEGIN, 1), (3, "b", ACCEPTED, 1, 2), (4, "b", DONE, 1, 2))
    )

    assert history.violations(story(told(*BY_A))) == {}
    assert history.violations(story(told(*BY_A, (4, "b", BEGIN, 2)), ordered={"key": [1, 2]})) == {}
    assert history.violations(story(taken_over)) == {}
    assert history.violations(story(former_owner_late)) == {}
    assert history.runs_more_than_once(story(taken_over)) == 1
    assert history.runs_at_once(story(taken_over)) == 1


@pytest.mark.parametrize(
    ("events", "changes", "found"),
    [
        ([], {}, {"lost"}),
        (BY_A[:1], {}, {"lost"}),
        (BY_A, {"letters": []}, {"lost", "poison_not_buried_once"}),
        (BY_A, {"letters": [BURIED, BURIED]}, {"poison_not_buried_once"}),
        (BY_A, {"letters": [BURIED, Letter(1, "id 1", 4, "")]}, {"innocents_buried"}),
        (BY_A, {"letters": [BURIED, Letter(-1, "", 0, "")]}, {"innocents_buried"}),
        (BY_A, {"letters": [BURIED._replace(attempts=3)]}, {"poison_beyond_its_attempts"}),
        ([*BY_A, *[(t, "b", BEGIN, 2) for t in range(5)]], {}, {"poison_beyond_its_attempts"}),
        # b had taken the task over, and begun it, when a asked
        ([*BY_A[:2], (2, "b", BEGIN, 1, 2), (3, "a", ACCEPTED, 1)], {}, {"stale_accepted"}),
        ([*BY_A, (4, "b", BEGIN, 1), (5, "b", ACCEPTED, 1)], {}, {"accepted_twice"}),
        (BY_A, {"letters": [BURIED, BURIED._replace(name="id 3")]}, {"published_twice"}),
        ([*BY_A, (9, "a", BEGIN, 3)], {}, {"invented"}),
        ([*BY_A, (1, "b", BEGIN, 3)], {"ordered": {"key": [1, 2, 3]}}, {"invented"}),
        ([*BY_A, (1, "b", BEGIN, 2)], {"ordered": {"key": [1, 2]}}, {"out_of_order"}),
        ([(9, "b", BEGIN, 2)], {"ordered": {"key": [1, 2]}}, {"out_of_order", "lost"}),
        (BY_A, {"waiting": {"pending": 1}}, {"stuck"}),
        (BY_A, {"ended": ["0001 exited 1"]}, {"ended_by_themselves"}),
    ],
)
def test_each_fault_is_found(events: Any, changes: Any, found: set[str]) -> None:
    assert found <= history.violations(story(told(*events), **changes)).keys()


def test_a_history_is_read_while_it_grows_and_a_torn_line_waits_for_its_end(tmp_path: Any) -> None:
    reader, scribe = Reader(tmp_path), Scribe(tmp_path / "a")
    reader.follow("a")
    assert reader.news() == []

    scribe.note(BEGIN, 1, 1, "id with spaces")
    assert [(event.what, event.name) for event in reader.news()] == [(BEGIN, "id with spaces")]
    with (tmp_path / "a").open("ab") as file:
        file.write(b"5 done 1 1")
        file.flush()
        assert reader.news() == []
        file.write(b" id 1\n")

    assert [event.what for event in reader.leave("a")] == [DONE]
    assert [event.what for event in reader.events] == [BEGIN, DONE]
