"""Agents talk while they, their connections and their server die; and who talks wrongly is found out."""

from __future__ import annotations

import pathlib

import pytest

import agentbus
from tests.servers import Server
from tests.torture import nemesis
from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.talk.workload import OVERTAKE
from tests.torture.verdict import Verdict

pytestmark = pytest.mark.timeout(600)
_WITHIN_A_SHORT_RUN = 0.1


def torture(order: Trial) -> Verdict:
    (verdict,) = MODES["talk"].torture(order)
    return verdict


def told(verdict: Verdict) -> str:
    return f"{verdict.violations} {verdict.too_few} {verdict.figures} {verdict.place}"


def test_nothing_that_is_said_is_lost_or_doubled_whatever_dies(tmp_path: pathlib.Path) -> None:
    verdict = torture(Trial(7, _WITHIN_A_SHORT_RUN, tmp_path))

    assert verdict.passed, told(verdict)
    assert verdict.faults[nemesis.KILL] >= 3
    assert verdict.faults[nemesis.SERVER_KILL] >= 1
    assert verdict.figures["messages"] > 1000


@pytest.mark.slow
def test_a_server_of_others_suffers_nothing_and_keeps_nothing(
    tmp_path: pathlib.Path, own_server: Server
) -> None:
    # given a server that is not the torture's own, with somebody's message on it
    with agentbus.connect(own_server.url, project="theirs", agent="ada") as bus:
        bus.speak("mine")

    # when
    verdict = torture(Trial(8, 0.02, tmp_path, url=f"{own_server.tcp_url}/0"))

    # then only clients and connections suffered, and that message is all that is left
    assert verdict.passed, told(verdict)
    assert not set(nemesis.OF_SERVERS) & set(verdict.wanted)
    assert verdict.faults[nemesis.KILL] >= 3
    kept = {key.partition(b":")[0] for key in own_server.ask("KEYS", "*")}
    assert kept == {b"theirs"}


# The checks that find each of them are in test_talk_checks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("control", "check"), [("poll_by_id", "lost"), ("maxlen", "lost"), ("say_again", "doubled")]
)
def test_who_talks_wrongly_is_found_out(tmp_path: pathlib.Path, control: str, check: str) -> None:
    assert control in MODES["talk"].controls

    verdict = torture(Trial(7, 1.0, tmp_path, control=control))

    assert check in verdict.violations, told(verdict)
    assert "ended_by_themselves" not in verdict.violations, told(verdict)
    assert verdict.passed


@pytest.mark.slow
def test_who_is_overtaken_is_told_what_it_missed(tmp_path: pathlib.Path) -> None:
    verdict = torture(Trial(7, 1.0, tmp_path))

    assert verdict.passed, told(verdict)
    assert verdict.faults[OVERTAKE] >= 1
    assert verdict.figures["gaps"] >= 1
