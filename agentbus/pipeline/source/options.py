"""The options of the data source, read and checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agentbus.core.errors import ConfigError, NotFound, UsageError
from agentbus.core.settings import resolve
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.file_selection import check_schema
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.source.discovery import ALL, Selection
from agentbus.pipeline.source.range_reader import PAGE
from agentbus.queues.rerun import point
from agentbus.store.scope import server_time
from agentbus.store.url import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.core.settings import Settings
    from agentbus.pipeline.archives.versions import ArchiveSnapshot
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_KNOWN = (
    *("url", "project", "streams", "from", "to"),
    *("partitionRows", "pageRows", "maxRowsPerTrigger"),
)
_OF_ARCHIVES = (
    *("path", "version", "sinceVersion", "from", "to", "streams"),
    *("partitionRows", "maxRowsPerTrigger"),
)
# Options of Spark itself, which it passes to every source.
_SPARKS = ("header",)
PARTITION = 100_000
_LOAD = "load takes the path of an archive, or nothing, to read the server's streams: name those by streams"


class Options:
    """The options of a source, and the driver's settings that result from them."""

    def __init__(self, given: Mapping[str, str], settings: Settings | None = None) -> None:
        values = _known(given, _KNOWN, "the source agentbus")
        self.settings = settings or resolved(values)
        self.selection = Selection(values.get("streams", ALL))
        self.partition_rows = number(values, "partitionRows") or PARTITION
        self.page_rows = number(values, "pageRows") or PAGE
        self.most = number(values, "maxRowsPerTrigger")
        self._from = values.get("from")
        self._to = values.get("to")

    def refuse_end(self) -> None:
        """Raise `UsageError` if an end was given: a stream has no end."""
        if self._to is not None:
            raise UsageError(
                "the option to is not for a stream", hint="filter by time, or read at rest"
            )

    def bounds(self, scope: Scope) -> Op[tuple[str | None, str | None]]:
        """Return the first and the last id to read, None for no bound; both are inclusive."""
        if self._from is None and self._to is None:
            return None, None
        now = yield from server_time(scope)
        low = None if self._from is None else point(self._from, "", now)
        high = None if self._to is None else point(self._to, "", now, last=True)
        return low, high


class ArchiveOptions:
    """The options of a read of an archive: `from` and `to` are ids, inclusive.

    With `sinceVersion`, only rows that later versions added are read.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        values = _known(given, _OF_ARCHIVES, "the source agentbus, for an archive,")
        try:
            self.place = place(values["path"])
        except UsageError as error:
            raise UsageError(error.message, hint=_LOAD) from error
        self.version = number(values, "version", least=0)
        self.since_version = number(values, "sinceVersion", least=0)
        self.most = number(values, "maxRowsPerTrigger")
        self.selection = Selection(values.get("streams", ALL))
        self.partition_rows = number(values, "partitionRows") or PARTITION
        now = time.time()
        self.low, self.high = (
            None if name not in values else point(values[name], "", now, last=name == "to")
            for name in ("from", "to")
        )

    def opened(self) -> tuple[ArchiveTable, ArchiveSnapshot]:
        """Return the archive's table, and the version to read. Raises `NotFound`, `UsageError`."""
        table = ArchiveTable(self.place)
        try:
            state = table.snapshot()
        except (NotFound, UsageError) as error:
            raise type(error)(error.message, hint=_LOAD) from error
        if self.version is not None:
            state = table.snapshot(self.version)
        check_schema(self.place, state)
        return table, state


def is_archive(given: Mapping[str, str]) -> bool:
    """Tell whether the options name an archive."""
    return any(name.lower() in ("path", "paths") for name in given)


def _known(given: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """Return options by lower-case name. Raises `UsageError` for an unknown option."""
    # `since_version` is `sinceVersion`.
    values = {
        name.lower().replace("_", ""): value
        for name, value in given.items()
        if name.lower() not in _SPARKS
    }
    if "paths" in values:
        raise UsageError("several paths are given to load", hint="read each archive by itself")
    unknown = sorted(set(values) - {name.lower() for name in known})
    if unknown and unknown[0].startswith("option."):
        raise UsageError(
            f"Spark's catalog cannot keep a table of {what}",
            hint="use CREATE TEMPORARY VIEW … USING agentbus OPTIONS (…)",
        )
    if unknown:
        raise UsageError(
            f"{what} has no option {unknown[0][:60]!a}", hint=f"it has {', '.join(known)}"
        )
    return values


def resolved(values: Mapping[str, str], **more: str | None) -> Settings:
    """Return settings from the options `url` and `project`, and otherwise from the driver.

    Raises `ConfigError` for a URL with a password.
    """
    url = values.get("url")
    if url is not None and read(url).masked() != url:
        raise ConfigError(
            "the option url holds a password, which Spark would show in plans and logs",
            hint="set AGENTBUS_URL in the environment of the driver instead",
        )
    return resolve({"url": url, "project": values.get("project"), **more})


def number(values: Mapping[str, str], name: str, least: int = 1) -> int | None:
    """Return a whole number from `least` on; raises `UsageError` for anything else."""
    text = values.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) >= least):
        raise UsageError(
            f"the option {name} is {text[:40]!a}", hint=f"give a number above {least - 1}"
        )
    return int(text)
