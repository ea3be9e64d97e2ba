"""Metrics: what workers count is told once, costs little, and adds up to rates and percentiles."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.admin import metrics_reader
from agentbus.core.keys import Keys
from agentbus.errors import BackendUnavailable, NotFound, OutcomeUnknown, UsageError
from agentbus.store.operation import attempt
from agentbus.store.scope import server_time
from agentbus.store.steps import LinkDown, Script, ServerReply
from agentbus.store.verb import Patient
from agentbus.workers.metrics import BOUNDS, HEARTBEAT, Histogram, Tally, bucket
from tests.conftest import Connect
from tests.servers import ask
from tests.source_tree import PACKAGE

# Fields of an entry that has counts.
COUNTED = {"received", "processed", "waited"}
durations = st.floats(0, 10_000, allow_nan=False)


def tally(
    bus: agentbus.Bus, queue: str = "mail", group: str = "default", worker: str = "w1"
) -> Tally:
    return Tally(bus.scope, queue, group, worker)


def flush(bus: agentbus.Bus, counted: Tally) -> bool:
    return bus._run("flush", counted.flush())


def entries(bus: agentbus.Bus) -> list[dict[str, str]]:
    found = ask(bus, "XRANGE", bus.scope.keys.metrics, "-", "+")
    return [
        {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
        for _, flat in found
    ]


def counters(bus: agentbus.Bus, key: str) -> dict[str, int]:
    flat = ask(bus, "HGETALL", key)
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


# -- histograms --


def test_the_buckets_double_from_a_millisecond_to_beyond_an_hour() -> None:
    assert BOUNDS[0] == 0.001
    assert all(high == 2 * low for low, high in itertools.pairwise(BOUNDS))
    assert BOUNDS[-2] < 3600 <= BOUNDS[-1]


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        *((0.0, 0), (0.000_01, 0), (0.001, 0), (0.001_1, 1), (0.002, 1), (1.024, 10)),
        *((1.025, 11), (BOUNDS[-1], 22), (BOUNDS[-1] + 1, 23), (1e9, 23)),
    ],
)
def test_a_duration_falls_into_the_bucket_that_its_bound_ends(seconds: float, number: int) -> None:
    assert bucket(seconds) == number


@given(durations)
def test_every_duration_lies_between_the_bounds_of_its_bucket(seconds: float) -> None:
    number = bucket(seconds)

    assert number == 0 or seconds > BOUNDS[number - 1]
    assert number == len(BOUNDS) or seconds <= BOUNDS[number]


@given(st.lists(durations, min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_right_within_a_factor_of_two(found: list[float], share: float) -> None:
    histogram = Histogram()
    for seconds in found:
        histogram.add(1, seconds)
    ranked = sorted(found)
    rank = next(n for n in range(1, len(ranked) + 1) if n >= share * len(ranked))

    said = histogram.percentile(share)

    true = ranked[rank - 1]
    number = bucket(true)
    assert said >= (BOUNDS[number - 1] if number else 0.0)
    assert said <= BOUNDS[min(number, len(BOUNDS) - 1)]


@given(st.lists(durations), st.lists(durations))
def test_two_histograms_add_up_to_one_of_all(first: list[float], second: list[float]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for found, histogram in ((first, one), (second, other)):
        for seconds in found:
            histogram.add(1, seconds)
            both.add(1, seconds)

    one.merge(other.trimmed(), other.total)

    assert one.buckets == both.buckets
    assert one.total == pytest.approx(both.total)


def test_nothing_has_no_durations() -> None:
    assert Histogram().durations() is None


# -- telling --


def test_a_flush_writes_one_entry_with_all_that_was_counted(
    bus: agentbus.Bus, project: str
) -> None:
    counted = tally(bus)
    counted.note("received", 500)
    counted.note("processed", 499)
    counted.note("failed")
    counted.count_runs(500, 0.003)
    counted.count_waits(500, 0.5)

    assert flush(bus, counted)

    (entry,) = entries(bus)
    assert 0 < int(entry.pop("from")) <= int(entry.pop("to"))
    assert entry == {
        "kind": "work",
        "version": "1",
        "queue": "mail",
        "group": "default",
        "worker": "w1",
        "agent": "ada",
        "received": "500",
        "processed": "499",
        "failed": "1",
        "ran": "[0,0,500]",
        "busy_ms": "1500.000",
        "waited": "[0,0,0,0,0,0,0,0,0,500]",
        "waited_ms": "250000.000",
    }


def test_only_what_no_script_counts_is_added_to_the_queues_counters(
    bus: agentbus.Bus, project: str
) -> None:
    queue, keys, counted = bus.queue("mail"), Keys(project), tally(bus)
    queue.publish(1)
    (delivery,) = queue.fetch()
    delivery.ack()
    counted.note("received")
    counted.note("processed")
    counted.count_runs(1, 0.25)

    flush(bus, counted)

    of_queue = counters(bus, keys.stats("mail"))
    # The time from the fetch to the acknowledgement, not the 250 ms.
    assert of_queue.pop("busy_ms") < 250
    assert of_queue == {"published": 1, "processed": 1, "received": 1}
    of_group = counters(bus, keys.worked("mail", "default"))
    assert of_group == {"received": 1, "processed": 1, "busy_ms": 250}


def test_with_nothing_to_say_nothing_is_written(bus: agentbus.Bus, project: str) -> None:
    counted = tally(bus)
    counted.note("received", 0)

    assert not flush(bus, counted)
    counted.note("received")
    assert flush(bus, counted)
    assert not flush(bus, counted)

    assert len(entries(bus)) == 1


def test_a_worker_that_holds_a_task_for_long_writes_a_heartbeat(bus: agentbus.Bus) -> None:
    clock, held = [0.0], ["a task"]
    bus.scope.monotonic = lambda: clock[0]
    counted = Tally(bus.scope, "mail", "default", "w1", lambda: held)

    written = []
    for second in range(0, 4 * round(HEARTBEAT), 10):
        clock[0] = float(second)
        if second == 3 * HEARTBEAT:
            held.clear()
        if flush(bus, counted):
            written.append(second)

    assert written == [HEARTBEAT, 2 * HEARTBEAT]
    assert {one["worker"] for one in entries(bus)} == {"w1"}
    (found,) = bus.metrics()
    assert (found.workers, found.counts, found.running) == (1, {}, None)


def test_a_worker_writes_heartbeats_while_its_handler_runs(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.workers.metrics.HEARTBEAT", 0.0)
    bus.queue("mail").publish(1)

    def handler(_task: agentbus.Delivery) -> None:
        while not [one for one in entries(bus) if not COUNTED & one.keys()]:
            threading.Event().wait(0.02)

    assert bus.subscribe("mail", handler, count=1).run() == 1


def test_threads_may_count_at_the_same_time(bus: agentbus.Bus, project: str) -> None:
    counted = tally(bus)
    start = threading.Barrier(8)

    def count() -> None:
        start.wait(30)
        for _ in range(1000):
            counted.note("received")
            counted.count_runs(1, 0.0)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        flush(bus, counted)
    for thread in threads:
        thread.join(30)
    flush(bus, counted)

    assert counters(bus, Keys(project).worked("mail", "default"))["received"] == 8000
    assert sum(int(entry["received"]) for entry in entries(bus)) == 8000


def test_a_tally_is_a_workers_chore(bus: agentbus.Bus) -> None:
    with bus.subscribe("mail", print) as worker:
        (chore,) = (one for one in worker.chores if one.op == worker.tally.flush)
        worker.tally.note("received")

        bus._run("chore", chore.op())

    assert chore.every == 1.0
    assert len(entries(bus)) == 1


def test_groups_and_queues_are_counted_apart(bus: agentbus.Bus, project: str) -> None:
    for queue, group in (("a", "b:c"), ("a:b", "c"), ("a", "b")):
        counted = tally(bus, queue, group)
        counted.note("received")
        flush(bus, counted)

    for queue, group in (("a", "b:c"), ("a:b", "c"), ("a", "b")):
        assert counters(bus, Keys(project).worked(queue, group)) == {"received": 1}


class Lossy:
    """Runs an operation against a bus's server; answers to the first sendings are lost."""

    def __init__(self, bus: agentbus.Bus, lost: int, *, arrives: bool) -> None:
        self.link = bus.runner.link
        self.lost, self.arrives = lost, arrives

    def run(self, op: Any) -> Any:
        whole = attempt(op, where="the server", deadline=0.0)
        try:
            step = next(whole)
            while True:
                step.within = 5.0
                if isinstance(step, Script) and self.lost:
                    self.lost -= 1
                    if self.arrives:
                        self.link.execute(step)
                    step = whole.throw(LinkDown("gone", sent=self.arrives))
                    continue
                try:
                    step = whole.send(self.link.execute(step))
                except ServerReply as failure:
                    step = whole.throw(failure)
        except StopIteration as ended:
            return ended.value


