"""Programs that end with the process that started them, whatever happens to their guard."""

from __future__ import annotations

import pytest

from agentbus.core.process_guard import ProcessGuard


@pytest.fixture
def guard():
    made = ProcessGuard()
    yield made
    made.close()


def test_a_program_starts_although_somebody_killed_the_guard(guard):
    first = guard.popen(["sleep", "100"], start_new_session=True)
    guard._shell.kill()
    guard._shell.wait()

    second = guard.popen(["sleep", "100"], start_new_session=True)
    guard.close()

    assert (first.wait(20), second.wait(20)) == (-9, -9)


def test_a_program_that_was_released_is_left_alone(guard):
    process = guard.popen(["sleep", "100"], start_new_session=True)
    guard.release(process.pid)
    guard.close()

    assert process.poll() is None
    process.kill()
    process.wait()


def test_the_id_of_a_program_that_does_not_exist_is_forgotten(guard, tmp_path):
    process = guard.popen(["sleep", "100"], start_new_session=True)
    with pytest.raises(FileNotFoundError):
        guard.popen([str(tmp_path / "program")], start_new_session=True)
    guard.close()

    assert process.wait(20) == -9
