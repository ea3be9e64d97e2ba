"""Flows: chains, groups, compensation; shown, cancelled and replayed as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import agentbus
from agentbus.errors import NotFound, QueueFull, Refused, TaskBuried, UsageError
from agentbus.queues import dependents
from agentbus.queues.delivery import Delivery
from agentbus.tasks import Flow, Flows, FlowState, FlowTask, Tasks, chain, group
from tests.conftest import Connect
from tests.profiles import times
from tests.servers import ask
from tests.tiers import on_one_store

Handler = Callable[[Delivery], Any]


def call(payload: Any, queue: str = "work", undo: Any = None) -> FlowTask:
    back = None if undo is None else FlowTask(undo, queue="undo")
    return FlowTask(payload, queue=queue, undo=back)


def drain(bus: agentbus.Bus, *queues: str, fails: Any = (), log: list[Any] | None = None) -> None:
    """Do what is ready in these queues, in turns, until nothing is."""
    done: list[Any] = [] if log is None else log

    def handle(delivery: Delivery) -> Any:
        if delivery.payload in fails:
            raise agentbus.Bury(f"no {delivery.payload}")
        done.append(delivery.payload)
        return [delivery.payload, *delivery.results()]

    before = -1
    while before != len(done):
        before = len(done)
        for queue in queues or ("work",):
            bus.subscribe(queue, handle, drain=True).run()


def states(flow: FlowState) -> list[str]:
    return [task.state for task in flow.tasks]


def undos(flow: FlowState) -> list[str | None]:
    return [task.undo_state for task in flow.tasks]


@pytest.fixture
def flows(bus: agentbus.Bus) -> Flows:
    return Flows(bus)


# -- in order, and at the same time --


def test_a_chain_runs_in_order_and_hands_its_results_on(bus: agentbus.Bus, flows: Flows) -> None:
    log: list[Any] = []
    flow = flows.publish(chain(call(1), call(2), call(3)))

    drain(bus, log=log)

    assert log == [1, 2, 3]
    assert flows.results(flow) == [[3, [2, [1]]]]
    assert flows.show(flow).state == "done"


def test_a_task_after_a_group_gets_the_results_of_all(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(group(call(1), call(2), call(3)), call("sum", "sums")))

    drain(bus, "work", "sums")

    assert flows.results(flow) == [["sum", [1], [2], [3]]]


def test_a_group_after_a_task_and_chains_in_a_group(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call("a"), group(chain(call("b"), call("c")), call("d"))))

    drain(bus)

    assert flows.results(flow) == [["c", ["b", ["a"]]], ["d", ["a"]]]
    assert [task.after for task in flows.show(flow).tasks] == [(), (1,), (2,), (1,)]


def test_a_flow_of_typed_tasks(bus: agentbus.Bus, flows: Flows) -> None:
    tasks = Tasks()

    @tasks.task(queue="numbers", given=Delivery)
    def add(delivery: Delivery, number: int) -> int:
        return number + sum(delivery.results())

    flow = flows.publish(chain(add.item(1), group(add.item(10), add.item(20)), add.item(0)))
    tasks.worker(bus, drain=True).run()

    assert flows.results(flow) == [32]
    assert [task.name for task in flows.show(flow).tasks] == ["add"] * 4


@given(st.data())
@settings(times(0.5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@on_one_store
def test_no_task_of_any_flow_runs_before_those_that_it_waits_for(
    bus: agentbus.Bus, flows: Flows, data: st.DataObject
) -> None:
    numbers = iter(range(1000))
    part: Any = st.deferred(
        lambda: (
            st.builds(lambda: call(next(numbers)))
            | st.lists(part, min_size=1, max_size=3).map(lambda parts: chain(*parts))
            | st.lists(part, min_size=1, max_size=3).map(lambda parts: group(*parts))
        )
    )
    flow = flows.publish(chain(data.draw(part)))
    before = flows.show(flow)
    log: list[Any] = []
    ended: dict[str, int] = {}

    def handle(delivery: Delivery) -> None:
        assert set(delivery.after) <= set(ended)
        ended[delivery.id] = len(log)
        log.append(delivery.payload)

    while len(log) < before.size:
        bus.subscribe("work", handle, drain=True).run()

    assert flows.show(flow).state == "done"
    assert [ended[task.id] >= 0 for task in before.tasks] == [True] * before.size


# -- ids --


def test_a_flow_with_an_id_is_published_once(bus: agentbus.Bus, flows: Flows) -> None:
    assert flows.publish(call(1), id="order 17") == "order 17"
    assert flows.publish(call(2), id="order 17") == "order 17"

    log: list[Any] = []
    drain(bus, log=log)
    assert log == [1]


def test_the_delivery_names_the_flow(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(call(1))
    (delivery,) = bus.queue("work").fetch()

    assert delivery.flow == flow  # type: ignore[attr-defined]
    delivery.ack()


def test_flows_are_listed_the_newest_first(bus: agentbus.Bus, flows: Flows) -> None:
    ids = [flows.publish(chain(call(1), call(2))) for _ in range(3)]
    bus.queue("work").fetch()[0].ack()

    found = flows.list()

    assert {one.id for one in found} == set(ids)
    assert sorted(found, key=lambda one: -one.created) == found
    assert sorted(one.done for one in found) == [0, 0, 1]


# -- failures --


def test_without_undo_a_buried_task_fails_the_flow(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1), call(2), call(3)))

    drain(bus, fails=[2])

    shown = flows.show(flow)
    assert (shown.state, shown.done, shown.failed) == ("failed", 1, 2)
    assert states(shown) == ["done", "dead", "dead"]
    assert shown.tasks[1].error == "Bury: no 2"
    with pytest.raises(TaskBuried):
        flows.results(flow)


def test_what_was_done_is_undone_in_reverse_order(bus: agentbus.Bus, flows: Flows) -> None:
    steps = [call(number, undo=-number) for number in (1, 2, 3)]
    flow = flows.publish(chain(*steps, call(4, undo=-4), call(5)))
    log: list[Any] = []

    drain(bus, fails=[4], log=log)
    assert flows.show(flow).state == "compensating"
    assert undos(flows.show(flow)) == ["waiting", "waiting", "running", None, None]
    drain(bus, "undo", log=log)

    assert log == [1, 2, 3, -3, -2, -1]
    shown = flows.show(flow)
    assert shown.state == "compensated"
    assert undos(shown) == ["done", "done", "done", None, None]


def test_an_undo_task_gets_the_result_of_what_it_undoes(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call("book", undo="unbook"), call("pay")))
    drain(bus, fails=["pay"])

    found: list[Any] = []
    bus.subscribe("undo", lambda delivery: found.append(delivery.results()), drain=True).run()

    assert found == [[["book"]]]
    assert flows.show(flow).state == "compensated"


def test_nothing_is_undone_before_the_rest_of_the_flow_has_ended(
    bus: agentbus.Bus, flows: Flows
) -> None:
    flow = flows.publish(group(call(1, undo=-1), call(2), call(3, "slow", undo=-3)))
    log: list[Any] = []

    drain(bus, "work", "undo", fails=[2], log=log)
    assert (log, flows.show(flow).state) == ([1], "running")

    drain(bus, "slow", "undo", log=log)
    assert log == [1, 3, -3, -1]


def test_an_undo_task_that_is_buried_does_not_stop_the_others(
    bus: agentbus.Bus, flows: Flows
) -> None:
    flow = flows.publish(chain(call(1, undo=-1), call(2, undo=-2), call(3)))
    log: list[Any] = []

    drain(bus, "work", "undo", fails=[3, -2], log=log)

    assert log == [1, 2, -1]
    assert flows.show(flow).state == "compensation_failed"
    assert undos(flows.show(flow)) == ["done", "failed", None]


def test_a_flow_that_is_done_undoes_nothing(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1, undo=-1), call(2, undo=-2)))
    log: list[Any] = []

    drain(bus, "work", "undo", log=log)

    assert (log, flows.show(flow).state) == ([1, 2], "done")


@on_one_store
def test_two_who_follow_at_the_same_time_undo_once(
    bus: agentbus.Bus, flows: Flows, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What workers settle is left to those that follow.
    monkeypatch.setattr(dependents, "_BESIDE", -1.0)
    parts = [call(number, undo=-number) for number in range(1, 6)]
    ids = [flows.publish(group(*parts, call("bad"))) for _ in range(5)]
    drain(bus, fails=["bad"])
    others = [connect(f"other-{number}") for number in range(4)]
    log: list[Any] = []
    while any(one.state != "compensated" for one in flows.list()):
        at_once(
            [
                lambda other=other: other._run("f", dependents.resolve(other.scope))
                for other in others
            ]
        )
        drain(bus, "undo", log=log)

    assert sorted(log) == sorted([-1, -2, -3, -4, -5] * len(ids))


def at_once(calls: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=one) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- cancel --


def test_cancel_ends_what_has_not_ended_and_undoes_what_was_done(
    bus: agentbus.Bus, flows: Flows
) -> None:
    flow = flows.publish(chain(call(1, undo=-1), call(2, "other", undo=-2), call(3)))
    drain(bus)

    shown = flows.cancel(flow)
    assert states(shown) == ["done", "cancelled", "cancelled"]
    assert shown.state == "compensating"

    log: list[Any] = []
    drain(bus, "work", "other", "undo", log=log)
    assert log == [-1]
    assert flows.show(flow).state == "compensated"
    assert [*bus.queue("work").dead_letters(), *bus.queue("other").dead_letters()] == []


def test_a_cancelled_flow_without_undo_is_cancelled(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1), call(2)))

    assert flows.cancel(flow).state == "cancelled"

    with pytest.raises(Refused, match="is cancelled, and cannot be cancelled"):
        flows.cancel(flow)


def test_what_a_burial_says_does_not_make_a_task_cancelled(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1), call(2)))
    (held,) = bus.queue("work").fetch()

    held.bury("it was cancelled by the customer")

    shown = flows.show(flow)
    assert states(shown) == ["dead", "dead"]
    assert (shown.state, shown.failed, shown.cancelled) == ("failed", 2, 0)
    with pytest.raises(Refused, match="was buried: it was cancelled by the customer"):
        bus.queue("work").publish(3, after=held.id)


# -- replay --


def test_replay_runs_what_was_not_done_with_the_results_of_the_rest(
    bus: agentbus.Bus, flows: Flows
) -> None:
    flow = flows.publish(chain(call(1), call(2), call(3)))
    drain(bus, fails=[2])

    shown = flows.replay(flow)
    assert (shown.state, shown.run) == ("running", 2)
    log: list[Any] = []
    drain(bus, log=log)

    assert log == [2, 3]
    assert flows.results(flow) == [[3, [2, [1]]]]
    assert flows.show(flow).state == "done"


def test_after_a_compensation_replay_runs_everything(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1, undo=-1), call(2)))
    drain(bus, "work", "undo", fails=[2])
    assert flows.show(flow).state == "compensated"

    flows.replay(flow)
    log: list[Any] = []
    drain(bus, "work", "undo", fails=[2], log=log)
    assert log == [1, -1]
    assert flows.show(flow).state == "compensated"


def test_a_replayed_flow_marks_its_dead_letters(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1), call(2)))
    drain(bus, fails=[1])

    again = flows.replay(flow)

    assert [one.replayed for one in bus.queue("work").dead_letters()] == [
        task.id for task in again.tasks
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_a_flow_that_runs_or_is_done_is_not_replayed(
    bus: agentbus.Bus, flows: Flows, ended: bool
) -> None:
    flow = flows.publish(call(1))
    if ended:
        drain(bus)

    with pytest.raises(Refused, match="cannot be replayed"):
        flows.replay(flow)


# -- bounds, bad input, what is left --


def test_a_flow_that_does_not_fit_publishes_nothing(bus: agentbus.Bus, flows: Flows) -> None:
    agents = [call(number, "agent.ada") for number in range(101)]

    with pytest.raises(QueueFull):
        flows.publish(chain(call(1), group(*agents)), id="large")

    assert flows.list() == []
    assert bus.queue("work").remaining() == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (chain, "a chain of nothing"),
        (group, "a group of nothing"),
        (lambda: chain("mail"), "is not a part of a flow"),  # type: ignore[arg-type]
        (lambda: chain(FlowTask(1)), "has no queue"),
        (lambda: chain(FlowTask(agentbus.Task(1, key="k"), queue="q")), "has a dedup key"),
        (lambda: chain(call(1, undo=None), FlowTask(1, queue="~webhooks")), "belongs to the bus"),
        (lambda: group(*[call(n) for n in range(1001)]), "the limit is 1,000"),
        (
            lambda: chain(group(*[call(1)] * 200), group(*[call(1)] * 200)),
            "wait for one another more than",
        ),
        (lambda: chain(FlowTask(1, queue="q", undo=call(2, undo=3))), "is undone itself"),
    ],
)
@on_one_store
def test_a_bad_flow_is_refused_in_a_sentence(
    flows: Flows, made: Callable[[], Flow], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        flows.publish(made())


def test_an_unknown_flow_is_not_found(flows: Flows) -> None:
    for verb in (flows.show, flows.cancel, flows.replay, flows.results):
        with pytest.raises(NotFound, match="the flow 'none' does not exist"):
            verb("none")


def test_a_flow_leaves_nothing_but_its_record_which_expires(
    bus: agentbus.Bus, flows: Flows
) -> None:
    flow = flows.publish(chain(call(1, undo=-1), group(call(2), call(3)), call(4)))
    drain(bus, "work", "undo", fails=[4])

    left = bus.clear(dry_run=True)
    assert "after" not in left
    assert left["flows"] == 2
    record, index = bus.scope.keys.flow(flow)
    assert 0 < ask(bus, "TTL", record) <= 30 * 86_400
    assert ask(bus, "ZCARD", index) == 1


def test_task_show_names_no_flow_as_a_dependent(bus: agentbus.Bus, flows: Flows) -> None:
    flow = flows.publish(chain(call(1), call(2)))
    first, second = flows.show(flow).tasks

    assert bus.task(first.id).awaited_by == (second.id,)
    assert bus.task(second.id).awaited_by == ()
