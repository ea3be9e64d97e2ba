"""What the checks of archives find, and what they let pass."""

from __future__ import annotations

import json

import pytest

from tests.torture.archive import checks
from tests.torture.archive.checks import (
    CHECKS,
    ArchivedRow,
    ArchiveEvidence,
    Hole,
    ReplayedEntry,
)
from tests.torture.archive.writing import WRITE, text_of
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.verdict import found_by


def written(number: int, phase: str, *names: str) -> list[HistoryEntry]:
    of = {"life": 1, "first": number, "number": max(1, len(names))}
    told = {**of, "ids": list(names)} if phase == OK else of
    return [HistoryEntry(1, "w", WRITE, INVOKE, of), HistoryEntry(2, "w", WRITE, phase, told)]


def row(number: int, name: str, *, text: str | None = None) -> ArchivedRow:
    stream, _, entry_id = name.partition(" ")
    mark = f"w.1.{number}"
    body = {"n": mark, "text": text_of(mark) if text is None else text}
    fields = checks.canonical({"payload": json.dumps(body)})
    return ArchivedRow((stream, entry_id), fields, mark)


def replayed(number: int, name: str, *, sound: bool = True) -> ReplayedEntry:
    stream, _, entry_id = name.partition(" ")
    return ReplayedEntry((stream, entry_id), f"w.1.{number}", sound)


A, B, C = "q:a 1-1", "q:a 2-1", "q:a 10-1"
ENTRIES = [
    *written(0, OK, A),
    *written(1, OK, B),
    *written(2, UNKNOWN),
    *written(3, FAIL),
    *written(4, OK, C),
]
ROWS = [row(0, A), row(1, B), row(4, C)]
REPLAYED = [replayed(0, A), replayed(1, B), replayed(4, C)]
SOUND = ArchiveEvidence(
    ENTRIES,
    ROWS,
    log={"q:a": (3, 0)},
    server=ROWS,
    replayed=REPLAYED,
)


def found(**changes: object) -> set[str]:
    return set(found_by(SOUND._replace(**changes), CHECKS))  # type: ignore[arg-type]


def test_a_sound_story_is_no_violation():
    assert found() == set()


def test_what_is_unknown_may_be_archived_or_not():
    rows = [*ROWS, row(2, "q:a 11-1")]
    log = {"q:a": (4, 0)}

    assert found(rows=rows, log=log, replayed=None) == set()


def test_what_was_counted_as_gone_is_not_lost():
    holes = [Hole("q:a", 1, "1-1", "2-5")]
    log = {"q:a": (2, 1)}
    rows = [row(0, A), row(4, C)]

    assert found(rows=rows, server=rows, holes=holes, log=log, replayed=None) == set()


FAULTS = [
    ("lost", {"rows": ROWS[1:], "server": ROWS[1:]}),
    ("lost", {"entries": [], "rows": ROWS[:1], "server": ROWS}),
    # A gap elsewhere is no excuse, nor is one that counts fewer.
    ("lost", {"rows": [ROWS[0], ROWS[2]], "holes": [Hole("q:a", 1, "2-1", "9-0")]}),
    ("lost", {"rows": [ROWS[0], ROWS[2]], "holes": [Hole("q:b", 1, "0-0", "9-0")]}),
    ("lost", {"rows": [ROWS[0]], "server": [], "holes": [Hole("q:a", 1, "1-1", "11-0")]}),
    ("falsely_lost", {"holes": [Hole("q:a", 3, "0-0", "9-0")]}),
    ("lost_though_held", {"holes": [Hole("q:mail", 1, "0-0", "9-0")]}),
    ("doubled", {"rows": [*ROWS, ROWS[0]]}),
    ("doubled", {"rows": [*ROWS, row(0, "q:a 11-1")]}),
    ("invented", {"rows": [*ROWS, row(9, "q:a 11-1")]}),
    ("invented", {"rows": [*ROWS, ArchivedRow(("metrics", "1-1"), "{}", None)]}),
    ("changed", {"rows": [row(0, A, text="other"), *ROWS[1:]]}),
    ("changed", {"rows": [row(1, A), row(0, B), ROWS[2]]}),
    ("changed", {"server": [ROWS[0]._replace(fields="{}"), *ROWS[1:]]}),
    ("miscounted", {"log": {"q:a": (2, 0)}}),
    ("miscounted", {"log": {"q:a": (3, 1)}}),
    ("miscounted", {"log": {"q:a": (3, 0), "q:b": (1, 0)}}),
    ("replayed_twice", {"replayed": [*REPLAYED, replayed(4, C)]}),
    ("replay_lost", {"replayed": [replayed(0, A), replayed(4, C)]}),
    ("replay_invented", {"replayed": [*REPLAYED, replayed(2, "q:a 12-1")]}),
    ("replay_invented", {"replayed": [replayed(0, A, sound=False), *REPLAYED[1:]]}),
    ("replay_out_of_order", {"replayed": [replayed(4, C), replayed(0, A), replayed(1, B)]}),
]


@pytest.mark.parametrize(("check", "changes"), FAULTS)
def test_each_check_finds_what_it_is_for(check, changes):
    assert check in found(**changes)


def test_there_is_a_fault_for_every_check():
    assert {check for check, _ in FAULTS} == {check.__name__ for check in CHECKS}
