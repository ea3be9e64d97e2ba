"""What a user who may only publish writes into a record is acted on by no worker that may do more."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import InvalidName, NotFound, Refused
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.janitor import Janitor
from agentbus.queues.notify import WEBHOOKS as OWN
from agentbus.queues.policy import DEFAULTS
from agentbus.tasks import Flows, FlowTask, Schedules, chain
from tests.servers import ask

FORGED = json.dumps({"url": "https://example.org/", "body": {"ok": True}})


def bury(_: agentbus.Delivery) -> None:
    raise agentbus.Bury("no")


def done(_: agentbus.Delivery) -> None:
    return None


def nothing_came(bus: agentbus.Bus) -> bool:
    keys = Keys(bus.project)
    streams = [
        *(keys.queue(OWN, priority) for priority in PRIORITIES),
        keys.dead_letters(OWN, "default"),
    ]
    return all(ask(bus, "EXISTS", key) == 0 for key in (*streams, keys.delayed(OWN)))


def record(bus: agentbus.Bus, flow: str, number: int) -> dict[str, Any]:
    stored = ask(bus, "HGET", Keys(bus.project).flow(flow)[0], f"task {number}")
    kept: dict[str, Any] = orjson.loads(stored)
    return kept


def write(bus: agentbus.Bus, flow: str, **fields: object) -> None:
    """Write fields of a flow's record as a program does that knows its form."""
    for name, value in fields.items():
        word = value if isinstance(value, (str, int)) else json.dumps(value)
        ask(bus, "HSET", Keys(bus.project).flow(flow)[0], name.replace("_", " "), word)


@pytest.fixture
def flows(bus: agentbus.Bus) -> Flows:
    return Flows(bus)


def failing_flow(flows: Flows) -> str:
    undo = FlowTask("back", queue="undoing")
    return flows.publish(chain(FlowTask(1, queue="good", undo=undo), FlowTask(2, queue="bad")))


def fail(bus: agentbus.Bus) -> None:
    bus.subscribe("good", done, drain=True).run()
    bus.subscribe("bad", bury, drain=True).run()


# -- queues that a record names -----------------------------------------------------------------


def test_a_flow_publishes_no_undo_into_a_queue_of_the_bus(bus: agentbus.Bus, flows: Flows) -> None:
    flow = failing_flow(flows)
    task = record(bus, flow, 1)
    task["undo"] |= {"queue": OWN, "place": f"normal {OWN}"}
    task["undo"]["body"][6] = FORGED
    write(bus, flow, task_1=task, places=[[OWN, "normal"]])

    fail(bus)

    assert nothing_came(bus)
    assert flows.show(flow).state == "compensation_failed"


@pytest.mark.parametrize("part", ["task", "undo"])
def test_a_replayed_flow_publishes_nothing_there(
    bus: agentbus.Bus, flows: Flows, part: str
) -> None:
    flow = failing_flow(flows)
    fail(bus)
    bus.subscribe("undoing", done, drain=True).run()
    task = record(bus, flow, 1)
    (task if part == "task" else task["undo"])["queue"] = OWN
    write(bus, flow, task_1=task)

    with pytest.raises(InvalidName, match="belongs to the bus itself"):
        flows.replay(flow)

    assert nothing_came(bus)


def test_a_dependent_is_not_buried_among_the_letters_of_the_bus(bus: agentbus.Bus) -> None:
    keys, bad = Keys(bus.project), bus.queue("bad")
    task = bad.publish(2, after=bad.publish(1))
    body = orjson.loads(ask(bus, "HGET", keys.after_bodies("bad"), task))
    body[3] = OWN
    ask(bus, "HSET", keys.after_bodies("bad"), task, orjson.dumps(body))

    bus.subscribe("bad", bury, drain=True).run()

    assert nothing_came(bus)
    assert [letter.task_id for letter in bad.dead_letters()][1:] == [task]


