"""A queue to replay an archive into, and what is asked of it afterwards."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from agentbus.core import settings
from agentbus.core.keys import Keys
from agentbus.pipeline.replays.replay import ReplayResult, replay
from agentbus.pipeline.rows import schema
from tests.pipeline.archives import row, write_archive
from tests.servers import Server

DAY = 1_763_600_000_000


def queue_rows(stream: str, ids: range, start: int = DAY, **columns: Any) -> list[dict[str, Any]]:
    return [
        row(stream, f"{start + n // 3}-{n % 3}", payload=json.dumps({"n": n}), **columns)
        for n in ids
    ]


def many(stream: str, number: int) -> pa.Table:
    """Return so many entries of one stream, made by the column."""
    ids = [(DAY + n // 7, n % 7) for n in range(number)]
    columns: dict[str, Any] = {
        "version": [1] * number,
        "stream": [stream] * number,
        "kind": ["queue"] * number,
        "id": [f"{ms}-{seq}" for ms, seq in ids],
        "time": [ms * 1000 for ms, _ in ids],
        "seq": [seq for _, seq in ids],
        "queue": [stream.split(":")[1]] * number,
        "payload": [str(n) for n in range(number)],
        "fields": [[]] * number,
    }
    return pa.Table.from_arrays(
        [pa.array(columns.get(field.name, [None] * number), field.type) for field in schema.ARROW],
        schema=schema.ARROW,
    )


class Bench:
    """A server's project to replay into, and an archive to replay."""

    def __init__(self, spark: Any, server: Server, project: str, place: pathlib.Path) -> None:
        self.spark = spark
        self.server = server
        self.keys = Keys(project)
        self.project = project
        self.path = str(place / "archive")
        self.config = place / "agentbus.yaml"
        self.config.write_text("queues:\n  '*':\n    bound: 1000000\n")

    def hold(self, *parts: Any) -> None:
        for part in parts:
            write_archive(self.path, part)

    def run(self, **wishes: Any) -> ReplayResult:
        flags = {"url": self.server.url, "project": self.project, "config": str(self.config)}
        return replay(self.spark, self.path, settings.resolve(flags), **wishes)

    def entries(self, queue: str, priority: str = "normal") -> list[dict[str, Any]]:
        """Return a queue's entries, each with its `meta` as JSON."""
        return list(self._entries(self.keys.queue(queue, priority)))

    def said(self) -> list[dict[str, Any]]:
        return list(self._entries(self.keys.channel))

    def _entries(self, key: str) -> Iterator[dict[str, Any]]:
        after = "-"
        while page := self.server.ask("XRANGE", key, after, "+", "COUNT", 20_000):
            for _, flat in page:
                named = {
                    flat[n].decode(): flat[n + 1].decode("utf-8", "backslashreplace")
                    for n in range(0, len(flat), 2)
                }
                if "meta" in named:
                    named["meta"] = json.loads(named["meta"])
                yield named
            after = f"({page[-1][0].decode()}"

    def origins(self, queue: str, priority: str = "normal") -> list[str]:
        return [one["meta"]["replayed_from"] for one in self.entries(queue, priority)]


def marks(*rows: dict[str, Any]) -> list[str]:
    return [f"{one['stream']} {one['id']}" for one in rows]


def check(bench: Bench, sizes: dict[str, int]) -> None:
    """Compare what is in the queue with what the archive holds, entry by entry."""
    found: dict[str, list[tuple[str, str]]] = {stream: [] for stream in sizes}
    for one in itertools.chain(bench.entries("to"), bench.entries("to", "high")):
        stream, _, entry_id = one["meta"]["replayed_from"].partition(" ")
        found[stream].append((entry_id, one["payload"]))
    for stream, number in sizes.items():
        assert found[stream] == [(f"{DAY + n // 7}-{n % 7}", str(n)) for n in range(number)]
