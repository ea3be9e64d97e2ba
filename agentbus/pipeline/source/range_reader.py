"""Reads ranges of streams as rows, one page at a time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import text
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.decoding import Entry, batch, gap
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import epochs
from agentbus.pipeline.source.connection import ServerConnection
from agentbus.pipeline.source.planning import Range, ReadPosition
from agentbus.store.steps import Batch, Command, ServerReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from agentbus.core.settings import Settings
    from agentbus.store.steps import Op

# Maximum entries of a page, and its approximate bytes: a single entry may have 256 KiB.
PAGE = 10_000
_PAGE_BYTES = 8_000_000
_FIRST_PAGE, _LOOKED_AT = 200, 8
# Maximum number of ranges of different streams per exchange.
_AT_ONCE = 20


class _DecodedPage:
    """Entries of some streams, decoded to rows while the server works on the next page."""

    def __init__(self, groups: Sequence[tuple[str, Sequence[Entry]]] = ()) -> None:
        self._groups = groups
        self._rows: list[pa.RecordBatch] = []

    def decode(self) -> None:
        """Decode the rows; an error is raised later, when `rows` decodes them again."""
        with contextlib.suppress(Exception):
            self.rows()

    def rows(self) -> list[pa.RecordBatch]:
        """Return the decoded rows, none without entries."""
        if self._groups and not self._rows:
            self._rows = [batch(self._groups)]
        return self._rows


class RangeReader(ServerConnection):
    """Reads ranges of streams from the server of the settings."""

    def __init__(self, settings: Settings, *, page: int = PAGE) -> None:
        super().__init__(settings)
        self._page = page
        # By kind: the number of entries that fill a page's bytes.
        self._fits: dict[str, int] = {}

    def read(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of ranges as rows, in batches of one kind, each stream in order.

        A range whose entries were counted also yields a row for entries lost since.
        """
        waiting: dict[str, list[Range]] = {}
        for part in ranges:
            kind = streams.kind(part.stream)
            assert kind is not None
            waiting.setdefault(kind, []).append(part)
        for kind, parts in waiting.items():
            for at in range(0, len(parts), _AT_ONCE):
                yield from self._read(kind, parts[at : at + _AT_ONCE])

    def _read(self, kind: str, parts: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        after = [part.after for part in parts]
        seen = [0] * len(parts)
        left = list(range(len(parts)))
        before = _DecodedPage()
        while left:
            count = max(1, self._count(kind) // len(left))
            pages = self.run(self._pages(parts, left, after, count, before.decode))
            yield from before.rows()
            groups = []
            for n, page in zip(left, pages, strict=True):
                if page:
                    groups.append((parts[n].stream, page))
                    seen[n] += len(page)
                    after[n] = text(page[-1][0])
            if groups:
                self._learn(kind, groups)
            before = _DecodedPage(groups)
            left = [n for n, page in zip(left, pages, strict=True) if len(page) == count]
        yield from before.rows()
        for part, number in zip(parts, seen, strict=True):
            if part.added is not None:
                start = ReadPosition(part.after)
                self.run(epochs.check(self.scope, part.stream, start, part.added, number))
            if part.expected is not None and number < part.expected:
                lost = part.expected - number
                yield gap(StreamGap(part.stream, lost, part.until, part.after, None))

    def _pages(
        self,
        parts: Sequence[Range],
        left: Sequence[int],
        after: Sequence[str],
        count: int,
        meanwhile: Callable[[], None],
    ) -> Op[list[Any]]:
        asked = [
            (
                *("XRANGE", self.scope.keys.stream(parts[n].stream), f"({after[n]}"),
                *(parts[n].until, "COUNT", count),
            )
            for n in left
        ]
        replies: list[Any] = [None]
        if len(asked) > 1:
            together = Batch(asked)
            together.meanwhile = meanwhile
            replies = yield together
        for n, reply in enumerate(replies):
            if reply is None or isinstance(reply, ServerReply):
                # A separate command raises the error, or is retried.
                alone = Command(*asked[n])
                alone.meanwhile = meanwhile
                replies[n] = yield alone
        return replies

    def _count(self, kind: str) -> int:
        return min(self._page, self._fits.get(kind, _FIRST_PAGE))

    def _learn(self, kind: str, groups: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Estimate from a sample of entries how many fill a page."""
        most = max(
            sum(map(len, entry[1] or ()))
            for _, page in groups
            for entry in page[:: max(1, len(page) // _LOOKED_AT)]
        )
        self._fits[kind] = max(1, _PAGE_BYTES // (most + 100))
