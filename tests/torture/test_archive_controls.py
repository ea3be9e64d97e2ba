"""Archivers that are known to be wrong are caught by what they leave behind."""

from __future__ import annotations

import pytest

from agentbus.torture.archive import (
    APPEND_FIRST,
    CHECKPOINT_FIRST,
    MODE,
    RESTART_AT_END,
    TEXT_ORDER,
)
from agentbus.torture.mode import Trial

FOUND = {
    CHECKPOINT_FIRST: {"lost"},
    APPEND_FIRST: {"doubled"},
    TEXT_ORDER: {"doubled"},
    RESTART_AT_END: {"lost"},
}


@pytest.mark.parametrize(
    "control",
    [
        # These must die at the right moment, which takes many kills.
        pytest.param(name, marks=pytest.mark.slow if "checkpoint" in name else ())
        for name in FOUND
    ],
)
def test_a_wrong_archiver_is_caught(control, tmp_path):
    (verdict,) = MODE.torture(Trial(5, 0.2, tmp_path, control=control))

    assert verdict.passed
    assert set(verdict.violations) == FOUND[control]


def test_there_is_a_run_for_every_control():
    assert set(FOUND) == set(MODE.controls)
