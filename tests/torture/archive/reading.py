"""Reads an archive as other programs do, by its files alone, and the server."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from agentbus.core.keys import Keys
from tests.torture.archive.checks import (
    ArchivedRow,
    Hole,
    ReplayedEntry,
    canonical,
    mark_of,
    sound,
)
from tests.torture.plain import plain_client

_ATTEMPTS = "attempts"
_PAGE = 5000
_ANSWERS_WITHIN = 30.0
_READ = ["stream", "kind", "id", "agent", "topic", "event", "queue", "payload", "fields", "lost"]
# The columns that hold fields of the entry, by the field's name.
_CHANNEL = {"agent_id": "agent", "topic": "topic", "event": "event"}
_COLUMNS: dict[str, dict[str, str]] = {
    "channel": _CHANNEL,
    "queue": {"payload": "payload", "agent_id": "agent"},
    "dead_letter": {"payload": "payload", "queue": "queue", "agent_id": "agent"},
    "metrics": {"kind": "event", "queue": "queue", "agent": "agent"},
}


def archived(path: pathlib.Path) -> tuple[list[ArchivedRow], list[Hole]]:
    """Return what a reader of Parquet sees in an archive: its entries, and its gaps."""
    import pyarrow.dataset

    from agentbus.pipeline.archives.files import archive_files

    rows: list[ArchivedRow] = []
    holes: list[Hole] = []
    if (path / "_delta_log").is_dir():
        files = archive_files(path)
    else:
        # A control writes files alone.
        files = sorted(map(str, path.glob("kind=*/**/*.parquet")))
    if not files:
        return rows, holes
    found = pyarrow.dataset.dataset(files, partitioning="hive")
    # An entry of the log of attempts is packed, and has several rows: `verify` compares it.
    entries = pyarrow.dataset.field("stream") != _ATTEMPTS
    for batch in found.to_batches(columns=_READ, filter=entries):
        for one in batch.to_pylist():
            fields = dict(one["fields"] or ())
            if one["kind"] == "gap":
                # Where the server went back in time, nothing is counted.
                if "archive_only" not in fields:
                    holes.append(Hole(one["stream"], one["lost"], fields["after"], one["id"]))
                continue
            fields |= _own(one)
            mark = mark_of(one["stream"], fields)
            rows.append(ArchivedRow((one["stream"], one["id"]), canonical(fields), mark))
    return rows, holes


def _own(row: dict[str, Any]) -> dict[str, str]:
    """Return the fields of the entry that have their own columns."""
    columns = _COLUMNS.get(row["kind"], {})
    found = {field: row[column] for field, column in columns.items() if row[column] is not None}
    if row["kind"] == "channel" and row["payload"] is not None:
        found["message"] = json.loads(row["payload"])
    return found


def counted(path: pathlib.Path) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Return the log's figures of each stream, and the files that it names and that are not there."""
    from agentbus.pipeline.archives.delta_table import ArchiveTable
    from agentbus.pipeline.archives.location import place

    state = ArchiveTable(place(str(path))).snapshot()
    figures = {
        name: (at.rows, at.lost) for name, at in state.positions.items() if name != _ATTEMPTS
    }
    return figures, {name for name in state.files if not (path / name).exists()}


class Look:
    """Reads a project's streams on the server."""

    def __init__(self, url: str, project: str) -> None:
        self._keys = Keys(project)
        # A connection from before a restart is of no use any more.
        retry = Retry(NoBackoff(), 1)
        self._raw: Any = plain_client(url, _ANSWERS_WITHIN, retry=retry, decode_responses=True)

    def length(self, stream: str) -> int:
        """Return how many entries a stream has. Raises `RedisError`."""
        return int(self._raw.xlen(self._keys.stream(stream)))

    def entries(self, stream: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield a stream's entries, page by page."""
        after = "-"
        while page := self._raw.xrange(self._keys.stream(stream), after, "+", _PAGE):
            yield from page
            after = f"({page[-1][0]}"

    def last(self, stream: str) -> str | None:
        """Return the id of a stream's last entry."""
        found = self._raw.xrevrange(self._keys.stream(stream), count=1)
        return found[0][0] if found else None

    def rows(self, streams: Iterable[str]) -> list[ArchivedRow]:
        """Return the entries of these streams."""
        return [
            ArchivedRow((stream, entry_id), canonical(fields), mark_of(stream, fields))
            for stream in streams
            for entry_id, fields in self.entries(stream)
        ]

    def replayed(self, streams: tuple[str, ...]) -> list[ReplayedEntry]:
        """Return what a replay published into these streams, in their order."""
        found = []
        for stream in streams:
            for _, fields in self.entries(stream):
                origin, _, entry_id = json.loads(fields["meta"])["replayed_from"].partition(" ")
                mark = mark_of(origin, fields)
                well = mark is not None and sound(origin, fields, mark)
                found.append(ReplayedEntry((origin, entry_id), mark, well))
        return found
