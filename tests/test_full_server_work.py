"""A full server: its queues can be worked off, and what may have been done is not said to be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import BackendUnavailable, OutcomeUnknown
from agentbus.routing import Router, load
from agentbus.store.resp import digest
from agentbus.store.steps import LinkDown
from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture
def bus(own_server: Server, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(own_server.url, project=project, agent="ada") as opened:
        yield opened


def work(bus: agentbus.Bus, queue: str = "mail", **options: Any) -> list[Any]:
    """Work off a queue, and return what was done."""
    got: list[Any] = []
    bus.subscribe(queue, lambda d: got.append(d.payload), drain=True, **options).run()
    return got


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}, {"batch": True}], ids=str)
def test_a_worker_begins_on_a_full_server_and_does_all_there_is(
    bus: agentbus.Bus, own_server: Server, options: dict[str, Any]
) -> None:
    bus.queue("mail").publish_many(range(20))
    own_server.starve()

    got: list[Any] = []

    def handler(delivery: Any) -> None:
        got.extend(
            [one.payload for one in delivery] if options.get("batch") else [delivery.payload]
        )

    bus.subscribe("mail", handler, drain=True, **options).run()

    assert sorted(got) == list(range(20))
    (stats,) = bus.stats("mail")
    assert (stats.lag, stats.dead) == (0, 0)


def test_a_task_that_fails_on_a_full_server_is_tried_again_and_buried(
    bus: agentbus.Bus, own_server: Server
) -> None:
    bus.queue("mail").publish("poison")
    own_server.starve()

    def handler(_delivery: Any) -> None:
        raise ValueError("no")

    bus.subscribe(
        "mail", handler, drain=True, attempts=2, backoff=agentbus.Backoff(first=0.01)
    ).run()

    (letter,) = bus.queue("mail").dead_letters()
    assert letter.attempts == 2


def test_tasks_are_fetched_by_hand_from_a_full_server(
    bus: agentbus.Bus, own_server: Server
) -> None:
    bus.queue("mail").publish("a letter")
    own_server.starve()

    (delivery,) = bus.queue("mail").fetch()

    assert delivery.payload == "a letter"
    assert delivery.ack()


def test_tasks_are_taken_and_settled_by_hand_on_a_full_server(
    bus: agentbus.Bus, own_server: Server
) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(3))
    own_server.starve()

    done, failed, again = (bus.take("mail") for _ in range(3))

    assert bus.settle(done.id, done.token, result="yes").state == "done"
    assert bus.settle(failed.id, failed.token, "bury", error="no").state == "dead"
    assert again.renew(600) > bus.scope.now()
    assert bus.settle(again.id, again.token, "retry").state == "retrying"


def test_work_that_another_program_named_is_done_on_a_full_server(
    bus: agentbus.Bus, own_server: Server, project: str
) -> None:
    words = ("task", "build", "type", "build", "work_item_id", "w1")
    own_server.ask("XADD", Keys(project).queue("mail"), "*", *words)
    own_server.starve()

    assert [payload["work_item_id"] for payload in work(bus)] == ["w1"]


def test_what_a_full_server_gave_in_an_answer_that_was_lost_is_done(
    bus: agentbus.Bus, own_server: Server, project: str
) -> None:
    # given that the server knows all scripts, so that an answer that is lost is not that it does not
    bus.queue("mail").publish("known")
    work(bus)
    bus.queue("mail").publish_many(range(5))
    own_server.starve()
    with (
        Proxy(own_server.socket) as proxy,
        agentbus.connect(proxy.url, project=project, agent="bob", deadline=60) as far,
    ):
        # when the answer is lost that gave the tasks
        proxy.loses = digest("ack_and_take").encode()

        # then they are found, and done
        assert sorted(work(far, visibility=600)) == list(range(5))
        assert proxy.lost == 1


def test_a_router_that_a_full_server_refuses_leaves_its_tasks_to_the_next(
    bus: agentbus.Bus, own_server: Server, tmp_path: Any
) -> None:
    rules = tmp_path / "team.yaml"
    rules.write_text("agents: [alice]\ndefault: alice\n")
    bus.queue("incoming").publish_many(range(3))
    own_server.starve()
    with (
        Router(bus, load(rules), drain=True, visibility=0.1) as router,
        pytest.raises(BackendUnavailable),
    ):
        router.run()

    own_server.feed()
    with Router(bus, load(rules), drain=True, visibility=0.1) as router:
        router.run()

    assert sorted(work(bus, "agent.alice")) == [0, 1, 2]
    assert bus.queue("incoming").dead_letters(group="router") == []


def answers_are_lost(bus: agentbus.Bus, server: Server, *, full_for: int) -> list[str]:
    """Lose the answer to the next request, when the server gets full for so many requests; returns each."""
    execute, seen = bus.runner.link.execute, list[str]()

    def losing(step: Any) -> Any:
        seen.append(step.label)
        if len(seen) == full_for + 2:
            server.feed()
        reply = execute(step)
        if len(seen) == 1:
            server.starve()
            raise LinkDown("the answer was lost", sent=True)
        return reply

    bus.runner.link.execute = losing  # type: ignore[method-assign]
    return seen


def test_a_write_whose_answer_was_lost_is_asked_about_until_the_server_has_room(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=60) as bus:
        queue = bus.queue("mail")
        queue.publish("first")
        seen = answers_are_lost(bus, own_server, full_for=3)

        queue.publish("second")

        assert len(seen) == 5
        assert [task.payload for task in queue.fetch(count=10)] == ["first", "second"]


def test_a_write_whose_answer_was_lost_is_not_said_to_be_refused_by_a_full_server(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as bus:
        queue = bus.queue("mail")
        queue.publish("first")
        answers_are_lost(bus, own_server, full_for=1000)

        with pytest.raises(OutcomeUnknown):
            queue.publish("second")
        with pytest.raises(BackendUnavailable, match="is full"):
            queue.publish("third")
