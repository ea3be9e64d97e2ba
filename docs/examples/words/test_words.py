"""What the queue does with the handler, tested in memory: `python -m pytest`, in this folder."""

import pytest
import words

from agentbus.testing import Buried, drain


@pytest.fixture
def publish(agentbus_bus, tmp_path):
    """Write a file and publish its path; returns the task's id."""

    def _publish(name, data):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        return agentbus_bus.queue("words").publish(str(path))

    return _publish


def test_the_result_is_the_count(agentbus_bus, publish):
    task = publish("a.txt", b"to be or not to be, that is the question")

    drained = drain(agentbus_bus, "words", words.handle)

    assert drained.results == {task: {"words": 10, "longest": "question"}}


def test_a_file_that_is_late_is_counted_when_it_is_there(agentbus_bus, agentbus_clock, publish):
    task = publish("late.txt", None)

    drain(agentbus_bus, "words", words.handle, due_only=True)
    publish("late.txt", b"here I am")
    agentbus_clock.advance(60)
    drained = drain(agentbus_bus, "words", words.handle)

    assert drained.results[task]["words"] == 3


def test_a_file_that_never_comes_is_buried_after_four_attempts(
    agentbus_bus, agentbus_clock, publish
):
    task = publish("never.txt", None)

    drained = drain(agentbus_bus, "words", words.handle, raises=False)

    assert drained.runs == {task: 4}
    assert "FileNotFoundError" in drained.dead[0].error


def test_what_is_no_text_is_buried_at_once(agentbus_bus, agentbus_clock, publish):
    publish("picture.jpg", b"\xff\xd8\xff")

    with pytest.raises(Buried, match=r"picture\.jpg is not text"):
        drain(agentbus_bus, "words", words.handle)
