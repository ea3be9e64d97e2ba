"""Reads from the log of an archive what a version changed: the rows that it added, and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from agentbus.core.errors import NotFound, Unhealthy
from agentbus.pipeline.archives.delta_table import INSIDE, ArchiveTable
from agentbus.pipeline.archives.versions import POSITION, DataFile


@dataclass(frozen=True, slots=True)
class LogChange:
    """The files whose rows a version added, and the paths of those from which it deleted rows.

    A version that deletes rows writes the others again, and adds none.
    """

    added: list[DataFile]
    deleted: list[str]


def changes(table: ArchiveTable, version: int) -> LogChange:
    """Return what a version changed. Raises `NotFound` if the log no longer has it."""
    try:
        lines = table.place.read(f"_delta_log/{version:020d}.json").splitlines()
    except NotFound as error:
        raise NotFound(
            f"the log of {table.place} no longer has version {version}",
            hint="read the whole archive again: with a new checkpoint, or without sinceVersion",
        ) from error
    actions = [orjson.loads(line) for line in lines if line.strip()]
    changed = {
        kind: [
            action[kind]
            for action in actions
            if kind in action
            and action[kind].get("dataChange", True)
            and not action[kind]["path"].startswith(f"kind={POSITION}/")
        ]
        for kind in ("add", "remove")
    }
    deleted = [unquote(action["path"]) for action in changed["remove"]]
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    restored = any(info.get("operation") == "RESTORE" for info in infos)
    files = [] if deleted or restored else [_added(action) for action in changed["add"]]
    return LogChange(sorted(files, key=lambda file: file.path), deleted)


def _added(action: Mapping[str, Any]) -> DataFile:
    """Return the data file of an action of a commit; without statistics, it may hold any row."""
    path = unquote(action["path"])
    if not INSIDE.fullmatch(path):
        raise Unhealthy(f"a commit names the data file {path[:200]!a}, which lies elsewhere")
    known = orjson.loads(action.get("stats") or b"{}")
    partition = action["partitionValues"]
    return DataFile(
        path,
        partition.get("kind") or "",
        partition.get("date") or "",
        int(known.get("numRecords") or 0),
        int(action["size"]),
        0,
        2**63 - 1,
    )
