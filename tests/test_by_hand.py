"""Tasks taken by hand: held for an agent until a visibility ends, settled by their token."""

from __future__ import annotations

import pytest

import agentbus
from agentbus import StaleToken
from agentbus.admin import doctor, survey
from agentbus.errors import NotFound, Refused, TimedOut, UsageError
from tests.conftest import Connect
from tests.servers import ask

# So short that it is over before the next request.
OVER = 0.001


@pytest.fixture
def queue(bus: agentbus.Bus) -> agentbus.client.queue.Queue:
    return bus.queue("mail")


def fetched(bus: agentbus.Bus) -> list[str]:
    """Return what another consumer, which reclaims whatever is idle, gets now."""
    return [one.id for one in bus.queue("mail").fetch(visibility=0.001)]


def field(bus: agentbus.Bus, task_id: str, name: str) -> object:
    return getattr(bus.task(task_id), name)


# -- take --


def test_a_taken_task_has_its_payload_a_token_and_an_end(bus, queue):
    task_id = queue.publish({"to": "a"}, correlation_id="c")

    task = bus.take("mail")

    assert (task.id, task.payload, task.correlation_id, task.attempt) == (
        *(task_id, {"to": "a"}, "c"),
        1,
    )
    assert isinstance(task.token, int)
    assert 1790 < task.until - bus.scope.now() <= 1801


def test_nobody_else_gets_it_however_soon_they_reclaim(connect: Connect, bus, queue):
    queue.publish(1)
    task = bus.take("mail")
    other = connect("bob")

    assert (fetched(other), fetched(bus)) == ([], [])
    with pytest.raises(NotFound, match="no task of 'mail' is ready"):
        bus.take("mail")
    assert task.ack() is True


