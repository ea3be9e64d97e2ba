"""Flags under torture: what the parts of it do, a short run, and those who do it wrong."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest

from tests.torture.flags.contender import Resource, unfinished
from tests.torture.flags.evidence import paired
from tests.torture.flags.plan import RacePart, choice, flag_of, planned
from tests.torture.flags.workload import Rounds
from tests.torture.history import INVOKE, OK, HistoryEntry, Scribe
from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.nemesis import KILL, Client

ANN, BOB, CEM = "ann", "bob", "cem"


# -- histories --


def test_invocations_find_their_outcomes_and_what_a_death_cut_off_is_pending() -> None:
    entries = [
        HistoryEntry(1, ANN, "announce", INVOKE, {"n": 1, "flag": "f"}),
        HistoryEntry(2, BOB, "announce", INVOKE, {"n": 1, "flag": "f"}),
        HistoryEntry(3, ANN, "announce", OK, {"n": 1, "token": 7}),
        HistoryEntry(4, ANN, "round", OK, {"k": 1}),
        HistoryEntry(5, CEM, "satisfy", OK, {"n": 9}),
    ]

    acts, strange = paired(entries)

    assert [(a.who, a.phase, a.token) for a in acts] == [(ANN, OK, 7), (BOB, "pending", None)]
    assert (acts[0].invoked, acts[0].returned, acts[1].returned) == (1, 3, math.inf)
    assert len(strange) == 1


def test_who_died_contends_again_for_what_was_unfinished(tmp_path: pathlib.Path) -> None:
    scribe = Scribe(tmp_path / ANN)
    assert unfinished(tmp_path / ANN) is None

    scribe.note("announce", INVOKE, n=1, flag="f")
    assert unfinished(tmp_path / ANN) == "f"

    scribe.note("round", OK, k=1)
    assert unfinished(tmp_path / ANN) is None


# -- the parts --


def test_the_resource_takes_no_token_below_the_highest(tmp_path: pathlib.Path) -> None:
    one, two = Resource(tmp_path), Resource(tmp_path)

    answers = [one.write("f", 2), two.write("f", 2), two.write("f", 1), one.write("g", 1)]

    assert [accepted for accepted, _ in answers] == [True, True, False, True]
    assert answers == sorted(answers, key=lambda answer: answer[1])
    assert one.write("f", None)[0], "whoever brings no token cannot be refused"


def test_the_same_seed_has_everybody_do_the_same() -> None:
    def all_of(seed: int) -> list[object]:
        return [
            choice(seed, number, who, 0.1, 0.2) for number in range(1, 50) for who in (ANN, BOB)
        ]

    assert all_of(1) == all_of(1) != all_of(2)
    assert any(isinstance(one, RacePart) and one.force for one in all_of(1))
    assert any(isinstance(one, RacePart) and one.fails for one in all_of(1))
    assert flag_of(2) == flag_of(4) != flag_of(1) != flag_of(3)


def test_a_hunter_waits_for_a_holder_with_much_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(who: str, section: float) -> None:
        for phase in (INVOKE, OK):
            of = {"n": 1, "flag": "f", "section": section}
            rounds.saw(HistoryEntry(1, who, "announce", phase, of))

    killed: list[str] = []
    monkeypatch.setattr(Client, "alive", True)
    monkeypatch.setattr(Client, "kill", lambda one: killed.append(one.name))
    rounds = Rounds(Trial(7, 1.0, tmp_path, url="redis://nowhere"), None)
    rounds.plan = rounds.plan._replace(share=1.0)
    rounds.clients += [Client(ANN, []), Client(BOB, [])]
    hunter = rounds.new_nemesis({KILL: 1}, 0.0)

    take(ANN, 0.01)
    hunter.tick()
    hunter.tick()
    assert (hunter.left(KILL), hunter.finished, hunter.counts) == (0, False, {KILL: 0})

    take(BOB, 0.5)
    hunter.tick()
    assert (hunter.counts, killed, rounds.holders_hit) == ({KILL: 1}, [BOB], 1)


def test_ten_minutes_are_a_thousand_rounds_of_fifty(tmp_path: pathlib.Path) -> None:
    plan = planned(Trial(1, 10, tmp_path))

    assert (plan.rounds, plan.contenders) == (1000, 50)
    assert plan.faults[KILL] >= 200


# -- the runs --


def test_no_flag_is_held_by_two_and_no_awaiter_forgotten_whatever_dies(
    tmp_path: pathlib.Path,
) -> None:
    (verdict,) = MODES["flags"].torture(Trial(7, 0.1, tmp_path))

    assert verdict.violations == {}
    assert verdict.too_few == {}
    assert verdict.passed
    assert verdict.figures["rounds"] >= 10
    assert verdict.figures["failures"] > 0
    assert verdict.figures["await failures"] > 0


@pytest.mark.slow
def test_a_server_that_is_not_ours_suffers_nothing_and_keeps_nothing(
    own_server: Any, tmp_path: pathlib.Path
) -> None:
    process = own_server.process

    (verdict,) = MODES["flags"].torture(Trial(7, 0.02, tmp_path / "run", url=own_server.tcp_url))

    assert verdict.violations == {}
    assert verdict.passed
    assert own_server.process is process
    assert process.poll() is None
    assert own_server.ask("DBSIZE") == 0


# The checks that find each of them are in test_flags_checks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("control", "by"),
    [
        ("check_then_wait", "never_woken"),
        ("unfenced_lease", "false_holders"),
        ("check_then_set", "held_twice_in_time"),
        ("any_end", "woken_falsely"),
    ],
)
def test_who_does_it_wrong_is_found_out(control: str, by: str, tmp_path: pathlib.Path) -> None:
    (verdict,) = MODES["flags"].torture(Trial(7, 0.1, tmp_path, control=control))

    assert by in verdict.violations, verdict.figures
    assert verdict.passed


def test_every_control_is_one_that_the_mode_names() -> None:
    from tests.torture.flags.controls import CONTROLS

    assert set(CONTROLS) == set(MODES["flags"].controls)
