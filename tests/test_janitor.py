"""The janitor: it removes what nobody needs any longer, and never anything else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import InvalidName, NotFound, UsageError
from agentbus.queues import janitor
from agentbus.queues.delivery import Delivery
from agentbus.queues.ids import ASIDE
from agentbus.queues.policy import Policies
from agentbus.store.steps import Command
from tests.profiles import times
from tests.servers import ask
from tests.tiers import on_one_store

GROUPS = ("a", "b", "c")
HOUR = 3600.0


def tidy(bus: agentbus.Bus, queue: str = "mail", retention: float = 0.0, **options: Any) -> Any:
    """Tidy one queue, of which nothing is to be kept for its age."""
    policies = Policies({"*": {"retention": retention}}, "test")
    (done,) = bus._run("tidy", janitor.tidy(bus.scope, queue, policies, **options))
    return done


def done(bus: agentbus.Bus, group: str = "default", queue: str = "mail", count: int = 500) -> None:
    """Have a group take tasks and acknowledge them."""
    for delivery in bus.queue(queue).fetch(group=group, count=count):
        delivery.ack()


def kept(bus: agentbus.Bus, queue: str = "mail") -> list[str]:
    """Return the ids of the entries that the queue holds."""
    entries = ask(bus, "XRANGE", bus.scope.keys.queue(queue), "-", "+")
    return [entry[0].decode() for entry in entries]


# -- trimming --


def test_what_every_group_has_done_is_trimmed(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))
    done(bus, "a")
    done(bus, "b", count=3)

    assert tidy(bus).trimmed == 3

    assert len(kept(bus)) == 2
    done(bus, "b")
    assert tidy(bus).trimmed == 2
    assert kept(bus) == []


@pytest.mark.parametrize("held", ["in somebody's hands", "put aside"])
def test_what_is_pending_is_kept_with_all_that_follows(bus: agentbus.Bus, held: str) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(5))
    for delivery in queue.fetch():
        if delivery.payload != 2:
            delivery.ack()
        elif held == "put aside":
            delivery.retry(HOUR)

    assert tidy(bus).trimmed == 2

    assert len(kept(bus)) == 3


def test_without_a_group_nothing_is_trimmed(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))

    assert tidy(bus).trimmed == 0

    assert len(kept(bus)) == 5


def test_what_is_done_is_kept_for_the_retention(bus: agentbus.Bus) -> None:
    # given a task of long ago and one of now, both done
    ask(bus, "XADD", bus.scope.keys.queue("mail"), "1000-0", "payload", "1")
    bus.queue("mail").publish(2)
    done(bus)

    assert tidy(bus, retention=HOUR).trimmed == 1

    assert kept(bus) != ["1000-0"]
    assert len(kept(bus)) == 1


def test_a_day_is_kept_unless_told_otherwise(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))
    done(bus)

    assert bus.tidy() == [janitor.Tidied("mail", 0, 0, 0)]

    assert bus.queue("mail").replay_from(0).tasks == 5


def test_all_priorities_are_trimmed(bus: agentbus.Bus) -> None:
    for priority in agentbus.Priority:
        bus.queue("mail").publish(1, priority=priority)
    done(bus)

    assert tidy(bus).trimmed == 4


@on_one_store
def test_more_is_trimmed_than_one_step_takes(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "_TRIMMED", 300)
    bus.queue("mail").publish_many(range(1001))
    for _ in range(3):
        done(bus)

    assert tidy(bus, dry_run=True).trimmed == 1001
    assert tidy(bus).trimmed == 1001


def test_what_another_reader_needs_is_kept(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = [task.partition("@")[0] for task in queue.publish_many(range(5))]
    done(bus)
    bus._run("keep", janitor.keep(bus.scope, "archive", "mail", "normal", ids[3]))
    bus._run("keep", janitor.keep(bus.scope, "other", "mail", "normal", ids[1]))

    assert tidy(bus).trimmed == 1
    bus._run("keep", janitor.keep(bus.scope, "other", "mail", "normal", None))
    assert tidy(bus).trimmed == 2
    bus._run("keep", janitor.keep(bus.scope, "archive", "mail", "normal", None))
    assert tidy(bus).trimmed == 2


def test_a_readers_place_that_is_no_id_keeps_everything(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))
    done(bus)
    ask(bus, "HSET", bus.scope.keys.readers("mail"), "archive", "nonsense")

    assert tidy(bus).trimmed == 0


@pytest.mark.parametrize("place", ["", "x", "1-x", "-"])
def test_a_reader_keeps_from_an_id_only(bus: agentbus.Bus, place: str) -> None:
    with pytest.raises(UsageError):
        bus._run("keep", janitor.keep(bus.scope, "archive", "mail", "normal", place))
    with pytest.raises(InvalidName):
        bus._run("keep", janitor.keep(bus.scope, "", "mail", "normal", "1-1"))


def test_a_dry_run_changes_nothing(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))
    done(bus)
    ask(bus, "HSET", bus.scope.keys.attempts("mail", "default", "normal"), "1-1", "2")

    first = tidy(bus, dry_run=True, dead_after=0.0)

    assert first == tidy(bus, dry_run=True, dead_after=0.0)
    assert (first.trimmed, first.consumers > 0, first.leftovers) == (5, True, 1)
    assert len(kept(bus)) == 5


# -- dead consumers --


def consumers(bus: agentbus.Bus, group: str = "default") -> set[bytes]:
    """Return the names of a group's consumers."""
    found = ask(bus, "XINFO", "CONSUMERS", bus.scope.keys.queue("mail"), group)
    return {dict(zip(flat[::2], flat[1::2], strict=True))[b"name"] for flat in found}


