"""Archives and replays that are tortured: processes killed, the server killed, connections spoilt."""

from __future__ import annotations

import pathlib

import pytest

from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.verdict import Verdict


def tortured(place: pathlib.Path, minutes: float, seed: int = 3) -> Verdict:
    (verdict,) = MODES["archive"].torture(Trial(seed, minutes, place))
    return verdict


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_acknowledged_is_archived_once_and_replayed_once_whoever_is_killed(tmp_path):
    verdict = tortured(tmp_path, 0.2)

    assert not verdict.violations
    assert not verdict.too_few
    assert verdict.figures["replayed"] > 0
    assert verdict.faults["failover"] == 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_entries_are_archived_once_under_thirty_kills(tmp_path):
    verdict = tortured(tmp_path, 10)

    assert not verdict.violations
    assert not verdict.too_few
    assert (
        verdict.faults["kill"] + verdict.faults["tree_kill"] + verdict.faults["worker_kill"] >= 30
    )
