"""The pages of `agentbus web` about schedules, flows and limits."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.dashboard import Dashboard, Pages, RowRange
from agentbus.tasks import Flows, FlowTask, Limits, Schedules, chain, group
from tests.browsing import Browser
from tests.servers import ask
from tests.tiers import on_one_store

pytestmark = on_one_store
_PAGES = ("tasks", "schedules", "flows", "limits")


async def test_at_rest_the_pages_of_work_say_what_the_verbs_say(bus, served):
    mail = bus.queue("mail")
    Limits(bus).set("mail", at_once=2)
    mail.publish_many(range(5))
    mail.fetch()[0].bury("broken")
    mail.fetch()
    flows, schedules = Flows(bus), Schedules(bus)
    flow = flows.publish(chain(_step("build"), _step("ship")))
    bus.queue("work").fetch()[0].ack()
    schedules.add("report", "reports", every=3600)
    schedules.add("old", "fetch", every=60)
    schedules.pause("old")
    browser = Browser(served)

    pages = {name: (await browser.get(f"/{name}")).page for name in _PAGES}
    rows = {name: [row for row in page.all("tr") if "id" in row] for name, page in pages.items()}
    (stats,) = bus.stats("mail")
    listed = Dashboard(bus).task_list(limit=100).rows

    assert len(rows["tasks"]) == len(listed) == 7
    for state in {task.state for task in listed}:
        number = sum(task.state == state for task in listed)
        only = (await browser.get(f"/tasks?state={state}")).page
        assert len([row for row in only.all("tr") if "id" in row]) == number
    assert (stats.dead, stats.pending) == (
        sum(task.state == "dead" for task in listed),
        sum(task.state == "running" for task in listed),
    )
    assert len(rows["schedules"]) == len(schedules.list())
    assert len(rows["flows"]) == len(flows.list())
    state = flows.show(flow)
    counted = (state.size, state.done, state.failed, state.cancelled)
    assert f"running {' '.join(map(str, counted))}" in pages["flows"].text
    assert len(rows["limits"]) == len(Limits(bus).list())
    assert f"default {stats.pending} " in pages["limits"].text


# -- schedules --


async def test_schedules_show_when_they_are_due_and_what_they_published(bus, served):
    schedules = Schedules(bus)
    schedules.add("report", "reports", every=3600)
    schedules.add("poll", "fetch", cron="*/5 * * * *")
    schedules.add("old", "fetch", every=60)
    schedules.pause("old")

    page = (await Browser(served).get("/schedules")).page

    assert page.unbalanced == []
    assert "every 1h" in page.text
    assert "in 59m" in page.text
    assert "*/5 * * * * UTC" in page.text
    assert page.text.index("poll") < page.text.index("report") < page.text.index("old")
    assert "overdue" not in page.text
    # Read-only, no page has a form that acts.
    assert [one for one in page.all("form") if one["method"] == "post"] == []


async def test_an_overdue_schedule_is_marked_with_the_command_that_publishes_it(bus, served):
    Schedules(bus).add("report", "reports", every=3600)
    keys = bus.scope.keys
    ask(bus, "HSET", keys.schedule("report"), "due", "1000")

    page = (await Browser(served).get("/schedules")).page

    assert "1 schedule overdue" in page.text
    assert "agentbus schedule run" in page.text


async def test_a_person_pauses_resumes_and_runs_a_schedule(bus, writing):
    Schedules(bus).add("report", "reports", {"n": 1}, every=3600)
    browser = Browser(writing)

    await browser.press((await browser.get("/schedules")).page, "/act/schedule.pause")
    assert Schedules(bus).show("report").paused
    await browser.press((await browser.get("/schedules")).page, "/act/schedule.resume")
    assert not Schedules(bus).show("report").paused
    await browser.press((await browser.get("/schedules")).page, "/act/schedule.trigger")

    (task,) = bus.queue("reports").fetch()
    assert task.payload == {"n": 1}
    assert "schedule report triggered" in next(bus.overhear(last=1)).text


# -- flows --


def _step(name: str) -> FlowTask:
    return FlowTask({"step": name}, queue="work", name=name)


async def test_flows_are_listed_and_one_is_drawn_with_the_state_of_each_task(bus, served):
    flow = Flows(bus).publish(
        chain(_step("build"), group(_step("unit"), _step("e2e")), _step("ship")), id="release"
    )
    (task,) = bus.queue("work").fetch()
    task.ack()
    browser = Browser(served)

    listed = (await browser.get("/flows")).page
    (link,) = (a["href"] for a in listed.all("a") if a.get("href", "").startswith("/flow?"))
    page = (await browser.get(link)).page

    state = Flows(bus).show(flow)
    assert f"running {state.size} {state.done}" in listed.text
    assert page.unbalanced == []
    (drawing,) = page.all("svg", **{"class": "chain"})
    assert drawing["role"] == "group"
    assert [one["class"] for one in page.all("rect")] == [
        f"task {one.state}" for one in state.tasks
    ]
    assert [one["class"] for one in page.all("path") if "marker-end" in one] == ["before"] * 4
    for one in state.tasks:
        assert one.name in page.text
    assert "1 of 4 tasks done" in page.text


async def test_a_person_cancels_and_replays_a_flow(bus, writing):
    Flows(bus).publish(chain(_step("a"), _step("b")), id="release")
    browser = Browser(writing)

    await browser.press((await browser.get("/flow?id=release")).page, "/act/flow.cancel")
    assert Flows(bus).show("release").state == "cancelled"
    await browser.press((await browser.get("/flow?id=release")).page, "/act/flow.replay")

    assert Flows(bus).show("release").run == 2


async def test_a_flow_that_does_not_exist_is_a_page_that_says_so(served):
    for path in ("/flow?id=none", "/flow"):
        assert (await Browser(served).get(path)).status == 404


def test_flows_are_read_by_the_page_running_ones_first(bus):
    flows = Flows(bus)
    for number in range(3):
        flows.publish(_step("a"), id=f"f{number}")
    flows.cancel("f1")

    first = Pages(bus).flows(RowRange(limit=2))
    last = Pages(bus).flows(RowRange(offset=2, limit=2))

    assert first.matching == last.matching == 3
    assert [one.id for one in last.flows] == ["f1"]
    assert {one.id for one in first.flows} == {"f0", "f2"}


def test_of_a_large_flow_the_states_of_a_hundred_tasks_are_read(bus):
    Flows(bus).publish(group(*(_step("a") for _ in range(130))), id="large")

    states = [one.state for one in Pages(bus).flow("large").tasks]

    assert states == ["waiting"] * 100 + ["unknown"] * 30


# -- limits --


async def test_limits_show_the_tasks_that_run_and_wait_under_them(bus, served):
    Limits(bus).set("mail", at_once=2)
    bus.queue("mail").publish_many(range(5))
    taken = bus.queue("mail").fetch(count=5)
    assert len(taken) == 2

    page = (await Browser(served).get("/limits")).page

    assert page.unbalanced == []
    assert "mail 2 - - default 2 3" in page.text


def test_a_limit_by_a_field_shows_its_values_with_most_waiting_tasks_first(bus):
    Limits(bus).set("mail", at_once=1, by="tenant")
    for tenant in ("a", "b:1", "b:1", "b:1"):
        bus.queue("mail").publish(1, tenant=tenant)
    taken = bus.queue("mail").fetch(count=4)

    (row,) = Pages(bus).limits().limits

    (use,) = row.uses
    assert (use.running, use.waiting) == (2, 2)
    assert use.keys == (("b:1", 1, 2), ("a", 1, 0))
    # A slot is free once its task has ended, though its record stays until the next task asks.
    for delivery in taken:
        delivery.ack()
    (row,) = Pages(bus).limits().limits
    assert row.uses[0].running == 0


async def test_a_person_removes_limits(bus, writing):
    Limits(bus).set("mail", at_once=2)
    browser = Browser(writing)

    await browser.press((await browser.get("/limits")).page, "/act/limit.remove")

    assert Limits(bus).list() == {}


# -- requests --


@pytest.mark.parametrize("number", [5, 60])
def test_the_requests_of_a_page_do_not_grow_with_what_it_lists(bus, number):
    for at in range(number):
        Schedules(bus).add(f"s{at}", "q", every=60)
        Flows(bus).publish(_step("a"), id=f"f{at}")
    pages = Pages(bus)

    requests = _counted(bus, lambda: (pages.schedules(), pages.flows()))

    assert requests <= 6


def _counted(bus: agentbus.Bus, read: object) -> int:
    """Return the number of round trips of a call."""
    trips = 0
    run = bus.runner.run

    def counted(op, *args, **kwargs):
        def counting():
            nonlocal trips
            reply, error = None, None
            while True:
                try:
                    step = op.throw(error) if error is not None else op.send(reply)
                except StopIteration as end:
                    return end.value
                trips += 1
                try:
                    reply, error = (yield step), None
                except Exception as failure:  # noqa: BLE001
                    error = failure

        return run(counting(), *args, **kwargs)

    bus.runner.run = counted
    try:
        read()
    finally:
        del bus.runner.run
    return trips
