"""A replay's record on the server, by which it resumes.

The driver writes the options and the streams that they select, once; Spark's tasks move the cursors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import errors
from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError, Refused
from agentbus.core.settings import Settings
from agentbus.core.stream import position, text
from agentbus.pipeline.replays import slices, writer
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.queues.publish import Priority
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


@dataclass(frozen=True, slots=True)
class Source:
    """The part of a stream to replay: rows from the first to the last id, to one destination.

    `target` is a queue, or None for the channel.
    """

    stream: str
    target: str | None
    priority: str
    rows: int
    first: str
    last: str

    def order(self) -> tuple[str, str, int]:
        """Return the sort key of a source: stream, destination, priority."""
        return self.stream, self.target or "", list(Priority).index(Priority(self.priority))


@dataclass(frozen=True, slots=True)
class Begun:
    """A replay that was begun: bounds, streams, number of published rows, completion time."""

    start: tuple[int, int] | None
    end: tuple[int, int] | None
    streams: tuple[Source, ...]
    published: int
    finished: str | None


def ends(chosen: Iterable[Source]) -> dict[str, tuple[int, int]]:
    """Return the last id to replay of each stream."""
    found: dict[str, tuple[int, int]] = {}
    for each in chosen:
        found[each.stream] = max(found.get(each.stream, (0, 0)), position(each.last))
    return found


def progress(scope: Scope, replay_id: str) -> Op[int]:
    """Return the number of rows of a replay that all its runs have published."""
    found = yield Command("HGET", scope.keys.replay(replay_id), "published")
    return int(found or 0)


class ReplayRecord:
    """A replay's record on the server, as the driver reads and writes it.

    `patience` is the time in seconds that it waits for the server while Spark works, the same as
    for its tasks.
    """

    def __init__(self, settings: Settings, patience: float) -> None:
        self.server = ServerConnection(settings)
        self.scope = self.server.scope
        self.token = self.scope.token().replace(".", "-")
        self._patience = patience

    def alive(self) -> None:
        """Raise `BackendUnavailable` if the server does not reply."""
        self.server.run(one_step(Command("PING")))

    def look(self, name: str, asked: Mapping[str, Any]) -> Begun | None:
        """Return a replay that was begun before, or None. Raises `Refused` for another one."""
        kept, published, finished = self.server.run(
            one_step(
                Command("HMGET", self.scope.keys.replay(name), "asked", "published", "finished")
            )
        )
        return None if kept is None else _begun(name, asked, kept, published, finished)

    def begin(
        self,
        name: str,
        asked: Mapping[str, Any],
        wanted: Wanted,
        chosen: Sequence[Source],
        version: int | None,
    ) -> Begun:
        """Begin a replay, unless another run has begun it first; return its record."""
        said = {
            "asked": asked,
            "at": rfc3339(self.scope.now()),
            "version": version,
            # The bounds are fixed at the start, so that later runs use the same time for `30m`.
            "from": wanted.start,
            "to": wanted.end,
            "streams": [asdict(each) for each in chosen],
        }
        rows = sum(each.rows for each in chosen)
        key = self.scope.keys.replay(name)
        kept = self.server.run(_begin(key, json.dumps(said), rows), patience=self._patience)
        return _begun(name, asked, *kept)

    def close(self, name: str, chosen: Sequence[Source]) -> int:
        """Record completion if all rows are published; return the rows published by this run.

        Raises the error that stopped a task.
        """
        key = self.scope.keys.replay(name)
        last = ends(chosen)
        fields = [slices.cursor_field(stream) for stream in last]
        mine, failed, cursors = self.server.run(
            _outcome(key, self.token, fields), patience=self._patience
        )
        if failed is not None:
            said = json.loads(failed)
            kind = getattr(errors, said["error"], AgentBusError)
            raise kind(said["message"], hint=said["hint"], shell_hint=said.get("shell_hint"))
        for (stream, end), cursor in zip(last.items(), cursors, strict=True):
            if cursor is None or position(text(cursor)) < end:
                reached = "nothing" if cursor is None else text(cursor)
                raise AgentBusError(
                    f"the replay {name!r} came to {reached} in {stream!r}, and its last is"
                    f" {end[0]}-{end[1]}",
                    hint="run it again: it goes on there",
                )
        finished = one_step(Command("HSET", key, "finished", rfc3339(self.scope.now())))
        self.server.run(finished, patience=self._patience)
        return int(mine or 0)


def _begin(key: str, said: str, rows: int) -> Op[list[Any]]:
    if (yield Command("HSETNX", key, "asked", said)):
        yield Command("HSET", key, "rows", rows)
    yield Command("EXPIRE", key, slices.KEPT)
    found: list[Any] = yield Command("HMGET", key, "asked", "published", "finished")
    return found


def _begun(
    name: str,
    asked: Mapping[str, Any],
    kept: bytes,
    published: bytes | None,
    finished: bytes | None,
) -> Begun:
    said = json.loads(kept)
    if said["asked"] != asked:
        raise Refused(
            f"the replay {name!r} was begun {said['at']} with other options",
            hint="repeat those options, or give another replay_id",
            shell_hint="repeat those options, or give another --id",
        )
    start, end = (None if point is None else tuple(point) for point in (said["from"], said["to"]))
    return Begun(
        start,
        end,
        tuple(Source(**each) for each in said["streams"]),
        int(published or 0),
        None if finished is None else text(finished),
    )


def _outcome(key: str, token: str, fields: Sequence[str]) -> Op[tuple[Any, Any, list[Any]]]:
    mine, failed = yield Command("HMGET", key, writer.run_field(token), writer.failure_field(token))
    cursors = yield from writer.fields_of(key, fields)
    if failed is not None:
        yield Command("HDEL", key, writer.failure_field(token))
    return mine, failed, cursors