def test_a_flush_whose_answer_was_lost_is_counted_once(bus: agentbus.Bus, project: str) -> None:
    # given a flush that reached the server twice, and no answer that came back
    counted, link = tally(bus), Lossy(bus, 2, arrives=True)
    counted.note("received", 3)
    with pytest.raises(OutcomeUnknown):
        link.run(counted.flush())

    # when more is counted, and told later
    counted.note("received", 4)
    assert link.run(counted.flush())

    # then each number is there once
    assert [entry["received"] for entry in entries(bus)] == ["3", "4"]
    assert counters(bus, Keys(project).worked("mail", "default")) == {"received": 7}
    assert counters(bus, Keys(project).stats("mail")) == {"received": 7}


def test_a_flush_that_never_arrived_is_told_with_the_next(bus: agentbus.Bus, project: str) -> None:
    counted, link = tally(bus), Lossy(bus, 1, arrives=False)
    counted.note("received", 3)
    counted.count_runs(3, 0.5)
    with pytest.raises(BackendUnavailable):
        link.run(counted.flush())

    counted.note("received", 4)
    assert link.run(counted.flush())

    (entry,) = entries(bus)
    assert (entry["received"], entry["busy_ms"]) == ("7", "1500.000")


def test_what_may_have_been_counted_too_long_ago_is_not_counted_again(
    bus: agentbus.Bus, project: str
) -> None:
    counted, link = tally(bus), Lossy(bus, 2, arrives=True)
    clock = [0.0]
    bus.scope.monotonic = lambda: clock[0]
    counted.note("received", 3)
    with pytest.raises(OutcomeUnknown):
        link.run(counted.flush())

    # when the server may have forgotten that it knows it
    clock[0] = 300.0
    assert not link.run(counted.flush())

    assert len(entries(bus)) == 1


