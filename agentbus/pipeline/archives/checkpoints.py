"""Writes checkpoints of the log of a Delta table, and deletes those that no version needs.

A version is read from any checkpoint before it and the commits since.
"""

from __future__ import annotations

import re
import time

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.properties import retention_of
from agentbus.pipeline.archives.versions import new_batch

_NAME = re.compile(r"_delta_log/(\d{20})\.checkpoint\.parquet\Z")
# Versions from one checkpoint to the next, and between two older ones.
_EVERY, _KEPT_EVERY = 100, 1_000
# Seconds within which a process has moved the file that it writes.
_UNFINISHED = 86_400.0


def checkpoint(place: Place, version: int) -> None:
    """Write a checkpoint, compressed, if it is due, and delete what the log no longer needs."""
    if (version + 1) % _EVERY:
        return
    options = place.target.storage_options()
    table = DeltaTable(place.target.uri(), version, storage_options=options)
    table.create_checkpoint()
    system, root = place.target.filesystem()
    name = f"_delta_log/{version:020d}.checkpoint.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(f"{root}/{name}", filesystem=system), sink, compression="zstd")
    temporary = f"{name}.{new_batch()}.tmp"
    place.write(temporary, sink.getvalue().to_pybytes())
    place.sizes([temporary])
    place.move(temporary, name)
    table.cleanup_metadata()
    _delete_older(place, retention_of(table.metadata().configuration))


def _delete_older(place: Place, retention: float) -> None:
    """Delete the checkpoints between the last two and the first of each thousand versions."""
    names = {}
    now = time.time()
    for entry in place.listing("_delta_log"):
        if match := _NAME.match(entry.name):
            names[int(match[1])] = entry
        elif entry.name.endswith(".tmp") and entry.modified < now - _UNFINISHED:
            place.delete(entry.name)
    older = sorted(names)[:-2]
    kept = {version // _KEPT_EVERY: version for version in reversed(older)}
    for version in older:
        # Another process may just delete the commits before one that is older than the retention.
        young = names[version].modified > now - retention / 2
        if young and version not in kept.values():
            place.delete(names[version].name)
