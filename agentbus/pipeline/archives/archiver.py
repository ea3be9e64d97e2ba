"""Archives the streams of a project exactly once, with any number of writers and crashes.

A round reads the ends of the streams, copies new entries into files on Spark, and commits the files
with the new positions as one version of the archive. Of two archivers that copied the same
entries, one gets the version, and the other deletes its files.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.errors import AgentBusError, EpochMismatch, OutcomeUnknown
from agentbus.core.settings import resolve
from agentbus.core.signals import StopEvent
from agentbus.core.stream import position as parts_of
from agentbus.core.timespec import following
from agentbus.pipeline.archives.copying import Copied, CopyJob, write_gaps
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.properties import kept_for, more_masked
from agentbus.pipeline.archives.round_plan import RoundPlan, RoundPlanner
from agentbus.pipeline.archives.versions import (
    START,
    ArchiveSnapshot,
    CommitConflict,
    Position,
    later,
    new_batch,
)
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.masking import masking
from agentbus.pipeline.rows.schema import EVENT, QUEUE
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.discovery import ALL, Discovery, Selection
from agentbus.pipeline.source.range_reader import PAGE, RangeReader
from agentbus.pipeline.spark import task_calls
from agentbus.pipeline.spark.errors import carried
from agentbus.queues import janitor
from agentbus.store.steps import Command

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

INTERVAL = 5.0
# The function that a Spark task runs.
_COPY = "agentbus.pipeline.archives.copying:copy"

NOTHING = Position(START, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Round:
    """The entries that one version added to an archive, and the seconds that this took.

    `lost` is the number of entries that were gone before they could be archived. `complete` is
    false if there were more entries than one version may have.
    """

    version: int
    rows: int
    lost: int
    files: int
    bytes: int
    streams: int
    seconds: float
    complete: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a round: about `done` of `total` entries have been copied."""

    done: int
    total: int
    seconds: float


