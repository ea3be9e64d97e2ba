"""What processes write down is read while it grows, whole lines only, and after their death."""

from __future__ import annotations

import pathlib

from tests.torture.history import INVOKE, OK, Reader, Scribe


def test_a_history_is_read_as_it_grows(tmp_path: pathlib.Path) -> None:
    reader, scribe = Reader(tmp_path), Scribe(tmp_path / "a")
    reader.follow("a")
    scribe.note("speak", INVOKE, n=1, text="ä\n")

    (first,) = reader.news()
    scribe.note("speak", OK, n=1)
    (second,) = reader.news()

    assert (first.who, first.op, first.phase, first.of) == (
        "a",
        "speak",
        INVOKE,
        {"n": 1, "text": "ä\n"},
    )
    assert (second.phase, reader.news()) == (OK, [])
    assert reader.entries == [first, second]


def test_a_line_that_a_death_cut_off_is_left_out(tmp_path: pathlib.Path) -> None:
    reader = Reader(tmp_path)
    reader.follow("a")
    Scribe(tmp_path / "a").note("speak", INVOKE, at=5)
    with (tmp_path / "a").open("a") as file:
        file.write('[6,"speak"')

    (found,) = reader.news()

    assert (found.at, reader.news()) == (5, [])


def test_what_several_wrote_comes_in_the_order_of_time(tmp_path: pathlib.Path) -> None:
    reader = Reader(tmp_path)
    for who, at in (("a", 3), ("b", 1), ("c", 2)):
        reader.follow(who)
        Scribe(tmp_path / who).note("speak", OK, at=at)

    assert [entry.who for entry in reader.news()] == ["b", "c", "a"]


def test_a_reader_that_keeps_nothing_hands_over_what_is_new(tmp_path: pathlib.Path) -> None:
    reader = Reader(tmp_path)
    reader.keeps = False
    reader.follow("a")
    Scribe(tmp_path / "a").note("speak", OK, at=1)

    (found,) = reader.news()

    assert (found.at, reader.entries) == (1, [])


def test_who_goes_on_with_a_history_takes_away_the_line_that_a_death_cut_off(
    tmp_path: pathlib.Path,
) -> None:
    reader = Reader(tmp_path)
    reader.follow("a")
    Scribe(tmp_path / "a").note("speak", OK, at=5)
    with (tmp_path / "a").open("a") as file:
        file.write('[6,"speak"')
    reader.news()

    Scribe(tmp_path / "a").note("speak", OK, at=7)

    assert [entry.at for entry in reader.news()] == [7]