@pytest.mark.parametrize("outcome", [done, bury])
def test_a_dependent_in_a_queue_of_the_bus_is_left_out(bus: agentbus.Bus, outcome: Any) -> None:
    keys, queue = Keys(bus.project), bus.queue("first")
    task = queue.publish(1)
    queue.publish(2, after=task)
    forged = f"d1@{OWN}"
    ask(bus, "ZADD", keys.awaited("first"), 0, f"{task}\ndefault\n01{forged}")
    ask(bus, "ZADD", keys.after(OWN), 1, forged)
    ask(bus, "HSET", keys.after_bodies(OWN), forged, '["normal","","","","0","payload","1"]')

    bus.subscribe("first", outcome, drain=True).run()

    assert nothing_came(bus)
    assert ask(bus, "ZCARD", keys.awaited("first")) == 0


def test_a_schedule_whose_record_names_a_queue_of_the_bus_publishes_nothing(
    bus: agentbus.Bus,
) -> None:
    keys, schedules = Keys(bus.project), Schedules(bus)
    schedules.add("poll", "mail", every=3600.0)
    key = keys.schedule("poll")
    stored = orjson.loads(ask(bus, "HGET", key, "record")) | {"queue": OWN}
    ask(bus, "HSET", key, "record", orjson.dumps(stored))

    with pytest.raises(NotFound):
        schedules.trigger("poll")

    assert nothing_came(bus)


def test_a_flow_cancels_no_task_but_its_own(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(FlowTask(1, queue="good"), FlowTask(2, queue="good")))
    other, later = bus.queue("pay").publish(1), bus.queue("pay").publish(2, delay=600.0)
    for number, task_id in ((1, other), (2, later)):
        write(bus, flow, **{f"task_{number}": record(bus, flow, number) | {"id": task_id}})

    flows.cancel(flow)

    assert [bus.task(task).state for task in (other, later)] == ["waiting", "delayed"]


# -- ids and stored tasks -----------------------------------------------------------------------


def test_no_counter_that_a_publisher_sets_makes_an_id_repeat(
    bus: agentbus.Bus, flows: Flows
) -> None:
    keys, queue = Keys(bus.project), bus.queue("pay")
    ids = []
    for n in range(2):
        ids += [queue.publish(n, delay=600.0), queue.publish(n, after=ids[:1] or queue.publish(0))]
        flow = flows.publish(chain(FlowTask(1, queue="pay")))
        ids.append(record(bus, flow, 1)["id"])
        ask(bus, "HSET", keys.stats("pay"), "scheduled", 0)

    assert ids == [f"d{n}@pay" for n in range(1, 7)]


@pytest.mark.parametrize("after", [False, True])
def test_a_stored_task_is_never_overwritten(bus: agentbus.Bus, after: bool) -> None:
    keys, queue = Keys(bus.project), bus.queue("pay")
    first = queue.publish(0)
    bodies = keys.after_bodies("pay") if after else keys.bodies("pay")
    for number in (1, 2, 4):
        ask(bus, "HSET", bodies, f"d{number}@pay", "another's")

    given = {"after": first} if after else {"delay": 600.0}
    ids = [queue.publish(n, **given) for n in range(2)]

    assert ids == ["d3@pay", "d5@pay"]
    assert ask(bus, "HMGET", bodies, "d1@pay", "d2@pay", "d4@pay") == [b"another's"] * 3


def test_a_flow_overwrites_no_stored_task(bus: agentbus.Bus, flows: Flows) -> None:
    keys = Keys(bus.project)
    ask(bus, "HSET", keys.after_bodies("pay"), "d2@pay", "another's")
    parts = FlowTask(1, queue="pay"), FlowTask(2, queue="pay")

    with pytest.raises(Refused, match="d2@pay"):
        flows.publish(chain(*parts))

    assert flows.list() == []
    assert bus.queue("pay").remaining() == 0
    flows.publish(chain(*parts))


