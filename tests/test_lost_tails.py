"""A server that loses the end of its log between two steps of a client: the second one looks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import NotFound, StaleDelivery
from agentbus.queues.retry_stream import move_aside
from agentbus.tasks import Flows, FlowTask, chain
from tests.servers import Server


class Losing:
    """A bus whose server loses what was written since `mark`, once, beside a step of this name."""

    def __init__(self, server: Server, bus: agentbus.Bus) -> None:
        self._server = server
        self._execute = bus.runner.link.execute
        self._from = 0
        self._step = ""
        self._after = False
        self.lost = False
        bus.runner.link.execute = self._exchange  # type: ignore[method-assign]

    def before(self, step: str) -> None:
        """Lose what is written from now on, before a step."""
        self._from, self._step = self._server.written, step

    def after(self, step: str) -> None:
        """Lose what is written from now on, between a step and its reply."""
        self.before(step)
        self._after = True

    def _exchange(self, step: Any) -> Any:
        if step.label != self._step:
            return self._execute(step)
        self._step = ""
        reply = self._execute(step) if self._after else None
        size = self._server.written - self._from
        self._server.kill()
        assert self._server.lose_tail(size)
        self._server.start()
        self.lost = True
        return reply if self._after else self._execute(step)


@pytest.fixture
def bus(own_server: Server, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=30) as opened:
        yield opened


@pytest.fixture
def losing(own_server: Server, bus: agentbus.Bus) -> Iterator[Losing]:
    made = Losing(own_server, bus)
    yield made
    assert made.lost


def settled_in_vain(losing: Losing, settle: Callable[[], object]) -> None:
    """Settle a task; the server loses that before its dependents are looked at."""
    losing.after("HSCAN")
    settle()


def test_a_task_is_not_released_if_the_server_lost_that_the_one_before_is_done(losing, bus) -> None:
    queue = bus.queue("q")
    first = queue.publish("first")
    second = queue.publish("second", after=first)
    taken = bus.take("q")

    settled_in_vain(losing, lambda: taken.ack("lost"))

    assert bus.task(second).state == "blocked"


def test_a_released_task_is_not_handed_none_for_a_result_that_the_server_lost(losing, bus) -> None:
    # given a task that was released and taken
    queue = bus.queue("q")
    first = queue.publish("first")
    queue.publish("second", after=first)
    taken = bus.take("q")
    losing.before("MGET")
    taken.ack("result")
    released = bus.take("q")

    with pytest.raises(StaleDelivery, match="its delivery is not known to the server"):
        released.results()


def test_a_task_is_not_buried_if_the_server_lost_the_burial_of_the_one_before(losing, bus) -> None:
    queue = bus.queue("q")
    first = queue.publish("first")
    second = queue.publish("second", after=first)
    taken = bus.take("q")

    settled_in_vain(losing, lambda: taken.bury("no"))

    assert bus.task(second).state == "blocked"


def test_undo_does_not_begin_for_a_flow_whose_failure_the_server_lost(losing, bus) -> None:
    flows = Flows(bus)
    flow = flows.publish(
        chain(FlowTask("a", "q", undo=FlowTask("not a", "undo")), FlowTask("b", "q"))
    )
    bus.take("q").ack()
    taken = bus.take("q")

    settled_in_vain(losing, lambda: taken.bury("no"))

    assert flows.show(flow).state == "running"
    assert bus.queue("undo").peek() == []


def test_a_flow_is_not_done_whose_last_acknowledgement_the_server_lost(losing, bus) -> None:
    flows = Flows(bus)
    flow = flows.publish(FlowTask("a", "q"))
    taken = bus.take("q")

    settled_in_vain(losing, taken.ack)

    assert flows.show(flow).state == "running"


def test_the_next_of_a_key_waits_if_the_server_lost_that_the_one_before_is_done(
    losing, bus, own_server, project
) -> None:
    queue = bus.queue("q")
    queue.publish("first", ordering_key="k")
    queue.publish("second", ordering_key="k")
    taken = bus.take("q")
    with agentbus.connect(own_server.url, project=project, agent="bob", deadline=30) as other:
        with pytest.raises(NotFound):
            other.take("q")

        losing.before("wake_ordered")
        taken.ack()

        with pytest.raises(NotFound):
            other.take("q")


def test_a_moved_task_is_found_if_the_server_lost_that_it_is_done(losing, bus) -> None:
    queue = bus.queue("q")
    task_id = queue.publish("moved")
    bus.take("q").retry(after=0)
    bus.runner.run(move_aside(bus.scope, "q", "default", "normal"))
    taken = bus.take("q", wait=30)
    assert taken.id == task_id

    losing.before("forget_moved_retry")
    taken.ack()

    with pytest.raises(NotFound, match="there is no result"):
        bus.result(task_id)


def test_an_outcome_is_not_recorded_later_if_the_server_lost_the_end_of_the_task(
    losing, bus, own_server, project
) -> None:
    # given a task that another program has acknowledged
    queue = bus.queue("q")
    first = queue.publish("first")
    second = queue.publish("second", after=first)
    bus.take("q")

    losing.before("record_outcome")
    own_server.ask("XACK", f"{project}:q:q", "default", first.partition("@")[0])
    bus.tidy("q")

    assert bus.task(second).state == "blocked"


def test_the_key_of_a_task_stays_if_the_server_lost_the_deletion_of_its_queue(losing, bus) -> None:
    queue = bus.queue("q")
    task_id = queue.publish(1, key="k")

    losing.before("delete_dedup_records")
    queue.delete(force=True)

    assert queue.publish(2, key="k") == task_id


def test_a_flow_keeps_its_ids_if_the_server_lost_that_it_reserved_them(losing, bus) -> None:
    losing.before("flow")
    flow = Flows(bus).publish(chain(FlowTask("a", "q"), FlowTask("b", "q")))

    ids = {task.id for task in Flows(bus).show(flow).tasks}
    assert bus.queue("q").publish(1, delay=60) not in ids
