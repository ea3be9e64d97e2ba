"""Reports an archive's position and reconciles it with its streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from agentbus.core.stream import id_time, text
from agentbus.pipeline.archives.archiver import NOTHING
from agentbus.pipeline.archives.comparison import Differences, differences
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.attempt_rows import OF, PLACE
from agentbus.pipeline.rows.schema import ATTEMPT, GAP
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.discovery import ALL, Discovery, Selection
from agentbus.pipeline.source.range_reader import RangeReader
from agentbus.store.scope import enter, server_time
from agentbus.store.steps import Batch, ServerReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from agentbus.core.settings import Settings
    from agentbus.pipeline.archives.versions import ArchiveSnapshot, Position
    from agentbus.store.steps import Op

_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The progress of the archive of one stream.

    `lag` is the number of entries that are not archived yet, `behind` the age of the oldest of them
    in seconds (0 if there is none). `rows` entries are archived, `lost` entries were gone before.
    """

    stream: str
    kind: str
    rows: int
    lost: int
    lag: int
    behind: float
    last_id: str


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of an archive: its totals, what it masks and drops, and each stream's status.

    Replaced versions can be read for `retention` seconds.
    """

    path: str
    archive: str
    project: str
    version: int
    files: int
    rows: int
    bytes: int
    mask: tuple[str, ...]
    drop: tuple[str, ...]
    retention: float
    streams: tuple[StreamStatus, ...]

    @property
    def lag(self) -> int:
        """The number of entries of all streams that are not archived yet."""
        return sum(stream.lag for stream in self.streams)


def status(settings: Settings, path: Location) -> Status:
    """Return the progress of an archive from its log and the server's counts; needs no Spark.

    Raises `NotFound`, `EpochMismatch`, `Refused` if it is the archive of another project.
    """
    where = place(path)
    table = ArchiveTable(where)
    state = table.snapshot()
    with RangeReader(settings) as reader:
        table.check_project(state, reader.scope.keys.project)
        standings = reader.run(_standings(reader, state))
    return Status(
        str(where),
        state.archive,
        state.project,
        state.version,
        len(state.files),
        state.rows,
        state.bytes,
        state.masking.mask,
        state.masking.drop,
        state.retention,
        tuple(standings),
    )


def _standings(reader: RangeReader, state: ArchiveSnapshot) -> Op[list[StreamStatus]]:
    scope = reader.scope
    names = yield from Discovery(scope, Selection(ALL)).op(state.positions)
    heads = yield from planning.look(scope, names)
    before = {name: planning.ReadPosition(p.id, p.added) for name, p in state.positions.items()}
    before, _ = yield from epochs.continued(
        scope, heads, before, counts=lambda _name: True, may=streams.heals
    )
    new = epochs.news(heads, before)
    now = yield from server_time(scope)
    oldest = yield from _oldest(reader, {name: start.id for name, (start, _) in new.items()})
    found = []
    for name in sorted({*state.positions, *heads}):
        at = state.positions.get(name, NOTHING)
        start, end = new.get(name, (planning.ReadPosition(), planning.ReadPosition()))
        behind = max(0.0, now - id_time(oldest[name])) if name in oldest else 0.0
        found.append(
            StreamStatus(
                name,
                streams.kind(name) or "",
                at.rows,
                at.lost,
                end.added - start.added,
                behind,
                at.id,
            )
        )
    return found


def _oldest(reader: RangeReader, after: Mapping[str, str]) -> Op[dict[str, str]]:
    """Return the first entry after an id for each stream that has such an entry."""
    names, found = list(after), {}
    for at in range(0, len(names), _AT_ONCE):
        page = names[at : at + _AT_ONCE]
        replies = yield Batch(
            [
                ("XRANGE", reader.scope.keys.stream(name), f"({after[name]}", "+", "COUNT", 1)
                for name in page
            ]
        )
        for name, reply in zip(page, replies, strict=True):
            if reply and not isinstance(reply, ServerReply):
                found[name] = text(reply[0][0])
    return found


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying a stream's archive.

    `rows` is the number of entries in the files (an entry of the log of attempts has several rows),
    `lost` that of the entries that gap rows represent, and `added` the number of entries ever added
    to the stream when it was last archived. `duplicates` are rows beyond the first with an id.
    `missing` entries are on the server and archived according to the log, but not in the files as
    they are on the server; entries in gaps, which a server that went back in time may have again,
    do not count. `gone` entries are in the files and cannot have been trimmed, but are not on the
    server, although no record shows that it went back there. `deleted` entries were archived and then
    deleted from the archive, as the log shows. The archive is correct if rows + lost + deleted =
    added, and the other numbers are 0. `missing_ids` and `gone_ids` are the first 20 of each.
    """

    stream: str
    rows: int
    lost: int
    added: int
    duplicates: int
    missing: int
    missing_ids: tuple[str, ...] = ()
    gone: int = 0
    gone_ids: tuple[str, ...] = ()
    deleted: int = 0

    @property
    def ok(self) -> bool:
        """Tell whether each entry ever added is archived once or counted as lost; none is gone."""
        counted = self.rows + self.lost + self.deleted == self.added
        return counted and not (self.duplicates or self.missing or self.gone)