class Archiver:
    """Archives a project's streams to a path, in rounds.

    `spark` may be a function that opens a session: it is called once, when there is something to copy.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        settings: Settings,
        path: Location,
        *,
        wanted: str = ALL,
        hold: bool = False,
        new_epoch: bool = False,
        mask: Collection[str] = (),
        drop: Collection[str] = (),
        retention: float | None = None,
        page: int = PAGE,
        on_progress: Callable[[Progress], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._start = spark if callable(spark) else lambda: spark
        self._spark = None if callable(spark) else spark
        self._starting = False
        self._settings = settings
        self._hold = hold
        self._page = page
        self._on_progress = on_progress
        self._warn = warn or (lambda _text: None)
        self._masking = masking(mask, drop)
        self._retention = retention
        self._place = place(path)
        self._table = ArchiveTable(self._place)
        self._reader = RangeReader(settings)
        self._planner = RoundPlanner(
            self._reader, Selection(wanted), self._place, new_epoch=new_epoch
        )
        self.project = self._reader.scope.keys.project

    def __enter__(self) -> Archiver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._reader.close()

    def run(
        self,
        *,
        continuous: bool = False,
        interval: float = INTERVAL,
        stop: StopEvent | threading.Event | None = None,
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        """Archive the existing entries; if `continuous`, repeat until `stop` is set.

        A continuous archiver survives temporary failures: a restart of the server, a full disk. It
        ends if Spark cannot be started.
        """
        stop = stop or StopEvent()
        while not stop.is_set():
            try:
                done = self.run_once()
            except AgentBusError as error:
                lasting = error.exit_code != 1 or isinstance(error, EpochMismatch)
                if not continuous or lasting or self._starting:
                    raise
                self._warn(f"{error}; trying again")
                done = None
            if done is not None and on_round is not None:
                on_round(done)
            if done is None or done.complete:
                if not continuous:
                    return
                stop.wait(interval)

    def run_once(self) -> Round | None:
        """Archive the new entries as one version, and return its figures; None without new entries.

        If another archiver commits first, the remaining entries are archived.
        """
        while True:
            began = time.monotonic()
            self._table.create(self.project)
            state = self._table.set_properties(self._properties)
            plan = self._planner.plan(state)
            # A stream that went back in time may have new entries below the archive's position.
            back = {name for name in plan.back if not streams.heals(name)}
            self._mark(state, plan.heads.keys() - back)
            if not plan.changed:
                self._table.settle()
                return None
            if self._spark is None:
                # Plan again after Spark has started: entries are added and trimmed meanwhile.
                self._starting = True
                self._spark = self._start()
                self._starting = False
                continue
            try:
                return self._archive(self._spark, state, plan, began)
            except CommitConflict:
                self._warn(
                    "another archiver works on this archive, too: its version counts, not mine"
                )

    def _properties(self, state: ArchiveSnapshot) -> dict[str, str]:
        """Return the properties of the archive that are to be set."""
        kept = {} if self._retention is None else kept_for(state, self._retention)
        return more_masked(state, self._masking) | kept

    # -- copying --

    def _archive(
        self, spark: SparkSession, state: ArchiveSnapshot, plan: RoundPlan, began: float
    ) -> Round:
        salt = self._reader.run(_salt(self._reader.scope)) if state.masking.mask else b""
        job = CopyJob(
            self._settings, self._place.target, new_batch(), self._page, state.masking, salt
        )
        try:
            copied = self._copy(spark, job, plan, began)
            found = _found(copied)
            rows = {name: number for name, (number, _) in found.items()}
            self._planner.misfits(plan, rows)
            positions, gaps = _account(state, plan, found)
            files = [each.file for each in (*copied, *write_gaps(job, gaps))]
        except BaseException:
            self._place.discard(job.batch)
            raise
        try:
            snapshot = self._table.append(state, job.batch, files, positions)
        except OutcomeUnknown:
            # The commit may exist, as after an interrupt; if not, its files are swept later.
            raise
        except AgentBusError:
            self._place.discard(job.batch)
            raise
        self._table.settle()
        self._mark(snapshot, plan.changed)
        lost = sum(found_gap.lost or 0 for found_gap in gaps)
        self._tell(gaps)
        return Round(
            snapshot.version,
            sum(rows.values()),
            lost,
            len(files),
            sum(file.bytes for file in files),
            len(plan.changed),
            time.monotonic() - began,
            plan.complete,
        )

    def _copy(
        self, spark: SparkSession, job: CopyJob, plan: RoundPlan, began: float
    ) -> list[Copied]:
        told = self._progress(plan.entries, began)
        try:
            copied = task_calls.call(spark, _COPY, job, plan.lots, told)
        except Exception as error:
            # An error of a task, such as a full disk, may pass; a Spark session that has ended does
            # not come back.
            if (found := carried(str(error))) is None:
                raise
            raise found from error
        return [file for each in copied for file in each]

    def _tell(self, gaps: Sequence[StreamGap]) -> None:
        """Warn about entries that are lost, or that only the archive has."""
        if lost := [found for found in gaps if found.lost]:
            number = sum(found.lost or 0 for found in lost)
            were, they = ("entry was", "it") if number == 1 else ("entries were", "they")
            self._warn(f"{number} {were} gone before {they} could be archived ({_names(lost)})")
        if unknown := [found for found in gaps if found.lost is None]:
            self._warn(
                "an unknown number of entries may have been gone before they could be archived"
                f" ({_names(unknown)})"
            )
        if back := [found for found in gaps if found.archive_only]:
            number = sum(found.archive_only or 0 for found in back)
            self._warn(
                f"the server went back in time: {number} archived entries are not on it ({_names(back)})"
            )

    def _progress(self, total: int, began: float) -> Callable[[float], None] | None:
        tell = self._on_progress
        if tell is None:
            return None
        return lambda share: tell(Progress(round(total * share), total, time.monotonic() - began))

    # -- what must not be trimmed yet --

    def _mark(self, state: ArchiveSnapshot, names: Iterable[str]) -> None:
        """Register the first entries that must not be trimmed yet."""
        if self._hold:
            for name in names:
                needed = following(parts_of(state.positions.get(name, NOTHING).id))
                self._reader.run(_hold(self._reader.scope, state, name, needed))


def _salt(scope: Scope) -> Op[bytes]:
    """Return the salt of the project's masks, which the server keeps: an archive must not have it."""
    key = scope.keys.salt
    if (salt := (yield Command("GET", key))) is None:
        yield Command("SET", key, secrets.token_hex(32), "NX")
        salt = yield Command("GET", key)
    return bytes(salt)


def release(settings: Settings, path: Location) -> list[str]:
    """Allow trimming of the entries kept for an archive; return the names of their streams."""
    table = ArchiveTable(place(path))
    state = table.snapshot()
    held = []
    with RangeReader(settings) as reader:
        table.check_project(state, reader.scope.keys.project)
        # A stream can be held before it has a position.
        for name in reader.run(Discovery(reader.scope, Selection()).op(state.positions)):
            if reader.run(_held(reader.scope, state, name)):
                reader.run(_hold(reader.scope, state, name, None))
                held.append(name)
    return held


