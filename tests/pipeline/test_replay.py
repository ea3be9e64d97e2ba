"""Replay: what an archive holds is published anew, each entry once, whatever is killed."""

from __future__ import annotations

import base64
import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentbus import errors
from agentbus.pipeline.replays import selection
from agentbus.pipeline.replays.replay import replay
from tests.pipeline.archives import row
from tests.pipeline.replaying import DAY, Bench, check, many, marks, queue_rows
from tests.servers import Server


@pytest.fixture
def bench(spark, valkey: Server, project: str, tmp_path: pathlib.Path) -> Bench:
    return Bench(spark, valkey, project, tmp_path)


def test_tasks_go_back_to_the_queues_and_priorities_that_they_came_from(bench):
    mail = queue_rows("q:mail", range(9), agent="ada")
    high = queue_rows("q:mail:high", range(4))
    odd = queue_rows("q:a%3Ab", range(2), queue="a:b")
    bench.hold([*mail, *high, *odd, row("metrics", f"{DAY}-0"), row("ch:main", f"{DAY}-0")])

    done = bench.run()

    assert (done.rows, done.published, done.skipped) == (15, 15, 0)
    assert bench.origins("mail") == marks(*mail)
    assert bench.origins("mail", "high") == marks(*high)
    assert bench.origins("a:b") == marks(*odd)
    assert {one.get("agent_id") for one in bench.entries("mail")} == {"ada"}
    assert {one.get("agent_id") for one in bench.entries("mail", "high")} == {None}
    assert [(one.stream, one.target, one.priority, one.rows) for one in done.streams] == [
        ("q:a%3Ab", "a:b", "normal", 2),
        ("q:mail", "mail", "normal", 9),
        ("q:mail:high", "mail", "high", 4),
    ]
    # What is finished is finished, whatever is archived since.
    bench.hold(queue_rows("q:mail", range(9, 12)))
    again = bench.run()
    assert (again.id, again.published, again.skipped) == (done.id, 0, 15)
    assert again.finished is not None
    assert len(bench.entries("mail")) == 9


def test_an_archive_adds_nothing_to_a_queue_of_the_bus_itself(bench):
    own = [
        row("q:~webhooks", f"{DAY}-0", queue="~webhooks", payload='{"url":"https://a/","body":1}'),
        # What an entry says of its queue goes before the stream's name.
        row("q:mail", f"{DAY}-0", queue="~webhooks", payload='{"url":"https://a/","body":2}'),
        row("q:~webhooks:high", f"{DAY}-0", payload='{"url":"https://a/","body":3}'),
    ]
    mail = queue_rows("q:mail", range(1, 3))
    bench.hold([*own, *mail])

    done = bench.run()

    assert (done.rows, done.published) == (2, 2)
    assert bench.origins("mail") == marks(*mail)
    assert bench.entries("~webhooks") == bench.entries("~webhooks", "high") == []


@pytest.mark.parametrize(
    "wanted",
    [
        selection.Wanted(queue="~webhooks"),
        selection.Wanted(streams=("q:~webhooks",)),
        selection.Wanted(streams=("q:mail", "q:~webhooks:high")),
        selection.Wanted(streams=("dlq:~webhooks:default",)),
    ],
)
def test_a_replay_to_a_queue_of_the_bus_itself_is_refused(wanted):
    with pytest.raises(errors.InvalidName, match="belongs to the bus itself"):
        selection.check(wanted)


def test_all_kinds_of_entries_are_put_into_one_queue(bench):
    raw = base64.b64encode(b"\xff\xfe").decode()
    told = {"error": "boom", "group": "default", "meta": '{"reply_to":"r","topic":"t"}'}
    bench.hold(
        [
            row("q:mail:low", f"{DAY}-0", fields={"payload:base64": raw}),
            row("dlq:mail:default", f"{DAY}-0", queue="mail", payload="1", fields=told),
            row(
                "dlq:mail:default",
                f"{DAY}-1",
                queue="mail",
                payload="2",
                fields={"priority": "critical", "error": "boom"},
            ),
            # A tombstone: there is no task in it.
            row("dlq:mail:default", f"{DAY}-2", queue="mail", fields={"error": "lost"}),
            row("ch:main", f"{DAY}-0", agent="ada", topic="build", payload='"green"'),
            row("dlq:other:default", f"{DAY}-0", queue="other", payload="3"),
        ]
    )

    done = bench.run(queue="all", streams=["q:mail:low", "dlq:mail:default", "ch:main"])

    low = bench.server.ask("XRANGE", bench.keys.queue("all", "low"), "-", "+")[0][1]
    assert low[:2] == [b"payload", b"\xff\xfe"]
    assert [one["payload"] for one in bench.entries("all", "critical")] == ["2"]
    normal = {one["meta"]["replayed_from"].split()[0]: one for one in bench.entries("all")}
    assert normal["dlq:mail:default"] == {
        "payload": "1",
        "meta": {"topic": "t", "replayed_from": f"dlq:mail:default {DAY}-0"},
    }
    assert json.loads(normal["ch:main"]["payload"])["message"] == "green"
    assert done.published == 4


def test_messages_are_said_on_the_channel_again(bench):
    said = [row("ch:main", f"{DAY + n}-0", agent="ada", payload=f'"{n}"') for n in range(5)]
    bench.hold([*said, *queue_rows("q:mail", range(3))])

    bench.run(channel=True)

    assert [one["replayed_from"] for one in bench.said()] == marks(*said)
    assert [one["message"] for one in bench.said()] == ["0", "1", "2", "3", "4"]
    assert bench.entries("mail") == []