def test_a_flush_while_another_one_runs_does_nothing(bus: agentbus.Bus) -> None:
    counted = tally(bus)
    counted.note("received")
    under_way = counted.flush()
    next(under_way)

    assert not flush(bus, counted)

    under_way.close()
    assert flush(bus, counted)


def test_a_spoilt_stream_or_counter_is_told_and_counts_nothing_twice(
    bus: agentbus.Bus, project: str
) -> None:
    keys, counted = Keys(project), tally(bus)
    ask(bus, "SET", keys.metrics, "theirs")
    counted.note("received")
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            flush(bus, counted)
    ask(bus, "DEL", keys.metrics)
    ask(bus, "HSET", keys.stats("mail"), "received", "theirs")

    assert flush(bus, counted)

    assert [entry["received"] for entry in entries(bus)] == ["1"]
    assert counters(bus, keys.worked("mail", "default")) == {"received": 1}


def test_ages_follow_the_servers_clock_once_it_is_known(bus: agentbus.Bus) -> None:
    counted = tally(bus)
    bus.scope.now = lambda: 1_000.0
    counted.note("received")
    flush(bus, counted)
    ((entry_id, _),) = ask(bus, "XRANGE", bus.scope.keys.metrics, "-", "+")

    bus.runner.run(server_time(bus.scope))

    assert counted.age(entry_id) == pytest.approx(0.0, abs=5.0)
    assert counted.age(b"0-1") > 1_000_000


# -- refusals --


def refuse(bus: agentbus.Bus, number: int) -> None:
    """Do what a script does that refuses tasks."""
    keys = bus.scope.keys
    library = (PACKAGE / "store/lua/lib/count_refused.lua").read_text()
    script = f"{library}\ncount_refused(KEYS[1], KEYS[2], 1000, ARGV[1], ARGV[2])"
    ask(bus, "EVAL", script, 2, keys.metrics, keys.stats("mail"), "mail", number)


def test_refusals_are_counted_at_once_and_told_at_most_once_a_second(
    bus: agentbus.Bus, project: str
) -> None:
    stats = Keys(project).stats("mail")
    refuse(bus, 2)
    ask(bus, "HINCRBY", stats, "refused_at", 1000_000)
    refuse(bus, 3)
    refuse(bus, 4)

    assert [entry["refused"] for entry in entries(bus)] == ["2"]
    assert counters(bus, stats)["refused"] == 9

    # when the second is over
    ask(bus, "HSET", stats, "refused_at", 0)
    refuse(bus, 1)
    assert [entry["refused"] for entry in entries(bus)] == ["2", "8"]


def test_a_refusal_is_counted_even_if_it_cannot_be_told(bus: agentbus.Bus, project: str) -> None:
    ask(bus, "SET", Keys(project).metrics, "theirs")

    refuse(bus, 2)

    assert counters(bus, Keys(project).stats("mail"))["refused"] == 2


def test_a_workers_flush_tells_refusals_that_nobody_told(bus: agentbus.Bus, project: str) -> None:
    refuse(bus, 2)
    refuse(bus, 3)
    counted = tally(bus)
    counted.note("received")

    flush(bus, counted)

    assert sum(int(entry.get("refused", 0)) for entry in entries(bus)) == 5
    refusal, worked = bus.metrics()
    assert (refusal.group, refusal.counts) == (None, {"refused": 5})
    assert (worked.group, worked.counts) == ("default", {"received": 1})


# -- sums --