def _held(scope: Scope, state: ArchiveSnapshot, name: str) -> Op[bool]:
    """Tell whether entries of a stream are, or may have been, kept for the archive."""
    if streams.kind(name) not in (QUEUE, EVENT):
        return False
    if name in state.positions:
        return True
    queue, priority, topic = streams.queue(name), streams.priority(name), streams.topic(name)
    key = scope.keys.event_readers(topic) if topic else scope.keys.readers(queue or "", priority)
    return (yield Command("HGET", key, _reader(state))) is not None


def _reader(state: ArchiveSnapshot) -> str:
    """Return the name under which the archive is registered as a reader."""
    return f"archive:{state.archive}"


def _hold(scope: Scope, state: ArchiveSnapshot, name: str, needed: str | None) -> Op[None]:
    reader = _reader(state)
    if streams.kind(name) == QUEUE:
        queue, priority = streams.queue(name) or "", streams.priority(name)
        yield from janitor.keep(scope, reader, queue, priority, needed)
    elif (topic := streams.topic(name)) is not None:
        yield from janitor.keep_events(scope, reader, topic, needed)


def _found(files: Sequence[Copied]) -> dict[str, tuple[int, str]]:
    """Return the number of entries and the highest id of each stream."""
    found: dict[str, tuple[int, str]] = {}
    for file in files:
        for name, (rows, last) in file.streams.items():
            number, end = found.get(name, (0, START))
            found[name] = number + rows, later(end, last)
    return found


def _names(gaps: Sequence[StreamGap]) -> str:
    return ", ".join(sorted({found.stream for found in gaps})[:5])


def _account(
    state: ArchiveSnapshot, plan: RoundPlan, found: dict[str, tuple[int, str]]
) -> tuple[dict[str, Position], list[StreamGap]]:
    """Return the new positions, and the gaps: entries ever added, minus entries found."""
    positions, gaps = {}, list(plan.gaps)
    for name, (start, end) in plan.changed.items():
        old = state.positions.get(name, NOTHING)
        rows, last = found.get(name, (0, START))
        lost = max(0, end.added - start.added - rows)
        if lost:
            gaps.append(planning.gap(name, lost, start, end, plan.heads[name]))
        total, gone = old.rows + rows, old.lost + lost
        # The base counts the entries that the server no longer counts, because its counter was
        # reset.
        positions[name] = msgspec.structs.replace(
            old,
            id=end.id,
            added=end.added,
            base=total + gone - end.added,
            rows=total,
            lost=gone,
            end=later(old.end, last),
        )
    return positions, gaps


@dataclass(frozen=True, slots=True)
class Archived:
    """Totals of a run: archived and lost entries, files, bytes, and versions."""

    rows: int
    lost: int
    files: int
    bytes: int
    versions: int


def archive(
    spark: SparkSession,
    url: str | None,
    path: Location,
    *,
    project: str | None = None,
    streams: str = ALL,
    hold: bool = False,
    mask: Collection[str] = (),
    drop: Collection[str] = (),
    retention: float | None = None,
    warn: Callable[[str], None] | None = None,
) -> Archived:
    """Archive the existing entries of a project's streams, and return the totals.

    The defaults of `url` and `project` come from the settings. Each entry is archived exactly once,
    even if other processes archive to the path or were killed. `hold` keeps tasks and events from
    being trimmed before they are archived. `mask` names fields whose values are stored as masks, and
    `drop` may name the `payload`; both hold for all later entries of the archive, of any
    archiver. `retention` is for how many seconds replaced versions are kept from now on. Raises
    `EpochMismatch` if the server was restored to a
    state before the archive, `Refused` if the path holds the archive of another project.
    """
    rounds: list[Round] = []
    settings = resolve({"url": url, "project": project})
    options: Any = {"mask": mask, "drop": drop, "retention": retention}
    with Archiver(
        spark, settings, path, wanted=streams, hold=hold, warn=warn, **options
    ) as archiver:
        archiver.run(on_round=rounds.append)
    return Archived(
        sum(done.rows for done in rounds),
        sum(done.lost for done in rounds),
        sum(done.files for done in rounds),
        sum(done.bytes for done in rounds),
        len(rounds),
    )