def test_only_what_is_wanted_is_replayed(bench):
    rows = queue_rows("q:mail", range(30), agent="ada")
    bench.hold([*rows, *queue_rows("q:other", range(30))])
    start, end = rows[4]["id"], rows[22]["id"]
    where = "cast(get_json_object(payload, '$.n') as int) % 2 = 0 and id not like '%select%'"

    tried = bench.run(
        queue="to", streams=["q:mail"], start=start, end=end, where=where, dry_run=True
    )
    assert bench.server.ask("KEYS", f"{bench.project}:*") == []
    done = bench.run(queue="to", streams=["q:mail"], start=start, end=end, where=where)

    wanted = marks(*rows[4:23:2])
    assert bench.origins("to") == wanted
    assert {one["agent_id"] for one in bench.entries("to")} == {"ada"}
    (found,) = tried.streams
    assert tried.dry_run
    assert tried.published == 0
    assert (tried.id, tried.rows, tried.streams) == (done.id, done.rows, done.streams)
    assert (found.first, found.last) == (rows[4]["id"], rows[22]["id"])


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("topic = ", "cannot be used: Syntax error at or near end of input"),
        ("topc = 'x'", "`topc` cannot be resolved. Did you mean"),
        ("topic", "is not a boolean"),
        ("count(*) > 1", "cannot be used: The WHERE condition"),
        ("topic in (select topic from x)", "holds a query"),
        ("exists(from x)", "holds a query"),
        ("rand() < 0.5", "another answer each time"),
        ("time > current_timestamp - interval 1 day", "another answer each time"),
        ("cast(stream as int) = 1", "fails for a row"),
    ],
)
def test_a_condition_that_is_none_is_a_usage_error(bench, where, told):
    bench.hold(queue_rows("q:mail", range(3)))

    with pytest.raises(errors.UsageError) as refusal:
        bench.run(where=where)

    assert told in str(refusal.value)
    assert "SQLSTATE" not in refusal.value.message
    assert "\n" not in refusal.value.message
    assert bench.server.ask("KEYS", f"{bench.project}:*") == []


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"streams": ["metrics"]}, "not a stream that can be replayed"),
        ({"streams": ["q:mail:loud"]}, "not a stream that can be replayed"),
        ({"streams": ["ch:main"]}, "came from no queue"),
        ({"streams": ["q:mail"], "channel": True}, "holds tasks"),
        ({"queue": "to", "channel": True}, "to one of them"),
        ({"queue": "a\0b"}, "control character"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "ends before it starts"),
        ({"start": "yesterday"}, "not a point to start from"),
        ({"rate": 0}, "the rate is 0"),
    ],
)
def test_what_cannot_be_replayed_is_told_before_spark_starts(wishes, told, tmp_path):
    with pytest.raises(errors.UsageError, match=told):
        replay(lambda: pytest.fail("Spark was asked for"), str(tmp_path), **wishes)


def test_a_stream_that_the_archive_lacks_is_told(bench):
    bench.hold(queue_rows("q:mail", range(3)))

    with pytest.raises(errors.NotFound, match="q:mial"):
        bench.run(streams=["q:mial"])


def test_an_id_belongs_to_one_replay(bench):
    bench.hold(queue_rows("q:mail", range(3)))
    bench.run(queue="one", replay_id="mine")

    with pytest.raises(errors.Refused, match="other options"):
        bench.run(queue="two", replay_id="mine")

    bench.run(queue="one", replay_id="another")
    assert len(bench.entries("one")) == 6


def test_memory_cannot_be_replayed_into(tmp_path):
    with pytest.raises(errors.ConfigError, match="this process alone"):
        replay(lambda: pytest.fail("asked"), str(tmp_path), url="memory://x", project="p")


def test_a_password_reaches_the_tasks_and_nobody_else(bench, capfd):
    bench.hold(queue_rows("q:mail", range(3)))
    bench.server.ask("ACL", "SETUSER", "planter", "on", ">geheim", "~*", "+@all")
    url = bench.server.tcp_url.replace("redis://", "redis://planter:geheim@")

    try:
        done = replay(bench.spark, bench.path, url=url, project=bench.project)
        bench.server.ask("ACL", "SETUSER", "planter", "resetpass", ">neu")
        with pytest.raises(errors.ConfigError) as refusal:
            replay(bench.spark, bench.path, url=url, project=bench.project, replay_id="again")
    finally:
        bench.server.ask("ACL", "DELUSER", "planter")

    assert done.published == 3
    assert "geheim" not in str(refusal.value)
    assert "geheim" not in "".join(capfd.readouterr())


def test_a_full_queue_is_told_with_what_to_do(bench):
    bench.config.write_text("queues:\n  '*':\n    bound: 60\n")
    rows = queue_rows("q:mail", range(100))
    bench.hold(rows)

    with pytest.raises(errors.QueueFull, match="start workers"):
        bench.run(patience=0.0)

    assert bench.origins("mail") == marks(*rows[:60])
    bench.config.write_text("queues:\n  '*':\n    bound: 100\n")
    done = bench.run()
    assert (done.published, done.skipped) == (40, 60)
    assert bench.origins("mail") == marks(*rows)


def test_two_runs_at_once_publish_each_entry_once(bench):
    bench.hold(many("q:a", 4000), many("q:b", 2000))

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(bench.run, queue="to") for _ in range(2)]
        done = [one.result() for one in runs]

    check(bench, {"q:a": 4000, "q:b": 2000})
    assert sum(one.published for one in done) == 6000


def test_streams_are_shared_out_evenly():
    parts = selection.packed([("a", 10), ("b", 6), ("c", 5), ("d", 1)], 2)

    assert parts == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert set(selection.packed([("a", 1)], 8).values()) == {0}