def test_a_dependent_that_is_due_later_overwrites_no_delayed_task(bus: agentbus.Bus) -> None:
    keys, queue = Keys(bus.project), bus.queue("pay")
    task = queue.publish(2, after=queue.publish(1), delay=600.0)
    ask(bus, "HSET", keys.bodies("pay"), task, "another's")

    bus.subscribe("pay", done, count=1).run()

    assert ask(bus, "HGET", keys.bodies("pay"), task) == b"another's"
    assert [d.payload for d in queue.fetch()] == [2]


def test_a_result_is_not_overwritten_by_the_burial_of_a_forged_dependent(bus: agentbus.Bus) -> None:
    keys, bad = Keys(bus.project), bus.queue("bad")
    paid = bus.queue("pay").publish(1)
    bus.subscribe("pay", lambda d: d.payload, drain=True).run()
    task = bad.publish(1)
    bad.publish(2, after=task)
    ask(bus, "ZADD", keys.awaited("bad"), 0, f"{task}\ndefault\n01{paid}")
    ask(bus, "ZADD", keys.after("pay"), 1, paid)
    ask(bus, "HSET", keys.after_bodies("pay"), paid, '["normal","","","","600","payload","1"]')

    bus.subscribe("bad", bury, drain=True).run()

    assert bus.queue("pay").result(paid) == 1


def test_no_other_user_answers_for_the_server(bus: agentbus.Bus) -> None:
    queue = bus.queue("pay")
    queue.publish(1, key="a")
    (slot,) = list(scanned(bus, Keys(bus.project).once("*")))
    number = int(ask(bus, "GET", slot).partition(b" ")[0].partition(b".")[0])

    for guess in (number + 1, f"{number + 1}.", f"{number + 1}.{'0' * 16}"):
        ask(bus, "SET", slot, f'{guess} ["tasks","9-9"]')
        queue.publish(2, key=f"b{guess}")
        number += 1

    assert len(queue.peek()) == 4


def scanned(bus: agentbus.Bus, pattern: str) -> list[bytes]:
    keys: list[bytes] = ask(bus, "SCAN", 0, "MATCH", pattern, "COUNT", 100_000)[1]
    return keys


# -- flows that stand still ---------------------------------------------------------------------


@pytest.mark.parametrize("mended_by", ["tidy", "janitor"])
def test_a_flow_whose_undo_was_never_published_goes_on(
    bus: agentbus.Bus, flows: Flows, mended_by: str
) -> None:
    keys, flow = Keys(bus.project), failing_flow(flows)
    ask(bus, "SET", keys.queue("undoing"), "another program's")
    fail(bus)
    ask(bus, "DEL", keys.queue("undoing"))
    assert flows.show(flow).state == "running"

    if mended_by == "tidy":
        bus.tidy()
    else:
        ask(bus, "DEL", keys.tidied("trim"))
        bus.runner.run(Janitor(bus.scope, DEFAULTS).op())
    bus.subscribe("undoing", done, drain=True).run()

    assert flows.show(flow).state == "compensated"


@pytest.mark.parametrize("undo", [5, "x", {}, {"place": "normal undoing"}, [[]]])
def test_a_flow_that_cannot_be_undone_says_so(
    bus: agentbus.Bus, flows: Flows, undo: object
) -> None:
    flow = failing_flow(flows)
    write(bus, flow, task_1=record(bus, flow, 1) | {"undo": undo})

    fail(bus)

    (state,) = flows.list()
    assert state.state == "compensation_failed"
    with pytest.raises(Refused, match="is not valid"):
        flows.show(flow)


@pytest.mark.parametrize("size", ["x", "-1", "1e9", "99999999999", ""])
def test_a_flow_of_any_size_stops_nobody(bus: agentbus.Bus, flows: Flows, size: str) -> None:
    flow = failing_flow(flows)
    write(bus, flow, size=size)
    other = failing_flow(flows)

    fail(bus)
    bus.subscribe("undoing", done, drain=True).run()

    assert flows.show(other).state == "compensated"
    assert [state.id for state in flows.list() if state.state == "compensated"] == [other]