def test_it_outlives_the_bus_that_took_it(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    with connect("ada") as first:
        token = first.take("mail").token

    settled = bus.settle(task_id, token, result={"ok": True})

    assert (settled.state, settled.attempt, settled.repeated) == ("done", 1, False)
    assert bus.result(task_id) == {"ok": True}
    assert field(bus, task_id, "state") == "done"


def test_after_its_visibility_anyone_gets_it_as_the_next_attempt(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    bus.take("mail", visibility=OVER)

    (again,) = connect("bob").queue("mail").fetch(block=60)

    assert (again.id, again.attempt) == (task_id, 2)
    runs = bus.task(task_id).runs
    assert (runs[0].worker, runs[0].outcome) == ("hand:ada", "lost")
    assert bus.stats("mail")[0].counters["reclaimed"] == 1


def test_a_worker_gets_it_after_its_visibility(connect: Connect, bus, queue):
    queue.publish(1)
    bus.take("mail", visibility=OVER)
    attempts = []

    with bus.subscribe("mail", lambda one: attempts.append(one.attempt), drain=True) as worker:
        worker.run()

    assert attempts == [2]


def test_a_task_is_buried_when_its_agents_let_all_its_attempts_pass(bus, queue):
    task_id = queue.publish(1, attempts=2)
    for _ in range(2):
        bus.take("mail", visibility=OVER, wait=60)

    with pytest.raises(TimedOut):
        bus.take("mail", wait=0.05)

    assert field(bus, task_id, "state") == "dead"
    assert "not acknowledged in any of its 2 attempts" in str(field(bus, task_id, "error"))


def test_the_most_urgent_task_comes_first(bus, queue):
    queue.publish("later")
    queue.publish("now", priority="critical")

    assert [bus.take("mail").payload, bus.take("mail").payload] == ["now", "later"]


def test_tasks_of_an_ordering_key_wait_for_the_one_that_is_held_by_hand(
    connect: Connect, bus, queue
):
    queue.publish(1, ordering_key="k")
    second = queue.publish(2, ordering_key="k")
    first = bus.take("mail")
    assert fetched(connect("bob")) == []

    first.ack()

    assert connect("carl").take("mail", wait=60).id == second


def test_a_task_before_it_that_another_group_cancels_does_not_end_its_hold(
    connect: Connect, bus, queue
):
    queue.fetch(group="audit")
    first = queue.publish(1, ordering_key="k")
    queue.publish(2, ordering_key="k")
    bus.take("mail").ack()
    held = bus.take("mail", wait=60)

    bus.cancel(first)

    assert fetched(connect("bob")) == []
    assert held.ack() is True


def test_a_paused_queue_gives_nothing_and_says_so(bus, queue):
    queue.publish(1)
    queue.pause("spring cleaning", wait=0)

    with pytest.raises(NotFound, match="is paused by ada: spring cleaning"):
        bus.take("mail")
    with pytest.raises(TimedOut, match="is paused by ada: spring cleaning"):
        bus.take("mail", wait=0.05)


def test_a_mistyped_queue_is_answered_with_the_nearest_one_and_not_created(bus, queue):
    queue.publish(1)

    with pytest.raises(NotFound, match=r"there is no queue 'mial'.*'mail'"):
        bus.take("mial")

    assert bus.queues() == ["mail"]
    assert ask(bus, "EXISTS", f"{bus.project}:q:mial") == 0


@pytest.mark.parametrize("visibility", [0, -1, float("nan"), 8 * 86_400, "30m", True])
def test_a_visibility_is_a_number_of_seconds_up_to_a_week(bus, queue, visibility):
    queue.publish(1)

    with pytest.raises(UsageError, match="the visibility is"):
        bus.take("mail", visibility=visibility)


def test_a_delayed_task_is_settled_by_its_own_id(bus, queue):
    task_id = queue.publish(1, delay=0.001)
    task = bus.take("mail", wait=60)

    assert bus.settle(task.id, task.token, result=2).id == task_id
    assert bus.result(task_id) == 2


# -- settle --


def test_a_retry_is_due_after_the_backoff_with_its_error(bus, queue):
    task_id = queue.publish(1)
    task = bus.take("mail")

    before = bus.scope.now()
    settled = bus.settle(task_id, task.token, "retry", error="the build is red")
    after = bus.scope.now()

    assert settled.state == "retrying"
    assert before + 0.4 < settled.due < after + 1.1
    found = bus.task(task_id)
    assert (found.state, found.error, found.runs[0].outcome) == (
        *("retrying", "the build is red"),
        "failed",
    )


def test_a_retry_can_be_due_at_once(bus, queue):
    task_id = queue.publish(1)
    bus.settle(task_id, bus.take("mail").token, "retry", after=0)

    assert bus.take("mail", wait=60).attempt == 2


def test_a_retry_of_the_last_attempt_buries_the_task_with_the_error(bus, queue):
    task_id = queue.publish(1, attempts=1)
    token = bus.take("mail").token

    assert bus.settle(task_id, token, "retry", error="no disk").state == "dead"
    assert queue.dead_letters()[0].error == "no disk"
    assert bus.settle(task_id, token, "retry").repeated is True


def test_a_buried_task_is_among_the_dead_letters(bus, queue):
    task_id = queue.publish(1)

    settled = bus.settle(task_id, bus.take("mail").token, "bury", error="no such account")

    assert settled.state == "dead"
    (letter,) = queue.dead_letters()
    assert (letter.task_id, letter.error, letter.attempts) == (task_id, "no such account", 1)


@pytest.mark.parametrize(
    ("outcome", "options"), [("done", {}), ("retry", {}), ("bury", {"error": "no"})]
)
def test_the_same_call_again_changes_nothing(bus, queue, outcome, options):
    task_id = queue.publish(1)
    token = bus.take("mail").token
    first = bus.settle(task_id, token, outcome, **options)
    before = bus.stats("mail")[0].counters

    again = bus.settle(task_id, token, outcome, **options)

    assert (again.state, again.attempt, again.repeated) == (first.state, 1, True)
    assert bus.stats("mail")[0].counters == before


def test_another_outcome_with_the_same_token_is_refused(bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail").token
    bus.settle(task_id, token)

    with pytest.raises(StaleToken, match="is stale: it is done"):
        bus.settle(task_id, token, "bury", error="no")
    with pytest.raises(StaleToken):
        bus.renew(task_id, token)


def test_the_token_of_an_agent_that_took_too_long_is_refused(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail", visibility=OVER).token
    now = connect("bob").take("mail", wait=60)

    with pytest.raises(StaleToken, match=r"'bob' has it, by hand until .*, with another token"):
        bus.settle(task_id, token)
    with pytest.raises(StaleToken, match="'bob' has it"):
        bus.renew(task_id, token)

    assert now.ack() is True


def test_a_stale_token_of_the_same_agent_is_refused(bus, queue):
    task_id = queue.publish(1)
    first = bus.take("mail", visibility=OVER)
    second = bus.take("mail", wait=60)

    assert second.token > first.token
    for outcome, options in (("done", {}), ("retry", {}), ("bury", {"error": "no"})):
        with pytest.raises(StaleToken):
            bus.settle(task_id, first.token, outcome, **options)
    assert (first.ack(), first.retry(), first.bury("no")) == (False, False, False)
    assert field(bus, task_id, "state") == "running"
    assert second.ack() is True


def test_it_can_be_settled_after_its_visibility_as_long_as_nobody_has_taken_it(bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail", visibility=OVER).token

    assert bus.settle(task_id, token).state == "done"


def test_an_agent_with_the_token_may_settle_what_another_one_took(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail").token

    assert connect("bob").settle(task_id, str(token)).state == "done"


def test_no_outcome_is_taken_for_another(bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail").token

    for outcome, options in (
        ("finished", {}),
        ("retry", {"result": 1}),
        ("done", {"error": "no"}),
        ("bury", {}),
        ("done", {"after": 1}),
        ("retry", {"after": -1}),
    ):
        with pytest.raises(UsageError):
            bus.settle(task_id, token, outcome, **options)
    for wrong in ("secret", "", "0", "-1", "1.0", True, None):
        with pytest.raises(UsageError, match="is not a token"):
            bus.settle(task_id, wrong)
    with pytest.raises(UsageError, match="is not a task id"):
        bus.settle("mail", token)
    assert field(bus, task_id, "state") == "running"


# -- renew --


def test_a_renewed_task_is_held_for_longer(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    token = bus.take("mail", visibility=OVER).token

    renewed = bus.renew(task_id, token, 600)

    assert 590 < renewed.until - bus.scope.now() < 601
    assert fetched(connect("bob")) == []
    assert field(bus, task_id, "due") == renewed.until


def test_a_cancelled_task_is_not_renewed_and_a_retry_of_it_ends_it(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    task = bus.take("mail")
    assert connect("bob").cancel(task_id).workers == ("hand:ada",)

    with pytest.raises(Refused, match="was cancelled by bob") as refused:
        bus.renew(task_id, task.token)

    assert not isinstance(refused.value, StaleToken)
    assert bus.settle(task_id, task.token, "retry").state == "cancelled"
    assert field(bus, task_id, "state") == "cancelled"


# -- what others see --


def test_its_state_says_who_holds_it_and_until_when(bus, queue):
    task_id = queue.publish(1)
    task = bus.take("mail")

    found, (entry,) = bus.task(task_id), queue.inspect()

    assert (found.state, found.worker, found.due) == ("running", "hand:ada", task.until)
    assert (entry.state, entry.holder, entry.due) == ("running", "hand:ada", task.until)


def test_the_list_of_agents_has_the_tasks_that_they_hold(connect: Connect, bus, queue):
    task_id = queue.publish(1)
    task = bus.take("mail")
    connect("bob").queue("mail").publish(2)

    (found,) = [one for one in bus.who() if one.agent_id == "ada"]
    assert [(one.id, one.queue, one.group, one.until) for one in found.tasks] == [
        (task_id, "mail", "default", task.until)
    ]
    task.ack()
    assert [one for one in bus.who() if one.tasks] == []


def test_a_task_held_by_hand_is_healthy_within_its_visibility(bus, queue, monkeypatch):
    queue.publish(1)
    bus.take("mail")
    # As if it had been held for an hour.
    stream = f"{bus.project}:q:mail"
    (entry,) = ask(bus, "XRANGE", stream, "-", "+")
    ask(bus, "XCLAIM", stream, "default", "hand:ada", 0, entry[0], "IDLE", 3_600_000, "JUSTID")

    assert [one for one in bus.health().findings if one.check in ("idle", "starving")] == []
    monkeypatch.setattr(doctor, "_STALE", -1.0)
    (found,) = [one for one in bus.doctor() if one.check == "consumers"]
    assert found.status == "ok"


def test_a_task_whose_visibility_has_ended_starves_without_a_worker(bus, queue, monkeypatch):
    queue.publish(1)
    bus.take("mail")
    stream, retries = f"{bus.project}:q:mail", f"{bus.project}:attempts:mail:default:normal:due"
    (entry,) = ask(bus, "XRANGE", stream, "-", "+")
    ask(bus, "ZADD", retries, "XX", round((bus.scope.now() - 7200) * 1000), entry[0])
    # Nobody has taken tasks since.
    monkeypatch.setattr(survey, "HEARD", -1.0)

    (found,) = [one for one in bus.health().findings if one.check == "starving"]
    assert "have waited for the group 'default' for 2 hours, and it has no worker" in found.text


def test_a_queue_whose_last_task_was_done_by_hand_is_drained(bus, queue):
    queue.publish(1)
    bus.take("mail").ack()

    with bus.subscribe("mail", lambda _: None, drain=True) as worker:
        worker.run()

    assert queue.remaining() == 0


def test_tidying_keeps_what_is_held_and_drops_the_records_of_the_rest(bus, queue):
    from agentbus.queues import janitor

    first, second = queue.publish_many([1, 2])
    held, over = bus.take("mail"), bus.take("mail", visibility=OVER)
    bus.take("mail", wait=60)
    records = f"{bus.project}:attempts:taken"
    ask(bus, "HSET", records, "other", "program's")
    assert ask(bus, "HLEN", records) == 3

    bus._run("tidy", janitor.tidy(bus.scope, dead_after=0))

    assert ask(bus, "HLEN", records) == 2
    assert (held.ack(), over.ack()) == (True, False)
    assert bus.settle(second, bus.who()[0].tasks[0].token).state == "done"
    assert ask(bus, "HLEN", records) == 0
    assert field(bus, first, "state") == "done"


def test_what_was_settled_by_hand_is_in_the_metrics(connect: Connect, bus, queue):
    queue.publish_many([1, 2])
    with connect("ada") as first:
        done, failed = first.take("mail"), first.take("mail")
        done.ack()
    with connect("ada") as second:
        second.settle(failed.id, failed.token, "bury", error="no")

    (found,) = bus.metrics()
    assert {name: found.counts[name] for name in ("received", "processed", "dead")} == {
        "received": 2,
        "processed": 1,
        "dead": 1,
    }


async def test_an_async_bus_takes_and_settles_alike(abus):
    queue = abus.queue("mail")
    first, second = await queue.publish_many([1, 2])

    task = await abus.take("mail")
    assert (task.id, await task.renew(600) == task.until) == (first, True)
    assert await task.ack("fine") is True
    other = await abus.take("mail", wait=60)
    assert (await abus.renew(second, other.token)).agent_id == "ada"
    assert (await abus.settle(second, other.token, result="too")).state == "done"
    assert (await queue.result(first), await queue.result(second)) == ("fine", "too")
    with pytest.raises(TimedOut):
        await abus.take("mail", wait=0.05)


def test_the_record_of_a_holder_is_gone_once_another_has_the_task(connect: Connect) -> None:
    bus, other = connect("ada"), connect("bob")
    bus.queue("q").publish(1)
    bus.queue("q").publish(2, delay=0)
    held = [bus.take("q", wait=5), bus.take("q", wait=5)]
    for task in held:
        task.renew(0.05)

    taken = [other.take("q", wait=30) for _ in held]

    assert sorted(task.id for task in taken) == sorted(task.id for task in held)
    records = ask(other, "HKEYS", other.scope.keys.taken)
    assert sorted(records) == sorted(f"{task.id}\ndefault\n{task.token}".encode() for task in taken)
    for task in taken:
        task.ack()
    assert ask(other, "EXISTS", other.scope.keys.taken) == 0
