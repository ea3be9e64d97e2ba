"""Replay: rows of an archive are published again, into queues or the channel, marked with their origin.

A replay has an id and a record on the server: its options, the streams with their last ids, and a
cursor for each stream. So it may be killed and resumed at any time, and two processes may run it at
once: each entry is published exactly once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentbus.core import names, settings as resolving
from agentbus.core.errors import ConfigError, NotFound, UsageError
from agentbus.core.settings import Settings
from agentbus.pipeline.archives import reader
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log
from agentbus.pipeline.archives.versions import State
from agentbus.pipeline.replays import jobs, selection
from agentbus.pipeline.replays.record import ReplayRecord, Source
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.survey import survey
from agentbus.pipeline.replays.writer import PATIENCE, ReplayTask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay: of `rows` it published `published` now, and `skipped` were before.

    `streams` says what they are, in the order of their names. `skipped` are those that other runs of the
    same replay published. `finished` is when an earlier one had published all (RFC 3339), None if none had.
    """

    id: str
    rows: int
    published: int
    skipped: int
    streams: tuple[Source, ...]
    seconds: float
    dry_run: bool
    finished: str | None = None


# The name by which programs import it.
Replayed = ReplayResult


def replay(
    spark: SparkSession | Callable[[], SparkSession],
    path: str,
    settings: Settings | None = None,
    *,
    url: str | None = None,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    streams: Sequence[str] | None = None,
    where: str | None = None,
    queue: str | None = None,
    channel: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    replay_id: str | None = None,
    version: int | None = None,
    keep_replies: bool = False,
    patience: float = PATIENCE,
    watch: Callable[[str, int], None] | None = None,
) -> ReplayResult:
    """Publish entries of an archive again, each exactly once, however often this is called.

    `spark` is a session, or a function that opens one: it is called after all checks.
    `start` and `end` are ids, times or durations, both inclusive; `streams` names streams as the archive
    does; `where` is a condition in SQL on the columns of a row. Tasks go into the queues that they came
    from, or all into `queue`; messages into the `channel`, or into `queue`. `rate` is in rows a second in
    all. Order is kept within each stream.
    A call with the same arguments is the same replay: it resumes where the last one stopped, with the
    rows that the archive held when it began. Another `replay_id` makes another replay. `patience` is the
    number of seconds to wait for a full queue or for the server. `watch` is called with the replay's id
    and the number of rows, once they are known.
    Raises `UsageError`, `NotFound` (no such archive), `Refused` (the id is another replay's), `QueueFull`.
    """
    began = time.monotonic()
    if settings is None:
        settings = resolving.resolve({"url": url, "project": project})
    if replay_id is not None:
        names.name("replay", replay_id)
    if rate is not None and not rate > 0:
        raise UsageError(f"the rate is {rate}", hint="give rows a second, more than 0")
    settings = _for_tasks(settings)
    record = ReplayRecord(settings, patience)
    try:
        now = time.time()
        wanted = Wanted(
            None if start is None else selection.point(start, now),
            None if end is None else selection.point(end, now, last=True),
            tuple(dict.fromkeys(streams or ())),
            where,
            queue,
            channel,
        )
        selection.check(wanted)
        log, state = _archive(path, wanted, version)
        asked = {
            "archive": state.archive,
            "version": version,
            # Use the bounds as they were written: `30m` means the same replay when it is started again.
            "start": start,
            "end": end,
            "streams": sorted(wanted.streams),
            "where": where,
            "queue": queue,
            "channel": channel,
            "keep_replies": keep_replies,
        }
        name = replay_id or _id(asked)
        opened = _opening(spark)
        begun = record.look(name, asked)
        there = None
        if begun is None:
            there = survey(log, state, wanted)
            if there is not None:
                found = there.sources(wanted)
            else:
                found = jobs.count(jobs.rows_of(opened(), log.place, wanted, version), wanted)
            # Without rows there is nothing to resume, and no record.
            if dry_run or not found:
                rows = sum(each.rows for each in found)
                return ReplayResult(name, rows, 0, 0, found, time.monotonic() - began, dry_run)
            begun = record.begin(name, asked, wanted, found, state.version)
        # The bounds of the first run.
        wanted = replace(wanted, start=begun.start, end=begun.end)
        rows = sum(each.rows for each in begun.streams)
        published = 0
        if not dry_run and begun.finished is None:
            if watch is not None:
                watch(name, rows)
            task = ReplayTask(settings, name, record.token, (), keep_replies, patience)
            work = jobs.Work(begun.streams, task, rate, record)
            there = there or survey(log, state, wanted)
            if there is not None:
                jobs.publish_files(opened(), there, work)
            else:
                rows_found = jobs.rows_of(opened(), log.place, wanted, version)
                jobs.publish_rows(opened(), rows_found, where, work)
            published = record.close(name, begun.streams)
        return ReplayResult(
            name,
            rows,
            published,
            begun.published if dry_run else rows - published,
            begun.streams,
            time.monotonic() - began,
            dry_run,
            begun.finished,
        )
    finally:
        record.server.close()


def _opening(spark: SparkSession | Callable[[], SparkSession]) -> Callable[[], SparkSession]:
    """Return a function that opens Spark once, or returns the session."""
    found = spark if callable(spark) else lambda: spark
    return functools.cache(found)


# -- the archive --------------------------------------------------------------------------------


def _archive(path: str, wanted: Wanted, version: int | None) -> tuple[Log, State]:
    """Return an archive's log and its state. Raises `NotFound`, for a stream that it lacks too."""
    at = place(path)
    log = Log(at)
    state = log.state(version)
    reader.check_schema(at, state)
    for stream in wanted.streams:
        if stream not in state.positions:
            raise NotFound(
                f"{at} holds nothing of {stream[:80]!a}",
                hint="status(path) returns its streams",
                shell_hint="'agentbus archive status' lists its streams",
            )
    return log, state


def _id(asked: Mapping[str, Any]) -> str:
    """Return the id of a replay by what it was asked for."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _for_tasks(settings: Settings) -> Settings:
    """Return the settings by which Spark's tasks, other processes, reach the same server."""
    if settings.url is not None and settings.url.startswith("memory:"):
        raise ConfigError(
            "memory:// is in this process alone, and Spark's tasks are others",
            hint="use a server, or no URL for the embedded one",
        )
    return settings
