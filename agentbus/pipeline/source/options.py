"""The options of the data source, read and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.metrics_reader import server_time
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.settings import resolve
from agentbus.pipeline.source.discovery import ALL, Selection
from agentbus.pipeline.source.range_reader import PAGE
from agentbus.queues.rerun import point
from agentbus.store.url import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_KNOWN = (
    *("url", "project", "streams", "from", "to"),
    *("partitionRows", "pageRows", "maxRowsPerTrigger"),
)
# Spark's own, which it hands to every source.
_SPARKS = ("path", "header")
PARTITION = 100_000


class Options:
    """The options of a source, and the settings that they resolve to on the driver."""

    def __init__(self, given: Mapping[str, str], settings: Settings | None = None) -> None:
        values = {
            name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS
        }
        unknown = sorted(set(values) - {name.lower() for name in _KNOWN})
        if unknown:
            raise UsageError(
                f"the source agentbus has no option {unknown[0][:60]!a}",
                hint=f"it has {', '.join(_KNOWN)}",
            )
        self.settings = settings or resolved(values)
        self.selection = Selection(values.get("streams", ALL))
        self.partition_rows = number(values, "partitionRows") or PARTITION
        self.page_rows = number(values, "pageRows") or PAGE
        self.most = number(values, "maxRowsPerTrigger")
        self._from = values.get("from")
        self._to = values.get("to")

    def refuse_end(self) -> None:
        """Raise `UsageError` if an end was given: a stream has none."""
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


def resolved(values: Mapping[str, str], **more: str | None) -> Settings:
    """Return the settings by the options `url` and `project`, and what the driver has for the rest.

    Raises `ConfigError` for a URL with a password.
    """
    url = values.get("url")
    if url is not None and read(url).masked() != url:
        raise ConfigError(
            "the option url holds a password, which Spark would show in plans and logs",
            hint="set AGENTBUS_URL in the environment of the driver instead",
        )
    return resolve({"url": url, "project": values.get("project"), **more})


def number(values: Mapping[str, str], name: str) -> int | None:
    """Return a whole number above 0; raises `UsageError` for anything else."""
    text = values.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0):
        raise UsageError(f"the option {name} is {text[:40]!a}", hint="give a number above 0")
    return int(text)
