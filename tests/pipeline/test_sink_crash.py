"""A stream into a queue whose driver, executors and Python workers are killed on the way."""

from __future__ import annotations

import pytest

from tests.pipeline.sinking import sunk


# On a cluster a task of a killed driver may still write while the next driver repeats its batch.
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("rows", "kills"), [(1_000_000, 20)])
def test_a_stream_that_is_killed_puts_each_key_into_the_queue_once(
    cluster_of_two, own_server, tmp_path, rows, kills
):
    found = sunk(tmp_path / "stream", own_server, cluster_of_two, rows=rows, kills=kills)

    assert sum(found.killed.values()) == kills
    assert set(found.killed) == {"driver", "executor", "worker"}
    assert len(found.times) == rows
    assert set(found.times.values()) == {1}
