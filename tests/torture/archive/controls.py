"""The processes of archivers as many write them at first, which lose or double entries when killed."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from agentbus.core.keys import Keys
from tests.torture.archive.reading import archived
from tests.torture.archive.writing import CHANNEL, WRITE
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import INVOKE, OK, HistoryEntry
from tests.torture.plain import plain_client

# How they go wrong, beside the one that saves the ids after it has written.
CHECKPOINT_FIRST, TEXT_ORDER, RESTART_AT_END = "checkpoint_first", "ids_as_text", "restart_at_end"
# They archive streams that are not trimmed, so that what is missing was lost by them.
STREAMS = (CHANNEL, "q:bulk", "q:bulk:high")
# The file of the ids.
SAVED = "_checkpoint"
BEGIN = "0-0"
_COUNT = 100
_PAUSE = 0.01


class NaiveArchiver:
    """Reads entries after the last ids, writes a file, and saves the ids, in some order."""

    def __init__(self, assignment: Assignment) -> None:
        self._how = assignment.kind
        self._scribe = assignment.scribe()
        self._path = pathlib.Path(assignment.options["path"])
        self._path.mkdir(exist_ok=True)
        self._saved = self._path / SAVED
        # The number of rounds after which it dies, with one half of the last one done; 0 for never.
        self._dies_after: int = assignment.options["dies_after"]
        self._raw: Any = plain_client(assignment.url, retry=None, decode_responses=True)
        keys = Keys(assignment.project)
        self._streams = {keys.stream(name): name for name in STREAMS}

    def run(self) -> None:
        """Archive until killed."""
        ids = self._begin()
        self._save(ids)
        while True:
            reply = self._raw.xread({key: ids[name] for key, name in self._streams.items()}, _COUNT)
            if not reply:
                time.sleep(_PAUSE)
                continue
            pages = [(self._streams[key], entries) for key, entries in reply]
            ids |= {name: entries[-1][0] for name, entries in pages}
            if self._how == CHECKPOINT_FIRST:
                self._save(ids)
                self._half_way()
                self._write(pages)
            else:
                self._write(pages)
                self._half_way()
                self._save(ids)

    def _half_way(self) -> None:
        self._dies_after -= 1
        if self._dies_after == 0:
            self._scribe.die()

    def _begin(self) -> dict[str, str]:
        ids = dict.fromkeys(STREAMS, BEGIN)
        if self._how == RESTART_AT_END and self._saved.exists():
            last = {name: self._raw.xrevrange(key, count=1) for key, name in self._streams.items()}
            return ids | {name: entries[0][0] for name, entries in last.items() if entries}
        if self._how == TEXT_ORDER:
            for row in archived(self._path)[0]:
                stream, entry_id = row.name
                # As text 9 comes after 10.
                ids[stream] = max(ids[stream], entry_id)
        elif self._saved.exists():
            ids = json.loads(self._saved.read_bytes())
        return ids

    def _save(self, ids: Mapping[str, Any]) -> None:
        fresh = self._saved.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(json.dumps(ids))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._saved)

    def _write(self, pages: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        from agentbus.pipeline.rows.decoding import batch

        for name, entries in pages:
            flat = [
                (entry_id.encode(), [word.encode() for pair in fields.items() for word in pair])
                for entry_id, fields in entries
            ]
            # Half-written files are not tried here.
            rows = pa.Table.from_batches([batch([(name, flat)])])
            pyarrow.parquet.write_to_dataset(rows, self._path, partition_cols=["kind"])


def meant(entry: HistoryEntry) -> bool:
    """Tell whether an entry of a history asks for something, or is about streams that they archive."""
    if (entry.op, entry.phase) != (WRITE, OK):
        return entry.phase == INVOKE
    return all(name.rpartition(" ")[0] in STREAMS for name in entry.of["ids"])


def main(told: Assignment, _limit: Allowance) -> None:
    """Archive until killed."""
    NaiveArchiver(told).run()
