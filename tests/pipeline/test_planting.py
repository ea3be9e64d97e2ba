"""Publishing slices of a replay: each row once, in its order, whoever sends it and how often."""

from __future__ import annotations

import json
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import agentbus
from agentbus import errors
from agentbus.core import settings
from agentbus.core.keys import Keys
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place as archive_place
from agentbus.pipeline.replays import slices, writer
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.slices import Slice, Slicer, Stream
from agentbus.pipeline.replays.survey import survey
from agentbus.pipeline.replays.writer import ReplayTask, ReplayWriter
from agentbus.pipeline.rows.schema import FIELDS
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.store import resp
from agentbus.store.scope import enter
from tests.pipeline.archives import write_archive
from tests.pipeline.replaying import DAY, queue_rows
from tests.servers import Server

SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        *((name, pa.string()) for name in slices.COLUMNS[1:8]),
        ("fields", FIELDS),
    ]
)
STREAMS = (
    Stream("q:a", "queue", "to", "normal"),
    Stream("q:b", "queue", "to", "normal"),
    Stream("q:c", "queue", "free", "normal"),
    Stream("dlq:m:g", "dead_letter", "to", "normal"),
    Stream("ch:main", "channel", None, "normal"),
)
NAMES = [one.name for one in STREAMS]


def rows(stream: str, ids: range, **columns: Any) -> pa.RecordBatch:
    made = [
        {"number": NAMES.index(stream), "id": f"{n}-0", "payload": str(n), **columns} for n in ids
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


class Place:
    """A replay that was begun on a real server, and what it published."""

    def __init__(self, server: Server, project: str, place: pathlib.Path) -> None:
        self.server = server
        self.keys = Keys(project)
        self.key = self.keys.replay("r")
        self.config = place / "agentbus.yaml"
        self.bound(1_000_000)
        self.project = project
        server.ask("HSET", self.key, "asked", "{}")

    def bound(self, number: int) -> None:
        self.config.write_text(f"queues:\n  '*':\n    bound: {number}\n")

    def planter(self, token: str = "t", **options: Any) -> ReplayWriter:
        flags = {"url": self.server.url, "project": self.project, "config": str(self.config)}
        return ReplayWriter(ReplayTask(settings.resolve(flags), "r", token, STREAMS, **options))

    def plant(self, *batches: pa.RecordBatch, **options: Any) -> int:
        return self.planter(**options).write(iter(batches)).rows

    def payloads(self, queue: str = "to", priority: str = "normal") -> list[str]:
        entries = self.server.ask("XRANGE", self.keys.queue(queue, priority), "-", "+")
        return [flat[flat.index(b"payload") + 1].decode() for _, flat in entries]

    def record(self) -> dict[str, str]:
        flat = self.server.ask("HGETALL", self.key)
        return {flat[n].decode(): flat[n + 1].decode() for n in range(0, len(flat), 2)}


@pytest.fixture
def place(valkey: Server, project: str, tmp_path: pathlib.Path) -> Place:
    return Place(valkey, project, tmp_path)


def texts(ids: range) -> list[str]:
    return [str(n) for n in ids]


def test_rows_are_published_in_their_order_and_the_cursor_follows(place):
    place.plant(rows("q:a", range(1, 1200)))

    assert place.payloads() == texts(range(1, 1200))
    assert place.record()["at:q:a"] == "1199-0"
    assert place.record()["published"] == place.record()["run:t"] == "1199"
    assert place.server.ask("HGET", place.keys.stats("to"), "published") == b"1199"
    assert place.server.ask("ZRANGE", place.keys.queues, 0, -1) == [b"to"]


def test_rows_that_were_published_are_passed_over(place):
    place.plant(rows("q:a", range(1, 130)))
    place.plant(rows("q:a", range(1, 200)), token="again")

    assert place.payloads() == texts(range(1, 200))
    assert place.record()["run:again"] == "70"


def test_a_task_reads_what_was_not_published_yet_and_goes_on_there(place, tmp_path):
    path = str(tmp_path / "archive")
    write_archive(path, [*queue_rows("q:a", range(900)), *queue_rows("q:b", range(5))])
    log = ArchiveTable(archive_place(path))
    found = survey(log, log.snapshot(), Wanted())
    assert found is not None
    share = found.share({"q:a": 0, "q:b": 1}, {"q:a": (DAY + 270, 1), "q:b": (DAY + 9, 0)})
    place.plant(rows("q:a", range(1)).set_column(1, "id", pa.array([f"{DAY + 200}-2"])))

    published = writer.publish_share(place.planter()._task, share)

    # The first of them was published by the row before: 603 entries precede it.
    assert (published, place.record()["at:q:a"]) == (214, f"{DAY + 270}-1")
    assert place.payloads() == ["0", *(json.dumps({"n": n}) for n in [*range(603, 812), *range(5)])]
    # Another task that comes late finds nothing to do.
    assert writer.publish_share(place.planter()._task, share) == 0


def test_a_slice_that_comes_late_publishes_nothing(place):
    # A task of a run that was killed may still have sent it.
    late = sliced(place, rows("q:a", range(1000)))
    place.plant(rows("q:a", range(1000)))

    assert [send(place, one) for one in late] == [[b"done", 500], [b"done", 500]]
    assert place.payloads() == texts(range(1000))


def test_a_slice_is_not_published_before_the_one_that_it_follows(place):
    _, second = sliced(place, rows("q:a", range(1000)))

    assert send(place, second) == [b"behind"]
    assert place.payloads() == []


def test_a_slice_whose_server_went_back_says_so(place):
    _, second = sliced(place, rows("q:a", range(1000)))

    with (
        ServerConnection(place.planter()._task.settings) as server,
        pytest.raises(errors.NotFound, match=r"up to 499-0: it went back in time") as caught,
    ):
        server.run(writer.publish(second, "run:t", 1.0), patience=1.0)

    assert caught.value.hint is not None
    assert caught.value.hint.startswith("run it again")


def test_streams_have_cursors_of_their_own(place):
    place.plant(rows("q:a", range(5, 9)), rows("q:b", range(1, 4)))

    assert place.payloads() == [*texts(range(5, 9)), *texts(range(1, 4))]
    assert (place.record()["at:q:a"], place.record()["at:q:b"]) == ("8-0", "3-0")


def test_rows_of_one_stream_may_go_to_several_places(place):
    high = rows("dlq:m:g", range(1, 3), priority="high")
    low = rows("dlq:m:g", range(3, 5), target="other")
    place.plant(high, low, rows("dlq:m:g", range(5, 7), priority="high"))

    assert place.payloads(priority="high") == ["1", "2", "5", "6"]
    assert place.payloads("other") == ["3", "4"]


def test_an_entry_that_is_in_the_archive_twice_is_published_once(place):
    place.plant(rows("q:a", range(1, 3)), rows("q:a", range(2, 4)))

    assert place.payloads() == ["1", "2", "3"]


def test_a_replay_whose_record_is_gone_publishes_nothing(place):
    place.server.ask("DEL", place.key)

    place.plant(rows("q:a", range(10)))

    assert place.payloads() == []
    assert json.loads(place.record()["failed:t"])["error"] == "NotFound"


def test_a_full_queue_is_filled_to_its_bound_and_given_up_in_the_end(place):
    place.bound(70)

    place.plant(rows("q:a", range(1, 301)), patience=0.1)

    failed = json.loads(place.record()["failed:t"])
    assert place.payloads() == texts(range(1, 71))
    assert failed["error"] == "QueueFull"
    assert place.record()["at:q:a"] == "70-0"
    assert place.server.ask("HGET", place.keys.stats("to"), "refused") is not None


def test_a_full_queue_waits_for_those_who_take_from_it(place):
    place.bound(60)
    bus = agentbus.connect(place.server.url, project=place.project)
    done: list[int] = []

    with bus.subscribe("to", lambda delivery: done.append(delivery.payload)) as worker:
        place.server.ask("XGROUP", "CREATE", place.keys.queue("to"), "default", "0", "MKSTREAM")
        planter = place.planter()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(planter.write, iter([rows("q:a", range(1, 301))]))
            while len(done) < 300:
                worker.run_once()
            writing.result()
    bus.close()

    assert done == list(range(1, 301))
    assert "failed:t" not in place.record()


def test_rows_after_a_full_slice_are_not_lost_to_other_streams_in_the_batch(place):
    place.bound(70)
    other = rows("q:c", range(1, 31))

    place.plant(rows("q:a", range(1, 101)), other, patience=0.0)
    place.bound(1000)
    place.plant(rows("q:a", range(1, 101)), other, token="again")

    assert place.payloads() == texts(range(1, 101))
    assert place.payloads("free") == texts(range(1, 31))


def test_an_ordering_key_is_honoured(place):
    meta = [("meta", '{"ordering_key":"k"}')]
    place.plant(rows("q:a", range(1, 4), fields=meta))

    assert place.server.ask("ZCARD", place.keys.order("to", "normal")) == 3


def test_messages_go_to_the_channel_and_their_topics_are_known(place):
    spoken = {"agent": "ada", "topic": "build", "payload": '"hi"'}
    place.plant(rows("ch:main", range(1, 61), **spoken))

    bus = agentbus.connect(place.server.url, project=place.project)
    heard = list(bus.overhear(last=100))
    bus.close()
    assert [m.details["replayed_from"] for m in heard] == [f"ch:main {n}-0" for n in range(1, 61)]
    assert {(m.agent_id, m.topic, m.text) for m in heard} == {("ada", "build", "hi")}
    assert place.server.ask("ZRANGE", place.keys.topics, 0, -1) == [b"build"]


def test_a_stream_of_another_type_is_told(place):
    place.server.ask("SET", place.keys.queue("to"), "no stream")

    with pytest.raises(errors.BackendUnavailable, match="another type"):
        place.plant(rows("q:a", range(3)))

    assert "at:q:a" not in place.record()


def test_a_script_that_the_server_forgot_is_sent_again(place):
    place.plant(rows("q:a", range(1, 10)))
    place.server.ask("SCRIPT", "FLUSH")
    place.plant(rows("q:a", range(1, 200)))

    assert place.payloads() == texts(range(1, 200))


def test_tasks_go_on_whatever_the_server_forgets_between_their_slices(place):
    # One task loads the script while the slices of the other are being answered.
    over = threading.Event()

    def forget() -> None:
        while not over.is_set():
            place.server.ask("SCRIPT", "FLUSH")

    with ThreadPoolExecutor(3) as pool:
        forgetting = pool.submit(forget)
        tasks = [
            pool.submit(
                place.plant, *(rows(stream, range(at, at + 500)) for at in range(1, 9001, 500))
            )
            for stream in ("q:a", "q:c")
        ]
        done = [task.exception() for task in tasks]
        over.set()
        forgetting.result()

    assert done == [None, None]
    assert "failed:t" not in place.record()
    assert place.payloads("to") == place.payloads("free") == texts(range(1, 9001))


def test_the_record_is_kept_for_thirty_days_after_its_last_use(place):
    place.plant(rows("q:a", range(3)))

    assert 0 < place.server.ask("TTL", place.key) <= slices.KEPT


def test_rows_are_sent_at_the_rate_that_was_asked_for(place):
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = writer.Pace(lambda: now[0], sleep)
    sent = []
    for part in sliced(place, rows("q:a", range(500)), rate=100.0):
        pace.wait(len(part.ids), part.rate)
        sent.append((now[0], len(part.ids)))

    assert sum(number for _, number in sent) == 500
    assert sent[-1][0] == pytest.approx(4.9, abs=0.01)
    assert all(number == 10 for _, number in sent)


# -- hands --------------------------------------------------------------------------------------


def sliced(place: Place, *batches: pa.RecordBatch, rate: float = 0.0) -> list[Slice]:
    task = place.planter()._task
    streams = [replace(stream, rate=rate) for stream in STREAMS]
    return list(
        Slicer(enter(task.settings)[1], task.settings, task.replay_id, streams).slices(batches)
    )


def send(place: Place, one: Slice) -> Any:
    place.server.ask("SCRIPT", "LOAD", resp.source("replay_slice"))
    (command,) = resp.commands(one.step("run:t"))
    return place.server.ask(*command)
