"""A sound story of talk has nothing wrong, and each fault is found by the check that is made for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.talk import checks
from tests.torture.talk.evidence import (
    TORN_OFF,
    Content,
    NoteOperation,
    ReadingStep,
    Spoken,
    TalkCollector,
    TalkEvidence,
)
from tests.torture.verdict import found_by

TORN = TORN_OFF


def missed(number: int) -> ReadingStep:
    return ReadingStep("gap", missed=number)


def at(number: int) -> tuple[int, int]:
    return (number, 0)


def hear(*numbers: int) -> list[ReadingStep]:
    return [ReadingStep("heard", at(number)) for number in numbers]


def sure(number: int) -> ReadingStep:
    return ReadingStep("sure", at(number))


def story(
    steps: Sequence[ReadingStep], topic: str | None = None, *, last: int = 5, **changes: Any
) -> TalkEvidence:
    """Ada says 1 to `last`, even ones on the topic `even`; bob lives through these steps."""
    said = {
        f"ada {number}": Spoken("ada", number, None if number % 2 else "even", OK, at(number))
        for number in range(1, last + 1)
    }
    entries = {
        one.id: frozenset([Content("ada", text, one.topic)])
        for text, one in said.items()
        if one.id is not None
    }
    return TalkEvidence(said, entries, {("bob", topic): steps})._replace(**changes)


def wrong(of: TalkEvidence) -> set[str]:
    return set(found_by(of, checks.CHECKS))


def ids(found: Collection[checks.Wrong]) -> list[int]:
    return [one.id[0] for one in found]


@pytest.mark.parametrize(
    "steps",
    [
        [*hear(1, 2, 3, 4, 5), sure(5)],
        [*hear(1, 2), sure(2), *hear(3, 4), TORN, *hear(3, 4, 5), sure(5)],
        [*hear(1, 2), sure(2), TORN, *hear(3, 4, 5), TORN, sure(5)],
        [*hear(1), sure(1), missed(2), *hear(4, 5), sure(5)],
        # Who was told of a gap, and died, is told again, and of more.
        [*hear(1), sure(1), missed(1), TORN, missed(2), *hear(4, 5), sure(5)],
        # What had been heard, and was trimmed before the cursor came past it, counts.
        [*hear(1), sure(1), *hear(2, 3), TORN, missed(3), *hear(5), sure(5)],
        [*hear(1), sure(1), missed(4), sure(5)],
    ],
    ids=str,
)
def test_in_a_sound_story_nothing_is_wrong(steps: list[ReadingStep]) -> None:
    assert found_by(story(steps), checks.CHECKS) == {}


def test_a_reader_of_a_topic_need_hear_nothing_else() -> None:
    assert wrong(story([*hear(2, 4), sure(5)], "even")) == set()


# -- what was said and heard --


def test_a_message_that_was_never_heard_is_lost() -> None:
    found = story([*hear(1, 2, 4, 5), sure(5)])

    assert wrong(found) == {"lost"}
    assert ids(checks.lost(found)) == [3]


def test_a_message_on_a_topic_that_its_reader_never_heard_is_lost() -> None:
    assert ids(checks.lost(story([*hear(4), sure(5)], "even"))) == [2]


def test_a_gap_that_is_told_too_small_covers_nothing() -> None:
    found = story([*hear(1), sure(1), missed(2), *hear(5), sure(5)])

    assert wrong(found) == {"lost"}
    assert ids(checks.lost(found)) == [2, 3, 4]


def test_a_gap_covers_only_what_lies_where_it_was_told() -> None:
    found = story([*hear(1, 3), sure(3), missed(1), *hear(5), sure(5)])

    assert ids(checks.lost(found)) == [2]


def test_what_was_not_acknowledged_need_not_be_there() -> None:
    found = story([*hear(1, 2, 3, 4, 5), sure(5)])
    maybe = {"ada 6": Spoken("ada", 6, None, UNKNOWN), "ada 7": Spoken("ada", 7, None)}

    assert wrong(found._replace(said={**found.said, **maybe})) == set()


def test_a_gap_that_is_larger_than_all_that_there_was_is_found() -> None:
    found = story([*hear(1), sure(1), missed(3), *hear(4, 5), sure(5)])

    # 4, which comes after it, cannot have been trimmed.
    assert checks.told_too_many(found) == [(("bob", None), 3, 2)]


def test_a_gap_may_hold_what_was_maybe_said() -> None:
    found = story([*hear(1), sure(1), missed(3), *hear(4, 5), sure(5)])
    maybe = {"ada 6": Spoken("ada", 6, None, UNKNOWN)}

    assert checks.told_too_many(found._replace(said={**found.said, **maybe})) == []


@pytest.mark.parametrize(
    "steps",
    [
        [*hear(1, 2, 2, 3, 4, 5), sure(5)],
        [*hear(1, 2, 3), sure(3), TORN, *hear(3, 4, 5), sure(5)],
        [*hear(1, 2, 3, 4, 5), sure(5), *hear(4)],
    ],
    ids=str,
)
def test_what_comes_again_without_a_reason_is_heard_twice(steps: list[ReadingStep]) -> None:
    assert wrong(story(steps)) == {"heard_twice"}


def test_what_comes_after_something_later_is_out_of_order() -> None:
    found = story([*hear(1, 3, 2, 4, 5), sure(5)])

    assert wrong(found) == {"out_of_order"}
    assert ids(checks.out_of_order(found)) == [2]


def test_a_speaker_whose_earlier_message_comes_later_is_out_of_order() -> None:
    found = story([*hear(1, 2, 3, 4, 5), sure(5)])
    swapped = {**found.said, "ada 1": found.said["ada 1"]._replace(number=9)}

    assert "out_of_order" in wrong(found._replace(said=swapped))


@pytest.mark.parametrize(
    "steps",
    [
        [*hear(1, 2, 3, 4, 5), sure(5), sure(4)],
        [*hear(1, 2, 3, 4, 5), sure(4)],
    ],
    ids=["moved back", "stayed behind what was heard to its end"],
)
def test_a_cursor_that_goes_back_is_found(steps: list[ReadingStep]) -> None:
    assert wrong(story(steps)) == {"cursor_back"}


@pytest.mark.parametrize(
    "content",
    [
        Content("ada", "nobody's", None),
        Content("bob", "ada 3", None),
        Content("ada", "ada 3", "even"),
        Content("ada", "ada 4", "even"),
        Content("ada", "noted nothing", "knowledge", "jotted"),
    ],
    ids=["unsaid", "another agent's", "another topic", "another id", "a note that nobody wrote"],
)
def test_what_nobody_said_so_is_invented(content: Content) -> None:
    found = story([*hear(1, 2, 3, 4, 5), sure(5)])
    entries = {**found.entries, at(3): frozenset([content])}

    assert "invented" in wrong(found._replace(entries=entries))


def test_an_entry_that_two_agents_heard_differently_is_invented() -> None:
    found = story([*hear(1, 2, 3, 4, 5), sure(5)])
    both = frozenset([*found.entries[at(3)], Content("ada", "ada 3!", None)])

    assert wrong(found._replace(entries={**found.entries, at(3): both})) == {"invented"}


@pytest.mark.parametrize("phase", [OK, UNKNOWN, INVOKE])
def test_a_message_that_is_there_twice_is_doubled(phase: str) -> None:
    found = story([*hear(1, 2, 3, 4, 5, 6), sure(6)])
    entries = {**found.entries, at(6): found.entries[at(3)]}
    said = {**found.said, "ada 3": Spoken("ada", 3, None, phase)}

    assert checks.doubled(found._replace(entries=entries, said=said)) == {"ada 3": [at(3), at(6)]}


def test_a_message_that_was_refused_is_not_there() -> None:
    found = story([*hear(1, 2, 3, 4, 5), sure(5)])
    said = {**found.said, "ada 3": Spoken("ada", 3, None, FAIL)}

    assert wrong(found._replace(said=said)) == {"refused_and_there"}


# -- notes --


def note(op: str, value: str | None, began: int, ended: int, phase: str = OK) -> NoteOperation:
    return NoteOperation("ada", op, "how", phase, began, ended, value)


OLD, NEW = note("jot", "old", 0, 10), note("jot", "new", 20, 30)


@pytest.mark.parametrize(
    ("check", "notes", "sound"),
    [
        (checks.stale_notes, [OLD, NEW, note("recall", "new", 40, 50)], True),
        (checks.stale_notes, [OLD, NEW, note("recall", "old", 25, 50)], True),
        (checks.stale_notes, [OLD, NEW, note("recall", "old", 40, 50)], False),
        (checks.stale_notes, [OLD, note("recall", None, 5, 15)], True),
        (checks.stale_notes, [OLD, note("recall", None, 11, 15)], False),
        # A write whose end nobody learned counts from when it was first read.
        (checks.stale_notes, [OLD, note("jot", "new", 20, 30, UNKNOWN),
                                 note("recall", "old", 40, 50)], True),
        (checks.stale_notes, [OLD, note("jot", "new", 20, 30, UNKNOWN),
                                 note("recall", "new", 32, 35),
                                 note("recall", "old", 40, 50)], False),
        (checks.unwritten_notes, [OLD, note("recall", "old", 5, 7)], True),
        (checks.unwritten_notes, [OLD, note("recall", "else", 5, 7)], False),
        (checks.unwritten_notes, [NEW, note("recall", "new", 5, 7)], False),
        (checks.unwritten_notes, [note("jot", "no", 0, 1, FAIL),
                                     note("recall", "no", 5, 7)], False),
        (checks.claimed_twice, [note("claim", "a", 0, 1),
                                   note("claim", "b", 0, 1, FAIL)], True),
        (checks.claimed_twice, [note("claim", "a", 0, 1), note("claim", "b", 0, 1)], False),
    ],
)  # fmt: skip
def test_notes_are_read_as_they_were_last_written(
    check: Callable[[TalkEvidence], Collection[Any]], notes: list[NoteOperation], sound: bool
) -> None:
    assert (not check(story([*hear(1, 2, 3, 4, 5), sure(5)], notes=notes))) is sound


# -- from histories to a story --


def test_a_story_is_made_of_what_the_agents_wrote() -> None:
    # given an agent that dies while it speaks and hears, and its successor
    teller = TalkCollector()
    lines = [
        ("life", OK, {}),
        ("speak", INVOKE, {"n": 0, "t": "a", "o": "x"}),
        ("speak", OK, {"n": 0, "t": "a", "o": "x", "i": "5-1"}),
        ("heard", OK, {"r": None, "i": "5-1", "a": "ada", "t": "a", "o": "x", "e": None}),
        ("sure", OK, {"r": None, "c": "5-1"}),
        ("speak", INVOKE, {"n": 1, "t": "b", "o": None}),
        ("life", OK, {}),
        ("gap", OK, {"r": None, "m": 7}),
        ("speak", INVOKE, {"n": 2, "t": "c", "o": None}),
        ("speak", FAIL, {"n": 2, "t": "c", "o": None}),
        ("jot", INVOKE, {"k": "how", "v": "so"}),
    ]

    # when
    for when, (op, phase, of) in enumerate(lines):
        teller.saw(HistoryEntry(when, "ada", op, phase, of))
    found = teller.evidence()

    # then
    assert found.said == {
        "a": Spoken("ada", 0, "x", OK, (5, 1)),
        "b": Spoken("ada", 1, None, INVOKE),
        "c": Spoken("ada", 2, None, FAIL),
    }
    assert found.readings == {
        ("ada", None): [ReadingStep("heard", (5, 1)), ReadingStep("sure", (5, 1)), TORN, missed(7)],
    }
    assert found.entries == {(5, 1): {Content("ada", "a", "x")}}
    assert found.notes == [NoteOperation("ada", "jot", "how", INVOKE, 10, 10, "so")]
    assert list(found.acknowledged()) == [(5, 1)]
