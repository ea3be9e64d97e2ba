"""An archive as a Delta table: its versions, and the only function that commits to it.

The library refuses a commit whose version another writer has taken, and accepts everything else: a
file that is not there, the removal of a file that is gone, a transaction number that was used. So
each commit is checked here against the very version that it is made on, and is looked for after
any error, since it may have been made.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from agentbus.core.clock import rfc3339
from agentbus.core.errors import (
    AgentBusError,
    ConfigError,
    EpochMismatch,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unhealthy,
    UsageError,
)
from agentbus.core.timespec import parse_rfc3339, since as starting, stream_id
from agentbus.pipeline.archives.checkpoints import checkpoint
from agentbus.pipeline.archives.directory import bucket_trouble, told
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.properties import (
    CONFIGURATION,
    CONFIGURATION_OF_OTHERS,
    SCHEMA,
    masking_of,
    retention_of,
)
from agentbus.pipeline.archives.versions import (
    POSITION,
    ArchiveSnapshot,
    Change,
    CommitConflict,
    DataFile,
    Position,
)
from agentbus.pipeline.rows import schema, table as rows_table
from agentbus.pipeline.rows.masking import Masking

# The application of the transactions whose number is the number of rounds.
APP = "agentbus"
PARTITIONS = ("kind", "date")
# Seconds within which a writer commits the files that it has written.
_ROUND = 86_400.0
_SWEEP_EVERY = 600.0
# Rows of positions belong to no day, but every row has the partition.
_NO_DAY = "1970-01-01"
# Commits of other engines in between, after each of which a commit is tried again.
_ATTEMPTS = 100
# Each commit would list the whole log, and checkpoints would not be compressed: `checkpoint` does both.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_BATCH, _ACTION, _ROWS = "agentbusBatch", "agentbusAction", "agentbusRows"
APPEND, COMPACT, FOLLOW = "append", "compact", "follow"
# The numbers of tables without a transaction: of one that follows another, and of rounds.
_BEFORE_ALL = (-1, 0)
_LAST_MS = 253402300799999
# A path within the table: neither absolute, nor with a scheme, nor leading out of it.
INSIDE = re.compile(r"(?!/)(?![A-Za-z][A-Za-z0-9+.-]*:)(?!(?:.*/)?\.\.(?:/|\Z)).+", re.DOTALL)
_RESTORE = "restore _delta_log from a copy of the archive"


class ArchiveTable:
    """The Delta table at a place; one object serves one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._table: DeltaTable | None = None
        self._checked = False
        self._swept: float | None = None
        # The newest version that was read, and its files.
        self._listed: tuple[int, dict[str, DataFile]] | None = None
        self._known: ArchiveSnapshot | None = None

    # -- reading --

    def snapshot(self, version: int | None = None) -> ArchiveSnapshot:
        """Return the newest version, or another one that is kept.

        Raises `NotFound`, `UsageError` if there is something else, `EpochMismatch` if the positions
        are not those of the last round, and `Unhealthy` if the table names a file outside of it.
        """
        newest = self._open()
        if version is not None and version != newest.version():
            return self._snapshot(self._at(version, newest.version()))
        if self._known is None or self._known.version != newest.version():
            self._known = self._snapshot(newest)
        return self._known

    def history(self) -> list[Change]:
        """Return the versions that the log still has, newest first."""
        table = self._open()
        try:
            return [_change(entry) for entry in table.history()]
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    def version_as_of(self, text: str) -> int:
        """Return a version given by its number, by a time, or by how long ago it was the newest."""
        if text.isascii() and text.isdigit() and len(text) < 10:
            return self.snapshot(int(text)).version
        point = stream_id(starting(text, time.time()))
        wanted = 0 if point is None else point[0]
        for change in self.history():
            if round((parse_rfc3339(change.at) or 0) * 1000) <= wanted:
                return change.version
        raise NotFound(
            f"{self.place} keeps no version of {text[:40]}",
            hint="history() lists its versions",
            shell_hint="'agentbus archive history' lists its versions",
        )

    def create(self, project: str, columns: pa.Schema | None = None) -> ArchiveSnapshot:
        """Create the table of a project unless it exists; `Refused` if it is another project's.

        Its columns are those of an archive unless others are given.
        """
        configuration = CONFIGURATION if columns is None else CONFIGURATION_OF_OTHERS
        columns = rows_table.arrow() if columns is None else columns
        try:
            state = self.snapshot()
        except NotFound:
            self.place.make()
            try:
                DeltaTable.create(
                    self.place.target.uri(),
                    columns,
                    partition_by=list(PARTITIONS),
                    name=project,
                    description="An archive of AgentBus",
                    configuration=configuration,
                    storage_options=self.place.target.storage_options(),
                    raise_if_key_not_exists=False,
                )
            except (DeltaError, OSError) as error:
                # Another writer may have created it first.
                try:
                    state = self.snapshot()
                except NotFound:
                    raise self._unwritable(error) from error
            else:
                state = self.snapshot()
        self.check_project(state, project)
        return self.add_columns(columns)

    def set_properties(
        self, properties: Callable[[ArchiveSnapshot], dict[str, str]]
    ) -> ArchiveSnapshot:
        """Set the properties of the table that a function returns for its newest version."""
        for _ in range(_ATTEMPTS):
            state = self.snapshot()
            if not (wanted := properties(state)):
                return state
            try:
                table = self._open()
                table.alter.set_table_properties(wanted, raise_if_not_exists=False)
                self._make_durable(table.version())
            except (DeltaError, OSError) as error:
                # Another writer may have set them, or committed.
                self._table = None
                if self._open().version() == state.version:
                    raise self._unwritable(error) from error
        raise self.busy()

    def check_project(self, state: ArchiveSnapshot, project: str) -> None:
        """Raise `Refused` if this is the archive of another project."""
        if state.project != project:
            raise Refused(
                f"{self.place} is the archive of the project {state.project}, not of {project}",
                hint="give each project its own path",
            )

    def _snapshot(self, table: DeltaTable) -> ArchiveSnapshot:
        metadata = table.metadata()
        if metadata.partition_columns != list(PARTITIONS):
            raise UsageError(
                f"{self.place} is a Delta table, and not an archive of AgentBus",
                hint="give the path of an archive, or of a new directory",
            )
        files = self._files(table)
        own = [path for path, file in files.items() if file.kind == POSITION]
        number = table.transaction_version(APP) or 0
        last, positions = self._positions(own, number, table.version())
        return ArchiveSnapshot(
            table.version(),
            str(metadata.id),
            str(metadata.name),
            int(metadata.configuration.get(SCHEMA) or 0),
            int(last["round"]),
            {path: file for path, file in files.items() if file.kind != POSITION},
            positions,
            int(last["held"]),
            int(last["deleted"]),
            [field.name for field in table.schema().fields],
            own,
            masking_of(metadata.configuration),
            retention_of(metadata.configuration),
        )

    def _open(self) -> DeltaTable:
        """Return the table at its newest version."""
        if not self._checked:
            self.place.check()
        options = self.place.target.storage_options()
        try:
            if self._table is None:
                self._table = DeltaTable(self.place.target.uri(), storage_options=options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            others = [name for name in self.place.top() if name != "_delta_log"]
            # They may be the files of a writer that has created the archive in between.
            if others and DeltaTable.is_deltatable(self.place.target.uri(), options):
                return self._open()
            if others:
                raise UsageError(
                    f"{self.place} is not an archive of AgentBus: it holds {others[0][:80]!a} and no log",
                    hint="give the path of an archive, or of a new directory",
                ) from None
            raise NotFound(
                f"there is no archive at {self.place}", hint="archive to that path first"
            ) from None
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error
        self._checked = True
        return self._table

    def _at(self, version: int, newest: int) -> DeltaTable:
        options = self.place.target.storage_options()
        try:
            if 0 <= version < newest:
                return DeltaTable(self.place.target.uri(), version, storage_options=options)
        except (DeltaError, OSError):
            pass
        raise NotFound(
            f"{self.place} has no version {version}",
            hint="history() lists its versions",
            shell_hint="'agentbus archive history' lists its versions",
        )

    def _files(self, table: DeltaTable) -> dict[str, DataFile]:
        """Return the files of a version. Raises `Unhealthy` for one that lies elsewhere."""
        if self._listed is not None and self._listed[0] == table.version():
            return self._listed[1]
        try:
            found: Any = pa.table(table.get_add_actions(flatten=True))
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error

        def column(name: str, default: Any = None) -> list[Any]:
            if name not in found.column_names:
                return [default] * found.num_rows
            if pa.types.is_timestamp(found[name].type):
                at = pc.floor_temporal(found[name], unit="millisecond")
                at = at.cast(pa.timestamp("ms", found[name].type.tz)).cast(pa.int64())
                return [*at.to_pylist()]
            return [*found[name].to_pylist()]

        def ends(name: str) -> list[tuple[str, str] | None]:
            both = zip(column(f"min.{name}"), column(f"max.{name}"), strict=True)
            return [None if None in each else each for each in both]

        files = {}
        for path, kind, date, rows, size, low, high, streams, queues in zip(
            column("path"),
            column("partition.kind"),
            column("partition.date"),
            column("num_records"),
            column("size_bytes"),
            column("min.time"),
            column("max.time"),
            ends("stream"),
            ends("queue"),
            strict=True,
        ):
            if not INSIDE.fullmatch(path):
                raise Unhealthy(
                    f"the log of {self.place} names the data file {path[:200]!a}, which lies elsewhere",
                    hint=f"somebody changed it: {_RESTORE}",
                )
            # Another engine may have written no statistics: the file may hold any time.
            times = 0 if low is None else low, 2**63 - 1 if high is None else high
            files[path] = DataFile(
                path, kind or "", str(date or ""), rows or 0, size, *times, streams, queues
            )
        self._listed = table.version(), files
        return files

    def _positions(
        self, own: Sequence[str], number: int, version: int
    ) -> tuple[Mapping[str, Any], dict[str, Position]]:
        """Return the totals after the last round, and the positions of the streams.

        Raises `EpochMismatch` unless they are of a round, `NotFound` if they were deleted with an older
        version.
        """
        rows: list[dict[str, Any]] = []
        system, root = self.place.target.filesystem()
        for path in own:
            try:
                with told("read", f"{root}/{path}"):
                    read = pq.read_table(f"{root}/{path}", filesystem=system, columns=["fields"])
            except (NotFound, pa.ArrowException) as error:
                if isinstance(error, NotFound) and version < self._open().version():
                    raise gone(self.place, version) from error
                raise Unhealthy(
                    f"{self.place.uri(path)}, the positions of the archive, cannot be read",
                    hint="restore it from a copy of the archive",
                ) from error
            rows += [dict(fields) for fields in read.column("fields").to_pylist()]
        last = max((int(row["round"]) for row in rows), default=0)
        if last != number:
            raise EpochMismatch(
                f"the positions in {self.place} are of round {last}, and its last round is {number}",
                hint="another program restored or deleted them: restore the newest version",
            )
        totals: Mapping[str, Any] = {"round": 0, "held": 0, "deleted": 0}
        positions = {}
        for row in rows:
            if int(row.pop("round")) != last:
                continue
            if (stream := row.pop("stream", None)) is None:
                totals = row | {"round": last}
            else:
                figures = {name: int(row[name]) for name in ("added", "base", "rows", "lost")}
                positions[stream] = Position(id=row["id"], end=row["end"], **figures)
        return totals, positions

    # -- writing --

    def append(
        self,
        base: ArchiveSnapshot,
        batch: str,
        files: Sequence[DataFile],
        positions: Mapping[str, Position],
    ) -> ArchiveSnapshot:
        """Commit a round: its files, and the positions that it changed, as one transaction.

        The data files exist already. Raises `CommitConflict`, without a change, if another writer
        has committed a round since `base`.
        """
        number = base.round + 1
        added = sum(file.rows for file in files)
        totals = {"held": str(base.rows + added), "deleted": str(base.deleted_rows)}
        held = self._write_positions({**base.positions, **positions}, totals, batch, number)
        round_ = APP, base.round, number
        return self._commit(base, APPEND, batch, [*files, held], base.own, transaction=round_)

    def replace(
        self,
        base: ArchiveSnapshot,
        action: str,
        batch: str,
        files: Sequence[DataFile],
        removed: Collection[str],
    ) -> ArchiveSnapshot:
        """Replace files by others in one commit; in a compaction, their rows are the same.

        Raises `CommitConflict`, without a change, if one of the files is gone.
        """
        return self._commit(base, action, batch, files, removed, changes=action != COMPACT)

    def follow(
        self,
        base: ArchiveSnapshot,
        batch: str,
        files: Sequence[DataFile],
        removed: Collection[str],
        transaction: tuple[str, int, int],
    ) -> ArchiveSnapshot:
        """Commit what another table's versions changed, up to the last number of the transaction.

        A transaction is the name of the other table, and its versions before and after. Raises
        `CommitConflict`, without a change, if this table is not at the version before.
        """
        return self._commit(base, FOLLOW, batch, files, removed, transaction=transaction)

    def followed(self, name: str) -> int:
        """Return the version of another table that this one has followed up to; -1 for none."""
        version = self._open().transaction_version(name)
        return -1 if version is None else version

    def types(self) -> dict[str, pa.DataType]:
        """Return the columns of the newest version, each with its type."""
        fields: Any = pa.schema(self._open().schema().to_arrow())
        return {field.name: field.type for field in fields}

    def add_columns(self, columns: pa.Schema) -> ArchiveSnapshot:
        """Add the columns that the table lacks: in an append, the library ignores new columns."""
        for _ in range(_ATTEMPTS):
            state = self.snapshot()
            new = [name for name in columns.names if name not in state.columns]
            if not new:
                return state
            try:
                fields = Schema.from_arrow(pa.schema([columns.field(name) for name in new])).fields
                self._open().alter.add_columns(fields)
            except DeltaError:
                # Another writer may have added them, or committed.
                self._table = None
        raise self.busy()

    def _commit(
        self,
        base: ArchiveSnapshot,
        action: str,
        batch: str,
        files: Sequence[DataFile],
        removed: Collection[str],
        *,
        transaction: tuple[str, int, int] | None = None,
        changes: bool = True,
    ) -> ArchiveSnapshot:
        self._require_files(files)
        numbers = [] if transaction is None else [transaction]
        now = time.time_ns() // 1_000_000
        rows = sum(file.rows for file in files if file.kind != POSITION)
        adds = [
            AddAction(file.path, file.bytes, _partition(file), now, changes, _statistics(file))
            for file in files
        ]
        for _ in range(_ATTEMPTS):
            table = self._open()
            listed = self._files(table)
            if transaction is not None:
                self._require_round(table, *transaction[:2])
                self._require_masking(table, base.masking)
            self._require_listed(listed, removed)
            gone = [
                RemoveAction(path, changes, now, listed[path].bytes, _partition(listed[path]))
                for path in removed
                if path in listed
            ]
            before = table.version()
            try:
                table.create_write_transaction(
                    [*adds, *gone],
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(PARTITIONS),
                    commit_properties=CommitProperties(
                        custom_metadata={_BATCH: batch, _ACTION: action, _ROWS: str(rows)},
                        # A repetition by the library would be on another version.
                        max_commit_retries=0,
                        app_transactions=[Transaction(app, number) for app, _, number in numbers],
                    ),
                    post_commithook_properties=_NO_HOOKS,
                )
            except (DeltaError, OSError) as error:
                # The library says the same of a lost race, of a full disk, and of a lost reply.
                self._table = None
                version = self._committed(batch, before, error)
                if version is None:
                    if self._open().version() == before:
                        raise self._unwritable(error) from error
                    continue
            else:
                # The library does not repeat the attempt on a later version.
                version = before + 1
            return self._after(version)
        raise self.busy()

    def _after(self, version: int) -> ArchiveSnapshot:
        """Return the version that a commit made, once it is durable."""
        try:
            self._make_durable(version)
            checkpoint(self.place, version)
            return self.snapshot(version)
        except (AgentBusError, DeltaError, OSError) as error:
            # The commit exists: any other error would say that it does not.
            raise _unknown(self.place, error) from error

    def _require_files(self, files: Sequence[DataFile]) -> None:
        """Raise unless each file is there, whole: the library would commit it unseen."""
        sizes = self.place.sizes([file.path for file in files])
        for file, size in zip(files, sizes, strict=True):
            if size != file.bytes:
                raise AgentBusError(
                    f"{self.place.uri(file.path)} is"
                    + (" not there" if size is None else f" {size} bytes long, not {file.bytes}"),
                    hint="nothing was committed; try again",
                )

    def _require_round(self, table: DeltaTable, app: str, number: int) -> None:
        """Raise `CommitConflict` unless the version is at a number: the library takes any."""
        version = table.transaction_version(app)
        if (_BEFORE_ALL[app == APP] if version is None else version) != number:
            raise CommitConflict(f"round {number + 1} of {self.place} is taken")

    def _require_masking(self, table: DeltaTable, known: Masking) -> None:
        """Raise `CommitConflict` unless the version masks what the rows were masked by."""
        if masking_of(table.metadata().configuration) != known:
            raise CommitConflict(f"{self.place} masks other fields since")

    def _require_listed(self, listed: Collection[str], removed: Collection[str]) -> None:
        """Raise `CommitConflict` if a file to remove is gone: its rows are in another file."""
        if any(path not in listed for path in removed):
            raise CommitConflict(f"another writer has replaced files of {self.place}")

    def _committed(self, batch: str, before: int, error: BaseException) -> int | None:
        """Return the version that a batch made after another version, None if it made none."""
        try:
            table = self._open()
            newer = table.history(max(1, table.version() - before))
        except (DeltaError, OSError, AgentBusError) as other:
            raise _unknown(self.place, error) from other
        versions = (int(entry["version"]) for entry in newer if entry.get(_BATCH) == batch)
        return next(versions, None)

    def _make_durable(self, version: int) -> None:
        """Sync a commit to disk: the library leaves that to the system."""
        self.place.sizes([f"_delta_log/{version:020d}.json"])

    def _write_positions(
        self,
        positions: Mapping[str, Position],
        totals: Mapping[str, str],
        batch: str,
        number: int,
    ) -> DataFile:
        """Write the totals and the positions of all streams as rows, and return their file."""
        fields = [dict(totals)] + [
            {"stream": name} | {field: str(getattr(at, field)) for field in at.__struct_fields__}
            for name, at in sorted(positions.items())
        ]
        own = pa.schema([schema.ARROW.field(name) for name in ("version", "fields")])
        rows = [
            {"version": schema.VERSION, "fields": {"round": str(number)} | each} for each in fields
        ]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=own), sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        path = f"kind={POSITION}/date={_NO_DAY}/{batch}.parquet"
        self.place.write(path, data)
        return DataFile(path, POSITION, _NO_DAY, len(rows), len(data), 0, -1)

    # -- deleting --

    def settle(self) -> None:
        """Delete files that no kept version needs, at the first call, then every ten minutes."""
        now = time.monotonic()
        if self._swept is None or now - self._swept >= _SWEEP_EVERY:
            self.sweep(self.snapshot().retention)
            self._swept = now

    def sweep(self, retention: float, round_seconds: float = _ROUND) -> list[str]:
        """Delete files that no kept version needs, and return their paths.

        These are files removed more than `retention` seconds ago and, `round_seconds` after they were
        written, files that no commit names: a writer may still be about to commit younger ones. The
        library's own vacuum is only asked what it would delete: it follows any path that a log names.
        """
        # Reopen it: a checkpoint that this needs may have been deleted since.
        self._table = None
        table = self._open()
        longest = retention_of(table.metadata().configuration)
        if not 0 <= retention <= longest:
            raise UsageError(f"a grace of {retention:g} s is not between 0 and {longest:g} s")
        kept = self._files(table)
        every = {*table.vacuum(0, dry_run=True, enforce_retention_duration=False)}
        hours = -int(-retention // 3600)
        expired = {*table.vacuum(hours, dry_run=True, enforce_retention_duration=False)}
        removed = {self._relative(path) for path in expired}
        needed = {self._relative(path) for path in every - expired}
        oldest = time.time() - round_seconds
        deleted = []
        folders = [f"kind={kind}" for kind in (*schema.KINDS, POSITION)]
        for entry in [entry for folder in folders for entry in self.place.listing(folder)]:
            old = entry.modified < oldest and entry.name not in needed
            if entry.name not in kept and (entry.name in removed or old):
                self.place.delete(entry.name)
                deleted.append(entry.name)
        return deleted

    def _relative(self, path: str) -> str:
        return posixpath.normpath(path.removeprefix(f"{self.place.target.uri()}/"))

    def _unreadable(self, error: Exception) -> AgentBusError:
        if (of_bucket := bucket_trouble("read", str(self.place), error)) is not None:
            return of_bucket
        reason = _reason(error)
        if "Unsupported" in reason or "not supported" in reason:
            return ConfigError(
                f"the log of {self.place} cannot be read: {reason}",
                hint="pip install --upgrade agentbus-toolkit deltalake",
            )
        return Unhealthy(f"the log of {self.place} cannot be read: {reason}", hint=_RESTORE)

    def _unwritable(self, error: Exception) -> AgentBusError:
        if (of_bucket := bucket_trouble("write", str(self.place), error)) is not None:
            return of_bucket
        return AgentBusError(
            f"cannot write the log of {self.place}: {_reason(error)}",
            hint="free some space, or check the permissions; nothing was committed",
        )

    def busy(self) -> Refused:
        """Return the error for a commit that others came before again and again."""
        return Refused(
            f"others commit to {self.place} all the time", hint="try again when less is going on"
        )


def gone(place: Place, version: int) -> NotFound:
    """Return the error for a version that can no longer be read."""
    return NotFound(
        f"version {version} of {place} is gone: its files were replaced and deleted",
        hint="read a newer version",
    )


def _unknown(place: Place, error: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether a version was added to {place} is unknown: {_reason(error)}",
        hint="start again: what is in the archive is exact",
    )


def _reason(error: BaseException) -> str:
    """Return the first line of an error of the library, whose others are a trace."""
    return str(error).partition("\n")[0][:200]


def _change(entry: Mapping[str, Any]) -> Change:
    rows = entry.get(_ROWS)
    return Change(
        int(entry["version"]),
        rfc3339(int(entry.get("timestamp") or 0) / 1000, milliseconds=True),
        str(entry.get(_ACTION) or entry.get("operation") or "").lower(),
        None if rows is None else int(rows),
        str(entry.get("engineInfo") or ""),
    )


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"kind": file.kind, "date": file.date}


def _statistics(file: DataFile) -> str:
    """Return the statistics by which readers skip files, as Delta writes them."""
    known: dict[str, Any] = {"numRecords": file.rows}
    if 0 <= file.from_ms <= file.to_ms <= _LAST_MS and file.streams is not None:
        low: dict[str, Any] = {"stream": file.streams[0], "time": _moment(file.from_ms)}
        high: dict[str, Any] = {"stream": file.streams[1], "time": _moment(file.to_ms)}
        nulls = {"stream": 0, "time": 0}
        if file.queues is not None:
            low["queue"], high["queue"] = file.queues
        known |= {"minValues": low, "maxValues": high, "nullCount": nulls}
    return orjson.dumps(known).decode()


def _moment(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03d}Z"
