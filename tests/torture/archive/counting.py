"""The process of an archiver that finds out by counts alone whether a stream was created again."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any, NamedTuple

from agentbus.core.errors import EpochMismatch
from agentbus.core.stream import position
from tests.torture.archive.controls import BEGIN, SAVED, STREAMS, NaiveArchiver
from tests.torture.archive.reading import Look
from tests.torture.assignment import Allowance, Assignment

COUNTS_ALONE = "counts_alone"
_PAUSE = 0.05


class _Position(NamedTuple):
    id: str = BEGIN
    added: int = 0


class CountingArchiver(NaiveArchiver):
    """Archives by ids, and counts what is lost: entries added since, less those that were read.

    Where fewer were added than it has read, or more were read than added, it takes the stream for a new
    one, and all that was ever added to it for new.
    """

    def run(self) -> None:
        """Archive until killed."""
        saved = self._path / SAVED
        found = json.loads(saved.read_bytes()) if saved.exists() else {}
        positions = {name: _Position(*found.get(name, ())) for name in STREAMS}
        while True:
            for key, name in self._streams.items():
                positions[name] = self._round(key, name, positions[name])
            self._save(positions)
            time.sleep(_PAUSE)

    def _round(self, key: str, name: str, start: _Position) -> _Position:
        if not self._raw.exists(key):
            return start
        head = self._raw.xinfo_stream(key)
        last, added, first = (
            head[field] for field in ("last-generated-id", "entries-added", "first-entry")
        )
        if _went_back(start, last, added, first and first[0]):
            raise EpochMismatch(f"{name} went back in time")
        if added < start.added:
            start = _Position(start.id)
        if added == start.added:
            return start
        entries = self._raw.xrange(key, f"({start.id}", last)
        if len(entries) > added - start.added:
            start = _Position(start.id)
        self._write([(name, entries)])
        if lost := added - start.added - len(entries):
            self._write_gap(name, lost, start.id, last)
        return _Position(last, added)

    def _write_gap(self, name: str, lost: int, after: str, last: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        from agentbus.pipeline.rows.decoding import gap
        from agentbus.pipeline.rows.streams import StreamGap

        rows = pa.Table.from_batches([gap(StreamGap(name, lost, last, after, None))])
        pyarrow.parquet.write_to_dataset(rows, self._path, partition_cols=["kind"])


def _went_back(start: _Position, last: str, added: int, first: str | None) -> bool:
    """Tell whether a stream ends earlier, or counts fewer entries and begins within what was read."""
    if position(last) < position(start.id):
        return True
    if first is None or position(start.id) < position(first):
        return False
    return added < start.added or (added == start.added and last != start.id)


def at_end(path: pathlib.Path, look: Look) -> bool:
    """Tell whether it has archived all that a server has."""
    saved = path / SAVED
    if not saved.exists():
        return False
    found: dict[str, Any] = json.loads(saved.read_bytes())
    return all(found[name][0] == (look.last(name) or BEGIN) for name in STREAMS)


def main(told: Assignment, _limit: Allowance) -> None:
    """Archive until killed."""
    CountingArchiver(told).run()
