"""Finds the streams of a project, and selects the requested ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError
from agentbus.pipeline.rows.schema import (
    ATTEMPT,
    CHANNEL,
    DEAD_LETTER,
    EVENT,
    INBOX,
    METRICS,
    QUEUE,
)
from agentbus.pipeline.rows.streams import kind
from agentbus.queues.ids import PRIORITIES
from agentbus.store.scan import members, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds between two scans of all keys, which take a while on a large server. Streams of registered
# queues are found at once; dead letters, events and queues of other programs are found by a scan.
SCAN_EVERY = 60.0

_WORDS = {
    "channel": CHANNEL,
    "queues": QUEUE,
    "dead-letters": DEAD_LETTER,
    "metrics": METRICS,
    "events": EVENT,
    "inboxes": INBOX,
    "attempts": ATTEMPT,
}
ALL = ",".join(_WORDS)


class Selection:
    """The requested streams: by kind (`channel,queues`), or by name (`q:mail`)."""

    def __init__(self, words: str = ALL) -> None:
        self._kinds: set[str] = set()
        self._names: set[str] = set()
        for word in filter(None, (part.strip() for part in words.split(","))):
            if word in _WORDS:
                self._kinds.add(_WORDS[word])
            elif kind(word) is not None:
                self._names.add(word)
            else:
                raise UsageError(
                    f"{word[:80]!a} is not a stream",
                    hint=f"name some of {ALL}, or a stream such as q:mail, q:mail:high,"
                    " dlq:mail:default, ev:orders, inbox:reviewer",
                )
        if not self._kinds and not self._names:
            raise UsageError("no streams were named", hint=f"name some of {ALL}")

    def __contains__(self, name: str) -> bool:
        found = kind(name)
        return found is not None and (found in self._kinds or name in self._names)

    def scanned(self) -> tuple[str, ...]:
        """Return the kinds of keys to scan for streams."""
        found = (("q", QUEUE), ("dlq", DEAD_LETTER), ("ev", EVENT), ("inbox", INBOX))
        return tuple(key for key, what in found if what in self._kinds)

    def certain(self) -> set[str]:
        """Return the names that are selected whether they exist or not."""
        found = set(self._names)
        if CHANNEL in self._kinds:
            found.add("ch:main")
        if METRICS in self._kinds:
            found.add("metrics")
        if ATTEMPT in self._kinds:
            found.add("attempts")
        return found


class Discovery:
    """Finds the requested streams of a project, including those created since the last call."""

    def __init__(
        self,
        scope: Scope,
        selection: Selection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scope = scope
        self._selection = selection
        self._monotonic = monotonic
        self._known: set[str] = set()
        self._next: float | None = None

    def op(self, known: Iterable[str] = ()) -> Op[list[str]]:
        """Return the names of streams that may exist, sorted, including the `known` ones."""
        self._known.update(name for name in known if name in self._selection)
        now = self._monotonic()
        if self._next is None or now >= self._next:
            for key_kind in self._selection.scanned():
                self._add(*(yield from scan(self._scope, key_kind)))
            self._next = now + SCAN_EVERY
        elif "q" in self._selection.scanned():
            for name in (yield from members(self._scope.keys.queues)):
                self._add(*(self._scope.keys.queue(name, p) for p in PRIORITIES))
        return sorted(self._known | self._selection.certain())

    def _add(self, *keys: str) -> None:
        prefix = f"{self._scope.keys.project}:"
        for key in keys:
            name = key.removeprefix(prefix)
            # Surrogates replace bytes that are not UTF-8: a key with such bytes is another
            # program's.
            if name in self._selection and not any("\ud800" <= c <= "\udfff" for c in name):
                self._known.add(name)
