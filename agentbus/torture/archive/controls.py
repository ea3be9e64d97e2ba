"""The processes of archivers as many write them at first, which lose or double entries when killed."""

from __future__ import annotations

import json
import os
import pathlib
import time
import uuid
from typing import Any

from agentbus.core.keys import Keys
from agentbus.torture.archive import CHECKPOINT_FIRST, RESTART_AT_END, TEXT_ORDER
from agentbus.torture.archive.writing import CHANNEL
from agentbus.torture.assignment import Assignment, assigned
from agentbus.torture.history import OK

# They archive streams that are not trimmed, so that what is missing was lost by them.
STREAMS = (CHANNEL, "q:bulk", "q:bulk:high")
ROUND, IDLE = "round", "idle"
_COUNT = 100
_PAUSE = 0.01


class NaiveArchiver:
    """Reads entries after the last ids, writes a file, and saves the ids, in some order."""

    def __init__(self, assignment: Assignment) -> None:
        import redis

        self._how = assignment.kind
        self._scribe = assignment.scribe()
        self._path = path = pathlib.Path(assignment.options["path"])
        path.mkdir(exist_ok=True)
        self._saved = path / "_checkpoint"
        self._trouble = redis.RedisError
        self._raw = redis.Redis.from_url(assignment.url, protocol=2, socket_timeout=2.0)
        self._told: dict[str, str] = {}
        self._streams = {Keys(assignment.project).stream(name): name for name in STREAMS}

    def run(self) -> None:
        """Archive until killed."""
        ids = self._begin()
        while True:
            asked: dict[Any, Any] = dict(ids)
            try:
                reply: Any = self._raw.xread(asked, count=_COUNT)
            except self._trouble:
                time.sleep(_PAUSE)
                continue
            if not reply:
                self._tell(ids)
                time.sleep(_PAUSE)
                continue
            for key, entries in reply:
                ids[key.decode()] = entries[-1][0].decode()
            if self._how == CHECKPOINT_FIRST:
                self._save(ids)
                self._write(reply)
            else:
                self._write(reply)
                self._save(ids)
            self._scribe.note(ROUND, OK, pid=os.getpid())

    def _tell(self, ids: dict[str, str]) -> None:
        if ids != self._told:
            self._told = dict(ids)
            named = {self._streams[key]: entry_id for key, entry_id in ids.items()}
            self._scribe.note(IDLE, OK, ids=named)

    def _begin(self) -> dict[str, str]:
        if self._how == RESTART_AT_END and self._saved.exists():
            return self._ends()
        if self._how == TEXT_ORDER:
            return self._greatest()
        if self._saved.exists():
            found: dict[str, str] = json.loads(self._saved.read_bytes())
            return found
        return dict.fromkeys(self._streams, "0-0")

    def _ends(self) -> dict[str, str]:
        while True:
            try:
                found: Any = {key: self._raw.xrevrange(key, count=1) for key in self._streams}
            except self._trouble:
                time.sleep(_PAUSE)
                continue
            return {key: last[0][0].decode() if last else "0-0" for key, last in found.items()}

    def _greatest(self) -> dict[str, str]:
        from agentbus.torture.archive.reading import archived

        ids = dict.fromkeys(self._streams, "0-0")
        for row in archived(self._path)[0]:
            stream, entry_id = row.name
            key = next(key for key, name in self._streams.items() if name == stream)
            # As text 9 comes after 10.
            ids[key] = max(ids[key], entry_id)
        return ids

    def _save(self, ids: dict[str, str]) -> None:
        fresh = self._saved.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(json.dumps(ids))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._saved)

    def _write(self, reply: Any) -> None:
        from agentbus.pipeline.rows.decoding import batch

        for key, entries in reply:
            name = self._streams[key.decode()]
            flat = [
                (entry_id, [word for pair in fields.items() for word in pair])
                for entry_id, fields in entries
            ]
            self._append(batch([(name, flat)]))

    def _append(self, rows: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        kind = rows.column("kind")[0].as_py()
        folder = self._path / f"kind={kind}" / "date=2026-01-01"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([rows]).drop_columns(["kind"])
        # Hidden from readers until it is complete: half-written files are not tried here.
        fresh = folder / f"_{uuid.uuid4().hex}"
        pyarrow.parquet.write_table(table, fresh)
        fresh.replace(folder / f"{uuid.uuid4().hex}.parquet")


if __name__ == "__main__":
    NaiveArchiver(assigned()[0]).run()