def test_consumers_that_hold_nothing_and_are_silent_are_deleted(bus: agentbus.Bus) -> None:
    # given a consumer that holds a task, one that holds none, and what is put aside
    stream = bus.scope.keys.queue("mail")
    bus.queue("mail").publish_many(range(2))
    holding, aside = bus.queue("mail").fetch()
    aside.retry(0.0)
    ask(bus, "XGROUP", "CREATECONSUMER", stream, "default", "idle")
    before = consumers(bus)

    assert tidy(bus, dead_after=HOUR).consumers == 0
    tidy(bus, dead_after=0.0)

    assert consumers(bus) == before - {b"idle"}
    assert holding.ack()


def test_the_one_that_holds_what_was_put_aside_stays(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()
    delivery.retry(0.0)
    done(bus)

    tidy(bus, dead_after=0.0)

    assert consumers(bus) == {ASIDE.encode()}


# -- leftovers --


def test_notes_on_what_is_gone_are_forgotten(bus: agentbus.Bus) -> None:
    # given a task put aside, a letter that was replayed, and notes on entries that are gone
    keys, queue = bus.scope.keys, bus.queue("mail")
    queue.publish_many(range(2))
    first, second = queue.fetch()
    first.retry(HOUR)
    second.bury("broken")
    (letter,) = queue.dead_letters()
    queue.replay(letter.id)
    attempts = keys.attempts("mail", "default", "normal")
    retries = keys.retries("mail", "default", "normal")
    ask(bus, "HSET", attempts, "1-1", "2")
    ask(bus, "ZADD", retries, "0", "1-1")
    ask(bus, "HSET", keys.replayed("mail", "default"), "1-1", "2-2@mail")
    ask(bus, "SADD", keys.purged("mail", "default"), "1-1")

    assert tidy(bus).leftovers == 4

    assert ask(bus, "HLEN", attempts) == ask(bus, "ZCARD", retries) == 1
    assert ask(bus, "HLEN", keys.replayed("mail", "default")) == 1
    assert ask(bus, "EXISTS", keys.purged("mail", "default")) == 0
    assert tidy(bus).leftovers == 0


def test_the_visibility_of_a_consumer_is_forgotten_with_it(bus: agentbus.Bus) -> None:
    key = bus.scope.keys.visibilities("mail", "default")
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch(visibility=60)
    (present,) = ask(bus, "HKEYS", key)
    ask(bus, "HSET", key, "gone", "60000")

    assert tidy(bus, dry_run=True).leftovers == 1
    tidy(bus)

    assert ask(bus, "HGETALL", key) == [present, b"60000"]


def test_a_queue_that_is_gone_is_forgotten(bus: agentbus.Bus, project: str) -> None:
    bus.queue("mail").publish(1)
    bus.queue("gone").publish(1)
    bus.queue("later").publish(1, delay=HOUR)
    ask(bus, "DEL", Keys(project).queue("gone"))

    bus.tidy()

    assert set(ask(bus, "ZRANGE", Keys(project).queues, 0, -1)) == {b"later", b"mail"}


def test_keys_of_other_kinds_and_names_that_are_no_text_are_left_alone(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    ask(bus, "XGROUP", "CREATE", bus.scope.keys.queue("mail"), b"\xff:*", "0")
    ask(bus, "SET", bus.scope.keys.queue("text"), "theirs")

    tidied = bus.tidy()

    assert [one.queue for one in tidied] == ["mail", "text"]
    assert ask(bus, "GET", bus.scope.keys.queue("text")) == b"theirs"


def test_results_and_dedup_keys_end_by_themselves(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, key="k")
    for delivery in bus.queue("mail").fetch():
        delivery.ack("result")

    for key in (bus.scope.keys.result(task), bus.scope.keys.seen("mail", "k")):
        assert ask(bus, "TTL", key) > 0


def test_a_queue_that_is_not_there_is_an_error(bus: agentbus.Bus) -> None:
    with pytest.raises(NotFound):
        bus.tidy("mail")
    assert bus.tidy() == []


def test_one_queue_is_tidied_alone(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.queue("other").publish(1)

    assert [one.queue for one in bus.tidy("mail")] == ["mail"]
    assert [one.queue for one in bus.tidy()] == ["mail", "other"]


# -- the chore --


def steps(bus: agentbus.Bus, chore: janitor.Janitor) -> list[str]:
    """Run a chore once, and return what it asked the server for."""
    asked: list[str] = []

    def watched() -> Any:
        op, reply = chore.op(), None
        while True:
            try:
                step = op.send(reply)
            except StopIteration:
                return
            asked.append(step.label)
            reply = yield step

    bus._run("chore", watched())
    return asked


def test_one_worker_of_many_tidies_and_no_other_for_a_minute(bus: agentbus.Bus) -> None:
    ask(bus, "XADD", bus.scope.keys.queue("mail"), "1000-0", "payload", "1")
    bus.queue("mail").publish(2)
    done(bus)
    first, second = janitor.Janitor(bus.scope), janitor.Janitor(bus.scope)

    assert "trim_stream" in steps(bus, first)
    assert steps(bus, second) == ["SET"]
    assert steps(bus, first) == steps(bus, second) == []

    assert len(kept(bus)) == 1
    assert 0 < ask(bus, "PTTL", bus.scope.keys.tidied("trim")) <= 60_000


@on_one_store
def test_the_chore_does_a_bounded_part_at_a_time_and_goes_on(bus: agentbus.Bus) -> None:
    for number in range(40):
        name = f"q{number}"
        ask(bus, "XADD", bus.scope.keys.queue(name), "1000-0", "payload", "1")
        bus.queue(name).publish(2)
        done(bus, queue=name)
    chore = janitor.Janitor(bus.scope)

    calls = [len(part) for part in iter(lambda: steps(bus, chore), [])]

    assert len(calls) > 2
    assert max(calls) <= 50
    assert all(len(kept(bus, f"q{number}")) == 1 for number in range(40))


def test_a_chore_that_failed_starts_anew(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    done(bus)
    chore = janitor.Janitor(bus.scope)
    op = chore.op()
    assert isinstance(next(op), Command)
    with pytest.raises(NotFound):
        op.throw(NotFound("the server is away"))

    assert steps(bus, chore) == []


# -- never what is needed --

_numbers = itertools.count()
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4), st.just("")),
        st.tuples(st.just("fetch"), st.integers(1, 4), st.sampled_from(GROUPS)),
        st.tuples(
            st.sampled_from(["ack", "retry", "bury"]), st.integers(0, 9), st.sampled_from(GROUPS)
        ),
        st.tuples(st.just("replay"), st.integers(1, 4), st.sampled_from(GROUPS)),
        st.tuples(st.just("tidy"), st.just(0), st.just("")),
    ),
    min_size=5,
    max_size=40,
)


