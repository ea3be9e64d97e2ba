"""What live pages of `agentbus web` read is read once for all browsers, and rests in between."""

from __future__ import annotations

import asyncio
import types

import pytest

from agentbus.dashboard.web.shared import _MOST, SharedReads


class Reader:
    """Counts how often it reads; each reading takes some turns of the loop."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> int:
        await asyncio.sleep(0.005)
        self.reads += 1
        return self.reads


async def test_what_many_wait_for_is_read_once():
    shared, reader = SharedReads(), Reader()

    found = await asyncio.gather(*(shared.get("a", reader.read) for _ in range(20)))

    assert found == [1] * 20
    assert await shared.get("b", reader.read) == 2


async def test_a_page_that_is_opened_is_read_and_shared_with_the_live_ones():
    shared, reader = SharedReads(), Reader()
    await shared.get("a", reader.read)

    assert await shared.get("a", reader.read, fresh=True) == 2
    assert await shared.get("a", reader.read) == 2


async def test_everything_is_read_again_after_an_action():
    shared, reader = SharedReads(), Reader()
    await shared.get("a", reader.read)
    shared.forget()

    assert await shared.get("a", reader.read) == 2


async def test_a_reading_that_fails_is_tried_again_by_the_next():
    shared, reader = SharedReads(), Reader()

    async def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await shared.get("a", fail)

    assert await shared.get("a", reader.read) == 1


async def test_a_browser_that_leaves_does_not_end_the_reading_of_others():
    shared, reader = SharedReads(), Reader()
    leaving = asyncio.create_task(shared.get("a", reader.read))
    staying = asyncio.create_task(shared.get("a", reader.read))
    await asyncio.sleep(0)
    leaving.cancel()

    assert await staying == 1


async def test_a_value_that_is_read_behind_is_the_last_one_until_the_new_one_is_there():
    shared, reader = SharedReads(), Reader()
    await shared.get("a", reader.read, rest=0.0, behind=True)

    assert await shared.get("a", reader.read, rest=0.0, behind=True) == 1
    assert await shared.get("a", reader.read, rest=0.0, behind=True) == 1
    await asyncio.gather(*shared._behind.values())

    assert await shared.get("a", reader.read, behind=True) == 2
    assert reader.reads == 2


async def test_a_reading_behind_that_fails_fails_for_the_next():
    shared, reader = SharedReads(), Reader()

    async def fail() -> int:
        raise ValueError("no")

    await shared.get("a", reader.read, rest=0.0, behind=True)
    assert await shared.get("a", fail, behind=True) == 1
    await asyncio.wait(shared._behind.values())

    with pytest.raises(ValueError, match="no"):
        await shared.get("a", fail, behind=True)
    assert shared._behind == {}


async def test_a_reading_behind_that_began_before_an_action_is_dropped():
    shared, reader = SharedReads(), Reader()
    await shared.get("a", reader.read, rest=0.0, behind=True)
    await shared.get("a", reader.read, rest=0.0, behind=True)
    (reading,) = shared._behind.values()
    shared.forget()
    await asyncio.wait([reading])

    assert (reading.cancelled(), shared._values, shared._behind) == (True, {}, {})


async def test_a_bounded_number_of_values_is_kept():
    shared, reader = SharedReads(), Reader()

    await asyncio.gather(*(shared.get(number, reader.read) for number in range(_MOST + 50)))

    assert len(shared._values) == _MOST
    assert shared._locks == {}


async def test_to_wait_for_a_turn_makes_no_value_rest_longer(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("agentbus.dashboard.web.shared.time", clock)
    shared, reader, turn = SharedReads(), Reader(), asyncio.Lock()
    await turn.acquire()
    first = asyncio.ensure_future(shared.get("a", reader.read, turn=turn))
    await asyncio.sleep(0)
    clock.now = 0.4
    turn.release()

    assert await first == 1
    assert await shared.get("a", reader.read, turn=turn) == 2
