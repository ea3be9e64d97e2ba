"""Archivers that are known to be wrong are caught by what they leave behind."""

from __future__ import annotations

import pytest

from tests.torture.mode import Trial
from tests.torture.modes import MODES

FOUND = {
    "checkpoint_first": {"lost"},
    "append_then_checkpoint": {"doubled"},
    "ids_as_text": {"doubled"},
    "restart_at_end": {"lost"},
    "counts_alone": {"falsely_lost"},
}


# The checks that find each of them are in test_archive_checks; some must die at the right moment.
@pytest.mark.slow
@pytest.mark.parametrize("control", FOUND)
def test_a_wrong_archiver_is_caught(control, tmp_path):
    (verdict,) = MODES["archive"].torture(Trial(5, 0.2, tmp_path, control=control))

    assert verdict.passed
    assert set(verdict.violations) == FOUND[control]


def test_there_is_a_run_for_every_control():
    assert set(FOUND) == set(MODES["archive"].controls)