def test_metrics_are_the_sums_of_all_workers_by_queue_and_group(
    bus: agentbus.Bus, project: str
) -> None:
    for worker in ("w1", "w2"):
        for _ in range(2):
            counted = tally(bus, worker=worker)
            counted.note("processed", 3)
            counted.note("dead", 1)
            counted.note("failed", 5)
            counted.count_runs(8, 0.1)
            flush(bus, counted)
    other = tally(bus, "other")
    other.note("received")
    flush(bus, other)

    found = bus.metrics()

    mail = found[0]
    assert [(one.queue, one.group) for one in found] == [("mail", "default"), ("other", "default")]
    assert mail.counts == {"processed": 12, "dead": 4, "failed": 20}
    assert (mail.workers, mail.attempts) == (2, 2.0)
    assert mail.rate == pytest.approx(12 / mail.seconds)
    assert mail.busy == pytest.approx(3.2 / mail.seconds)
    assert mail.running is not None
    assert mail.running.count == 32
    assert mail.running.mean == pytest.approx(0.1)
    assert 0.05 <= mail.running.p50 <= mail.running.p95 <= mail.running.p99 <= 0.2
    assert mail.waiting is None
    assert (
        bus.metrics(queue="other") == [found[1]] or bus.metrics(queue="other")[0].queue == "other"
    )


def test_metrics_of_a_queue_that_is_not_there_are_not_found(bus):
    bus.queue("mail").publish(1)
    bus.queue("post").publish(1, delay=600)

    assert bus.metrics(queue="mail") == bus.metrics(queue="post") == []
    assert list(bus.samples(queue="mail")) == []
    for ask_for in (bus.metrics, lambda queue: list(bus.samples(queue=queue))):
        with pytest.raises(NotFound, match="there is no queue 'mial'") as missing:
            ask_for(queue="mial")
        assert "the nearest there: 'mail', 'post'" in missing.value.hint


def test_metrics_count_from_the_time_that_was_asked_for(bus: agentbus.Bus, project: str) -> None:
    key = Keys(project).metrics
    old = ("kind", "work", "version", "1", "queue", "mail", "group", "g", "received", "5")
    ask(bus, "XADD", key, "1000-1", *old)
    counted = tally(bus, group="g")
    counted.note("received")
    flush(bus, counted)

    assert [one.counts for one in bus.metrics(since="1h")] == [{"received": 1}]
    assert [one.counts for one in bus.metrics(since="0")] == [{"received": 6}]
    assert [one.counts for one in bus.metrics(since="1000-1")] == [{"received": 1}]
    with pytest.raises(UsageError):
        bus.metrics(since="yesterday")


@pytest.mark.parametrize(
    "entry",
    [
        ("x", "y"),
        ("queue", ""),
        ("queue", "mail", "received", "many", "ran", "{", "waited", '{"a": 1}', "busy_ms", "nan"),
        ("queue", "mail", "ran", "[-1]", "waited", '["x"]', "from", "²", "to", "1.²"),
        (b"\xff", b"\xff", "queue", b"\xff"),
        ("queue", "mail", "ran", "[" * 2000, "received", "9" * 40),
    ],
)
def test_an_entry_of_another_program_spoils_nothing(
    bus: agentbus.Bus, project: str, entry: tuple[str | bytes, ...]
) -> None:
    ask(bus, "XADD", Keys(project).metrics, "*", *entry)
    counted = tally(bus, "zz")
    counted.note("received")
    flush(bus, counted)

    assert bus.metrics()[-1].counts == {"received": 1}
    assert list(bus._iterate("metrics", Patient(metrics_reader.each(bus.scope), 0.0)))


def test_more_entries_than_one_page_are_all_read(bus: agentbus.Bus, project: str) -> None:
    key = Keys(project).metrics
    for number in range(2100):
        ask(bus, "XADD", key, "*", "queue", "mail", "group", "g", "worker", number, "received", 1)

    (found,) = bus.metrics()

    assert (found.counts, found.workers) == ({"received": 2100}, 2100)
    read = list(bus._iterate("metrics", Patient(metrics_reader.each(bus.scope), 0.0)))
    assert len(read) == 2100


def test_those_who_follow_get_what_comes_later(connect: Connect) -> None:
    bus, got = connect(), threading.Event()

    def follow() -> None:
        op = metrics_reader.each(bus.scope, queue="mail", follow=True)
        for sample in bus._iterate("metrics", Patient(op, 60.0)):
            assert sample.counts == {"received": 2}
            got.set()
            return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    other = connect()
    # Told until it was heard, so that nothing hangs on who comes first.
    while not got.wait(0.02):
        counted = tally(other)
        counted.note("received", 2)
        flush(other, counted)
    thread.join(30)


def test_metrics_and_counters_are_cleared_with_the_project(bus: agentbus.Bus) -> None:
    counted = tally(bus)
    counted.note("received")
    flush(bus, counted)

    counts = bus.clear()

    assert (counts["metrics"], counts["stats"]) == (1, 2)
    assert bus.clear(dry_run=True) == {}
