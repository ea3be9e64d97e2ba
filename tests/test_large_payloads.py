"""Large payloads: checked as small ones are, and sent and taken a few at a time."""

from __future__ import annotations

import math
from typing import Any

import hiredis
import pytest

import agentbus
from agentbus import Delivery, InvalidPayload, QueueFull, Task
from agentbus.core.envelope import encode
from agentbus.store import hiredis_reader, resp
from tests.tiers import on_one_store

LARGE = "x" * 100_000
LIMIT = 10_000_000


@pytest.mark.parametrize(
    "part",
    [
        *(math.nan, math.inf, -math.inf, "\0", "a\0b"),
        *([1.5, math.nan], {"a": [{"b": math.inf}]}, {"a": "\0"}, {"\0": 1}, ("a", math.nan)),
        [math.nan, *range(2000)],
        [*range(2000), "\0"],
    ],
)
def test_what_no_sink_can_store_is_found_beside_a_large_text(part):
    for payload in ({"text": LARGE, "part": part}, [part, LARGE], [LARGE, [[part]]]):
        with pytest.raises(InvalidPayload):
            encode(payload, LIMIT)


@pytest.mark.parametrize(
    "part",
    [
        None,
        [None],
        1.5,
        True,
        "null",
        "NaN",
        "\\u0000",
        {"null": None},
        ["\n", "\\"],
        [None] * 2000,
    ],
)
def test_what_only_looks_like_it_is_accepted_beside_a_large_text(part):
    import orjson

    payload = {"text": LARGE, "part": part}

    assert orjson.loads(encode(payload, LIMIT)) == payload


@pytest.mark.parametrize("size", [0, 10, 8192, 8193, 100_000])
@pytest.mark.parametrize("others", [0, 100])
def test_a_command_is_packed_alike_whatever_its_size(size, others):
    command = ("XADD", "key", 17, b"payload", b"x" * size, "\u00e9", *range(others), b"")

    wanted = hiredis.pack_command(command)  # type: ignore[arg-type]

    assert hiredis_reader.pack(command) == resp.pack(command) == wanted


def test_a_batch_of_large_payloads_is_bounded_by_their_bytes(bus: agentbus.Bus):
    queue = bus.queue("mail", bound=17)

    with pytest.raises(QueueFull):
        queue.publish_many([LARGE] * 20)

    # Earlier batches stay.
    assert 0 < len(queue.peek(20)) <= 17


def test_large_payloads_arrive_whole_and_in_their_order(bus: agentbus.Bus):
    queue = bus.queue("mail")
    items: list[Any] = [
        {"n": number, "text": LARGE[: 40_000 * (number % 3)]} for number in range(30)
    ]
    seen: list[Any] = []

    queue.publish_many(Task(item, topic="t") if item["n"] % 4 == 0 else item for item in items)
    bus.subscribe("mail", lambda task: seen.append(task.payload), drain=True).run()

    assert seen == items


@on_one_store
def test_a_worker_holds_few_large_tasks_at_a_time(bus: agentbus.Bus, connect):
    queue = bus.queue("mail")
    queue.publish_many([LARGE] * 60)
    other = connect()
    held: list[int] = []

    def handler(_task: Delivery) -> None:
        (found,) = other.queue("mail").groups()
        held.append(found.pending)

    bus.subscribe("mail", handler, drain=True).run()

    # A batch of a MiB that runs, and the next one.
    assert len(held) == 60
    assert max(held) <= 22
