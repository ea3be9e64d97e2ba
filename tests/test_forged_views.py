"""A record of another type takes nothing else from a view, nor from those who write such records."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import BackendUnavailable, LeaseHeld
from agentbus.queues import janitor
from agentbus.queues.delivery import Delivery
from agentbus.queues.policy import Policies
from agentbus.retry import Backoff
from tests import inprocess
from tests.servers import ask


def spoil(bus: agentbus.Bus, *keys: str) -> None:
    """Write sets in the place of keys of the project."""
    for key in keys:
        ask(bus, "DEL", f"{bus.project}:{key}")
        ask(bus, "SADD", f"{bus.project}:{key}", "x")


def test_sound_flags_are_listed_beside_foreign_ones(bus: agentbus.Bus) -> None:
    for flag in ("held", "done"):
        bus.announce(flag)
    bus.satisfy("done")
    spoil(bus, "flag:a", "done:b", "failed:c", "fence:held")

    assert [(one.flag, one.state) for one in bus.flags()] == [
        ("done", "satisfied"),
        ("held", "held"),
    ]
    assert "foreign_key" not in {one.check for one in bus.health().findings}


def test_flags_are_listed_while_the_channel_is_foreign(bus: agentbus.Bus) -> None:
    bus.announce("held")
    spoil(bus, "ch:main")

    assert [one.flag for one in bus.flags()] == ["held"]


def test_a_foreign_key_of_an_awaited_flag_is_named(bus: agentbus.Bus) -> None:
    spoil(bus, "done:x")

    with pytest.raises(BackendUnavailable, match=r"the key '.*:x' is not a string"):
        bus.await_("x", timeout=0)


@pytest.mark.parametrize("token", ["9223372036854775807", None])
def test_a_flag_is_taken_and_ended_over_any_value_of_its_token(bus: agentbus.Bus, token) -> None:
    if token is None:
        spoil(bus, "fence:x")
    else:
        ask(bus, "SET", Keys(bus.project).fence("x"), token)

    assert bus.announce("x").token > 10**12
    spoil(bus, "fence:x")
    assert bus.satisfy("x").state == "satisfied"


def test_paths_are_leased_over_any_value_of_what_is_beside_the_leases(connect, bus) -> None:
    for record in ("leases:fence", "leases:bell", "leases:refused"):
        spoil(bus, record)
    bob = connect("bob")

    assert bus.lease("src/**").token > 10**12
    with pytest.raises(LeaseHeld):
        bob.lease("src/a.py", wait=0.01)
    assert len(bus.drop_leases()) == 1
    assert bob.lease("src/a.py").pattern == "src/a.py"


def test_a_foreign_key_of_leases_is_an_error_in_a_sentence_and_a_finding(bus: agentbus.Bus) -> None:
    spoil(bus, "leases")

    with pytest.raises(BackendUnavailable, match="should be a hash"):
        bus.lease("src/**")
    with pytest.raises(BackendUnavailable):
        bus.leases()
    assert "leases" in " ".join(one.subject or "" for one in bus.health().findings)
    assert "leases" not in [one.check for one in bus.doctor()]


def test_sound_notes_are_listed_beside_foreign_ones(bus: agentbus.Bus) -> None:
    bus.jot("sound", "value", tags=["t"])
    spoil(bus, "jot:foreign")
    for index in ("jots", "jots_by_tag:t"):
        ask(bus, "ZADD", f"{bus.project}:{index}", 1, "foreign")

    assert [note.key for note in bus.list_()] == ["sound"]
    assert [note.key for note in bus.notes(tags=["t"])] == ["sound"]
    with pytest.raises(BackendUnavailable, match="foreign' is not a hash"):
        bus.recall("foreign")
    spoil(bus, "jots", "jots_by_tag:t")
    assert [note.key for note in bus.list_()] == ["sound"]
    # without the index of a tag, nobody knows which notes have it
    with pytest.raises(BackendUnavailable, match="should be a zset"):
        bus.notes(tags=["t"])


def test_readers_go_on_over_foreign_records_of_readers(bus: agentbus.Bus) -> None:
    bus.speak("a")
    spoil(bus, "agents", "heard")

    assert [message.text for message in bus.overhear()] == ["a"]
    assert [one.agent_id for one in bus.agents()] == ["ada"]
    bus.speak("b")
    spoil(bus, "agents", "heard")
    assert [message.text for message in bus.overhear()] == ["b"]
    spoil(bus, "heard")
    assert [message.text for message in bus.overhear(reset=True)] == ["a", "b"]
    spoil(bus, "last:ada")
    with pytest.raises(agentbus.AgentBusError, match="cursor"):
        list(bus.overhear())


@pytest.mark.parametrize("record", ["agents", "topics", "metrics", "heard"])
def test_views_of_foreign_records_are_empty(bus: agentbus.Bus, record: str) -> None:
    bus.speak("a", topic="t")
    bus.queue("mail").publish(1)
    spoil(bus, record)

    assert len(bus.agents()) == (record != "agents")
    assert len(bus.topics()) == (record != "topics")
    assert bus.metrics() == [] == list(bus.samples())
    assert [one.queue for one in bus.stats()] == ["mail"]


# The in-memory server takes a second.
@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_orders_and_quarantines_are_read_in_pages(bus: agentbus.Bus, url: str) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.pause(wait=0)
    for at in range(0, 12_000, 4_000):
        forged = [word for n in range(at, at + 4_000) for word in (f"agent:x{n}", "{}")]
        ask(bus, "HSET", Keys(bus.project).paused, *forged)
        ask(bus, "HSET", Keys(bus.project).quarantined, *forged)

    assert 9_000 < len(bus.paused()) <= 12_001
    assert 9_000 < sum(one.check == "quarantined" for one in bus.health().findings) <= 12_000
    assert queue.fetch() == []


def test_a_queue_is_tidied_beside_one_with_foreign_keys(bus: agentbus.Bus) -> None:
    at_once = Policies({"*": {"retention": 0.0}}, "test")
    for name in ("a", "b"):
        bus.queue(name).publish_many([1, 2])
        for task in (one for _ in range(2) for one in bus.queue(name).fetch()):
            task.ack()
    spoil(bus, "readers:a", "attempts:a:cancelled", "after:b:of", "attempts:b:default:normal")

    assert [
        (one.queue, one.trimmed) for one in bus._run("tidy", janitor.tidy(bus.scope, None, at_once))
    ] == [("a", 0), ("b", 2)]


@pytest.mark.parametrize(
    "key",
    [
        *("after:mail", "after:mail:of", "after:mail:bodies", "delayed:mail", "order:mail:normal"),
        *("delayed:mail:bodies", "delayed:mail:bell", "dlq:mail:default", "stats:mail", "beat"),
        *("attempts:mail:default:normal", "attempts:mail:default:normal:due", "paused", "after"),
        *("attempts:mail:cancelled", "positions:mail", "q:mail:high", "dlq:mail:default:purged"),
    ],
)
def test_a_queue_with_a_foreign_key_can_be_deleted(bus: agentbus.Bus, key: str) -> None:
    queue = bus.queue("mail")
    queue.publish_many([1, 2])
    assert len(queue.fetch()) == 2
    spoil(bus, key)

    assert queue.delete(force=True).undone == 2
    assert bus.stats() == []


@pytest.mark.parametrize(
    "key",
    [
        *("after:mail", "after:mail:of", "delayed:mail", "delayed:mail:bodies"),
        *(
            "delayed:mail:bell",
            "attempts:mail:default:normal",
            "attempts:mail:default:normal:due",
            "order:mail:normal",
        ),
    ],
)
# On the in-memory server, a blocked read of a stream of another type fails otherwise.
@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_sound_tasks_are_done_beside_a_foreign_key(bus: agentbus.Bus, key: str, url: str) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").publish(2, ordering_key="k")
    spoil(bus, key)
    done: list[object] = []

    def handler(task: Delivery) -> None:
        done.append(task.payload)
        if task.attempt == 1:
            # What is overwritten once a task waits there for its retry is lost.
            spoil(bus, *([key] if len(done) == 1 else []))
            raise ValueError("once more")

    bus.subscribe("mail", handler, drain=True, backoff=Backoff(first=0.001)).run()

    assert sorted(done) == [1, 1, 2, 2]


def test_a_huge_letter_of_another_program_takes_no_others_with_it(bus: agentbus.Bus) -> None:
    queue, letters = bus.queue("mail"), Keys(bus.project).dead_letters("mail", "default")
    queue.publish(1)
    queue.fetch()[0].bury("no")
    first = ask(bus, "XADD", letters, "*", "payload", "2")
    ask(bus, "XADD", letters, "*", *["x", "y"] * 4_500)

    assert queue.purge(first.decode()) == 1
    assert len(queue.dead_letters()) == 2


# Run inside this process, a verb leaves its connection to the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("url", ["valkey"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "record"),
    [
        *(("list --agents", "agents"), ("list --topics", "topics"), ("metrics", "metrics")),
        *(("quarantine list", "quarantined"), ("pause", "paused"), ("agent list", "agents")),
    ],
)
def test_a_view_without_its_record_goes_on_and_names_it(
    bus: agentbus.Bus, verb: str, record: str, url: str
) -> None:
    bus.jot("a", "b")
    spoil(bus, record)

    done = inprocess.run(*verb.split(), "--url", url, "--project", bus.project, "--json")

    assert (done.code, done.out) == (0, b"")
    assert f"the key '{bus.project}:{record}' is a set".encode() in done.err
