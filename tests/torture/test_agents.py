"""Agents read, answer and lease while they and their server die; and who does it wrong is found out."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.servers import Server
from tests.tiers import nightly
from tests.torture import nemesis
from tests.torture.agents.controls import CONTROLS
from tests.torture.agents.past import Past
from tests.torture.agents.plan import LONG_TTL
from tests.torture.history import FAIL, INVOKE, OK, Scribe
from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.verdict import Verdict

pytestmark = pytest.mark.timeout(600)


def torture(trial: Trial) -> Verdict:
    (verdict,) = MODES["agents"].torture(trial)
    return verdict


def told(verdict: Verdict) -> str:
    return f"{verdict.violations} {verdict.too_few} {verdict.figures} {verdict.place}"


@pytest.mark.parametrize("minutes", [0.02, nightly(1.0)])
def test_no_message_is_lost_and_no_path_leased_twice_whatever_dies(
    tmp_path: pathlib.Path, minutes: float
) -> None:
    verdict = torture(Trial(7, minutes, tmp_path))

    assert verdict.passed, told(verdict)
    assert verdict.faults[nemesis.KILL] >= 3
    assert verdict.faults[nemesis.SERVER_KILL] >= 1
    assert verdict.figures["messages"] >= 100
    assert verdict.figures["leases"] > 0
    assert verdict.figures["answers"] > 0


@pytest.mark.slow
def test_a_server_of_others_suffers_nothing_and_keeps_nothing(
    tmp_path: pathlib.Path, own_server: Server
) -> None:
    process = own_server.process

    verdict = torture(Trial(8, 0.02, tmp_path, url=own_server.tcp_url))

    assert verdict.passed, told(verdict)
    assert not set(nemesis.OF_SERVERS) & set(verdict.wanted)
    assert own_server.process is process
    assert own_server.ask("DBSIZE") == 0


# The checks that find each of them are in test_agents_checks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("control", "check"),
    [
        ("clock_tokens", "token_back"),
        ("by_name", "held_twice"),
        ("no_expiry", "refused_falsely"),
        ("keeps_given", "refused_falsely"),
        ("gives_part", "held_twice"),
        ("read_first", "passed_unread"),
        ("print_last", "lost"),
        ("last_id", "passed_unread"),
        ("reads_again", "read_again"),
        ("maxlen", "lost"),
        ("unbounded", "overfull"),
        ("whole_inbox", "refused_early"),
        ("refuse_after", "refused_and_there"),
        ("say_again", "doubled"),
        ("answer_again", "answered_twice"),
        ("read_on_arrival", "claimed_early"),
        ("no_answers", "untrue_in_the_end"),
    ],
)
def test_who_does_it_wrong_is_found_out(tmp_path: pathlib.Path, control: str, check: str) -> None:
    verdict = torture(Trial(7, 1.0, tmp_path, control=control))

    assert check in verdict.violations, told(verdict)
    assert "ended_by_themselves" not in verdict.violations, told(verdict)
    assert verdict.passed


def test_every_control_is_one_that_the_mode_names() -> None:
    assert set(CONTROLS) == set(MODES["agents"].controls)


def test_the_faults_spoil_what_the_library_has() -> None:
    # In a process each, which the fault does not outlive: some spoil the same line.
    spoil = """
import os
from tests.torture.agents.controls import CONTROLS
for fault in CONTROLS.values():
    if not os.fork():
        fault()
        os._exit(0)
assert not any(os.wait()[1] for _ in CONTROLS)
"""

    subprocess.run([sys.executable, "-c", spoil], check=True)


def test_who_was_killed_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    scribe = Scribe(tmp_path / "ada")
    scribe.note("life", OK)
    scribe.note("tell", INVOKE, n=3, t="hi", to="bob")
    scribe.note("tell", OK, n=3, t="hi", to="bob", i="1-0@bob")
    scribe.note("heard", OK, i="2-0@ada", a="bob", t="why?", f=80)
    scribe.note("heard", OK, i="3-0@ada", a="bob", t="when?", f=90)
    scribe.note("reply", OK, i="2-0@ada", a="4-0@bob")
    scribe.note("lease", INVOKE, p=["a"], ttl=LONG_TTL)
    scribe.note("lease", FAIL, p=["a"], ttl=LONG_TTL)

    past = Past(tmp_path / "ada")

    assert (past.lives, past.next, past.printed) == (1, 4, 90)
    assert (past.told, [*past.unanswered]) == (["1-0@bob"], ["3-0@ada"])
    assert (past.leased, past.long) == (True, True)