def verify(
    spark: SparkSession, settings: Settings, path: Location, *, version: int | None = None
) -> list[Verified]:
    """Count an archive's rows, and compare them with the log and the server.

    Every entry on the server is compared in full, not only by its id, but for what the archive masks
    or drops. With `version`, that version is compared. Raises `Refused` if it is the archive of
    another project.
    """
    table = ArchiveTable(place(path))
    state = table.snapshot(version)
    table.check_project(state, enter(settings)[1].keys.project)
    rows = read(spark, path, version=state.version)
    counted = {row["stream"]: row for row in _counted(rows).collect()}
    differing = differences(spark, settings, state, rows)
    short = {name: _short(counted.get(name), at) for name, at in state.positions.items()}
    # The log does not say of which streams rows were deleted: if more are missing, none counts as
    # deleted.
    if sum(short.values()) > state.deleted_rows:
        short = {}
    found = []
    for name in sorted({*counted, *state.positions}):
        row: Any = counted.get(name)
        at = state.positions.get(name, NOTHING)
        number = row["rows"] if row else 0
        differs, deleted = differing.get(name, Differences()), short.get(name, 0)
        missing = max(0, differs.missing - deleted)
        found.append(
            Verified(
                name,
                number,
                (row["lost"] or 0) if row else 0,
                at.base + at.added,
                row["doubled"] if row else 0,
                missing + (row["absent"] if row else 0),
                differs.missing_ids if missing else (),
                differs.gone,
                differs.gone_ids,
                deleted,
            )
        )
    return found


def _short(row: Any, at: Position) -> int:
    """Return the number of entries of a stream that were archived and are not there."""
    there = row["rows"] + (row["lost"] or 0) if row else 0
    return max(0, at.base + at.added - int(there))


def _counted(rows: DataFrame) -> DataFrame:
    # An entry of the log of attempts has one row per attempt; the first row holds the number of
    # attempts.
    attempt = (f.col("kind") == ATTEMPT) & f.map_contains_key("fields", f.lit(PLACE))
    place = f.when(attempt, f.element_at("fields", PLACE))
    number = f.element_at("fields", OF).try_cast("bigint")
    row = f.col("kind") != GAP
    entry = row & (~attempt | (place == "0"))
    wanted = f.sum(f.when(attempt & (place == "0"), number))
    there = f.count_distinct(f.when(attempt, f.struct("id", place)))
    return rows.groupBy("stream").agg(
        f.count_if(entry).alias("rows"),
        (f.count_if(row) - f.count_distinct(f.when(row, f.struct("id", place)))).alias("doubled"),
        (f.coalesce(wanted, f.lit(0)) - there).alias("absent"),
        f.sum("lost").alias("lost"),
    )
