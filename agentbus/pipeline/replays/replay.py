"""Replay: publishes rows of an archive again, into queues or the channel, with their origin.

A replay has an id and a record on the server: its options, the streams with their last ids, and a
cursor for each stream. It can therefore be killed and resumed at any time, and two processes can
run it at once: each entry is published exactly once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentbus.core import names, settings as resolving
from agentbus.core.errors import ConfigError, NotFound, Refused, UsageError
from agentbus.core.settings import Settings
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.file_selection import check_schema
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.versions import ArchiveSnapshot
from agentbus.pipeline.replays import jobs, selection
from agentbus.pipeline.replays.record import ReplayRecord, Source
from agentbus.pipeline.replays.selection import Wanted
from agentbus.pipeline.replays.survey import survey
from agentbus.pipeline.replays.writer import PATIENCE, ReplayTask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from agentbus.pipeline.replays.survey import ArchiveSurvey


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay: of its `rows`, `published` now and `skipped` as published before.

    `streams` describes the streams, ordered by name. `skipped` counts rows that other runs of the
    same replay published. `finished` is the time when an earlier run completed the replay (RFC
    3339), or None. `masked` names the fields of which the archive may hold masks in place of values.
    """

    id: str
    rows: int
    published: int
    skipped: int
    streams: tuple[Source, ...]
    seconds: float
    dry_run: bool
    finished: str | None = None
    masked: tuple[str, ...] = ()


# Public name of the class.
Replayed = ReplayResult


def replay(
    spark: SparkSession | Callable[[], SparkSession],
    path: Location,
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
    """Publish entries of an archive again, each exactly once even if this is called repeatedly.

    `spark` is a session, or a function that opens one: it is called after all checks.
    `start` and `end` are ids, times or durations, both inclusive; `streams` names streams as the archive
    does; `where` is a condition in SQL on the columns of a row. Tasks go into the queues that they came
    from, or all into `queue`; messages into the `channel`, or into `queue`. `rate` is in rows a second in
    all. Order is kept within each stream.
    A call with the same arguments is the same replay: it resumes where the last one stopped, with the
    rows that the archive held when it began. Another `replay_id` makes another replay. `patience` is the
    number of seconds to wait for a full queue or for the server. `watch` is called with the replay's id
    and the number of rows, once they are known.
    Raises `UsageError`, `NotFound` (no such archive), `Refused` (the id is another replay's, or payloads
    were dropped or masked when they were archived), `QueueFull`.
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
        rows = _ArchivedRows(spark, path, wanted, version)
        asked = {
            "archive": rows.state.archive,
            "version": version,
            # Compare the bounds as given: `30m` means the same replay when the command is repeated.
            "start": start,
            "end": end,
            "streams": sorted(wanted.streams),
            "where": where,
            "queue": queue,
            "channel": channel,
            "keep_replies": keep_replies,
        }
        name = replay_id or _id(asked)
        begun = record.look(name, asked)
        masked = rows.state.masking.mask
        if begun is None:
            rows.refuse_hidden()
            sources = rows.sources()
            # Without rows there is nothing to resume, and no record.
            if dry_run or not sources:
                number = sum(source.rows for source in sources)
                seconds = time.monotonic() - began
                return ReplayResult(name, number, 0, 0, sources, seconds, dry_run, masked=masked)
            begun = record.begin(name, asked, wanted, sources, rows.state.version)
        number = sum(source.rows for source in begun.streams)
        published = 0
        if not dry_run and begun.finished is None:
            if watch is not None:
                watch(name, number)
            task = ReplayTask(settings, name, record.token, (), keep_replies, patience)
            # Use the bounds of the first run.
            rows.within(begun.start, begun.end)
            rows.publish(jobs.Work(begun.streams, task, rate, record))
            published = record.close(name, begun.streams)
        return ReplayResult(
            name,
            number,
            published,
            begun.published if dry_run else number - published,
            begun.streams,
            time.monotonic() - began,
            dry_run,
            begun.finished,
            masked,
        )
    finally:
        record.server.close()


class _ArchivedRows:
    """The rows of an archive that a replay publishes, from its files or from Spark."""

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        path: Location,
        wanted: Wanted,
        version: int | None,
    ) -> None:
        self._table, self.state = _archive(path, wanted, version)
        self._wanted, self._version = wanted, version
        self._open_spark = functools.cache(spark if callable(spark) else lambda: spark)
        self._survey: ArchiveSurvey | None = None

    def within(self, start: tuple[int, int] | None, end: tuple[int, int] | None) -> None:
        """Replace the bounds."""
        self._wanted = replace(self._wanted, start=start, end=end)

    def refuse_hidden(self) -> None:
        """Raise `Refused` if payloads of the rows were dropped, or masked as a whole."""
        if not self.state.masking.hides_payloads:
            return
        if gone := jobs.hidden(self._selected(), self._wanted):
            stream, number = min(gone.items())
            what = "the payload of 1 entry" if number == 1 else f"the payloads of {number} entries"
            raise Refused(
                f"{what} of {stream} cannot be published: dropped or masked when archived",
                hint="choose other entries by start, streams or where",
                shell_hint="choose other entries by --from, --stream or --where",
            )

    def sources(self) -> tuple[Source, ...]:
        """Return the streams of the rows, with their numbers of rows."""
        self._survey = survey(self._table, self.state, self._wanted)
        if self._survey is not None:
            return self._survey.sources(self._wanted)
        return jobs.count(self._selected(), self._wanted)

    def publish(self, work: jobs.Work) -> None:
        """Publish the rows."""
        there = self._survey or survey(self._table, self.state, self._wanted)
        if there is not None:
            jobs.publish_files(self._open_spark(), there, work)
        else:
            jobs.publish_rows(self._open_spark(), self._selected(), self._wanted.where, work)

    def _selected(self) -> DataFrame:
        return jobs.rows_of(self._open_spark(), self._table.place, self._wanted, self._version)


# -- the archive --------------------------------------------------------------------------------


def _archive(
    path: Location, wanted: Wanted, version: int | None
) -> tuple[ArchiveTable, ArchiveSnapshot]:
    """Return an archive's table, and the version to read. Raises `NotFound`, also for an unknown stream."""
    at = place(path)
    table = ArchiveTable(at)
    state = table.snapshot(version)
    check_schema(at, state)
    for stream in wanted.streams:
        if stream not in state.positions:
            raise NotFound(
                f"{at} holds nothing of {stream[:80]!a}",
                hint="status(path) returns its streams",
                shell_hint="'agentbus archive status' lists its streams",
            )
    return table, state


def _id(asked: Mapping[str, Any]) -> str:
    """Return the id of a replay, derived from its options."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _for_tasks(settings: Settings) -> Settings:
    """Return the settings with which Spark's tasks, in other processes, reach the same server."""
    if settings.url is not None and settings.url.startswith("memory:"):
        raise ConfigError(
            "memory:// is in this process alone, and Spark's tasks are others",
            hint="use a server, or no URL for the embedded one",
        )
    return settings