@on_one_store
@settings(
    times(1), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(operations=_OPERATIONS)
def test_nothing_that_a_group_still_needs_is_ever_removed(
    bus: agentbus.Bus, operations: list[tuple[str, int, str]]
) -> None:
    name = f"q{next(_numbers)}"
    queue = bus.queue(name)
    needed: dict[str, set[str]] = {group: set() for group in GROUPS}
    hands: dict[str, list[Delivery]] = {group: [] for group in GROUPS}
    published: list[str] = []
    for group in GROUPS:
        queue.fetch(group=group)
    for what, number, group in [*operations, ("tidy", 0, "")]:
        if what == "publish":
            published += queue.publish_many(range(number))
            for ids in needed.values():
                ids.update(published[-number:])
        elif what == "fetch":
            hands[group] += queue.fetch(group=group, count=number)
        elif what == "replay" and published:
            left = [one for one in kept(bus, name) if f"{one}@{name}" not in needed[group]]
            again = queue.replay_from(published[0], group=group, limit=number).tasks
            needed[group].update(f"{one}@{name}" for one in left[:again])
        elif what == "tidy":
            tidy(bus, name, dead_after=0.0)
            there = {f"{one}@{name}" for one in kept(bus, name)}
            assert set().union(*needed.values()) <= there
        elif hands[group] and what != "replay":
            delivery = hands[group].pop(number % len(hands[group]))
            if what == "retry":
                assert delivery.retry(0.0)
            else:
                assert delivery.ack() if what == "ack" else delivery.bury("broken")
                needed[group].discard(delivery.id)

    # In the end nothing is kept that nobody needs.
    for group in GROUPS:
        for delivery in hands[group]:
            assert delivery.ack()
        while got := queue.fetch(group=group, count=100):
            assert all(delivery.ack() for delivery in got)
    tidy(bus, name)
    assert kept(bus, name) == []
