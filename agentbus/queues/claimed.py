"""Decodes entries as claimed tasks, and truncates the error texts of their failures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope, tracebacks
from agentbus.core.clock import rfc3339
from agentbus.core.envelope import INBOX, WORK_ITEM
from agentbus.core.stream import is_number
from agentbus.queues import retry_stream
from agentbus.queues.ids import MOVED_FROM, RETRY, split

_TRACEBACK_KEPT = 17_000
# Envelope fields for which the server must admit a task, or for which the task is settled
# separately.
_ADMITTED = frozenset(("ordering_key", "attempts", WORK_ITEM, INBOX))
_TELLING = frozenset(("reply_to", "webhook", "notify", "unique"))
_SETTLED = _TELLING | {"id"}
ALONE = _ADMITTED | _SETTLED
# All tasks without an envelope share this dict; never modify it.
_NO_META: dict[str, Any] = {}
# Length of an entry with an envelope: three fields (payload, meta, agent) with their values.
_ENVELOPED = 6


class NotRun(str):
    """The error of a task that ends without a further attempt."""

    __slots__ = ()


class Expired(NotRun):
    """The error of a task that expired before its next attempt could begin."""

    __slots__ = ()


class Taken:
    """A claimed task: its entry, its payload, and the rest of its envelope."""

    __slots__ = (
        *("attempt", "counted", "entry_id", "error", "meta", "payload", "priority"),
        "uncounted",
        # These slots serve only the attempt log: the start by `time.monotonic`; the duration; the
        # due time in unix ms if the task was put aside; the attempt's number if it is put aside
        # uncounted.
        *("began", "took", "due", "snoozed"),
    )
    if TYPE_CHECKING:
        began: float
        took: float
        due: float
        snoozed: int

    def __init__(
        self,
        entry_id: bytes,
        priority: str,
        payload: Any,
        meta: dict[str, Any],
        attempt: int,
        error: str | None = None,
    ) -> None:
        self.entry_id = entry_id
        self.priority = priority
        self.payload = payload
        self.meta = meta
        self.attempt = attempt
        self.error = error
        # True if this attempt was counted before its start.
        self.counted = False
        # Number of attempts that may be uncounted; None for a first delivery.
        self.uncounted = None if attempt else 1

    @property
    def place(self) -> tuple[str, bytes]:
        """Its stream and its entry there, which together identify it within its queue."""
        return self.priority, self.entry_id

    @property
    def moved_from(self) -> str | None:
        """Its former place, if it was moved to the retry stream; otherwise None."""
        return self.meta.get(MOVED_FROM) if self.priority == RETRY else None

    @property
    def tier(self) -> str:
        """Its priority: the stream that it was published to."""
        place = self.moved_from
        return self.priority if place is None else split(place)[2]

    @property
    def first_entry(self) -> bytes:
        """The id of its entry in the stream of its priority."""
        place = self.moved_from
        return self.entry_id if place is None else place.partition("@")[0].encode()

    @property
    def redelivered(self) -> bool:
        """True if it was delivered before; then its attempts are counted."""
        return self.uncounted is not None

    @property
    def alone(self) -> bool:
        """True if the task must be settled separately, because an acknowledgement alone is not enough."""
        # Most tasks have no such field: one set comparison decides.
        return self.uncounted is not None or (
            not ALONE.isdisjoint(self.meta) and (self.asks or self.asked_first)
        )

    @property
    def tells(self) -> bool:
        """True if the outcome is sent, announced on the channel, or frees the dedup key."""
        return not _TELLING.isdisjoint(self.meta)

    @property
    def asks(self) -> bool:
        """True if the outcome is sent, announced or stored."""
        # A delayed task's id does not name its entry, so its outcome is stored under that id.
        return not _SETTLED.isdisjoint(self.meta)

    @property
    def asked_first(self) -> bool:
        """True if the server must admit the task: by ordering key or work item, or to run only once."""
        return not _ADMITTED.isdisjoint(self.meta) and (
            self.ordered or self.claims or self.only_once
        )

    @property
    def only_once(self) -> bool:
        """True if the task may run only once, so that even its first attempt is counted before it starts.

        A task that a dead worker held but had not begun is thus not mistaken for one that killed the
        worker.
        """
        return self.meta.get("attempts") == 1

    def limit(self, attempts: int) -> int:
        """Return the maximum number of runs: the task's own, or else the worker's."""
        own = self.meta.get("attempts")
        return own if type(own) is int and own > 0 else attempts

    @property
    def time_limit(self) -> float | None:
        """The maximum seconds of an attempt; None if unlimited."""
        seconds = self.meta.get("time_limit")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            return None
        return float(seconds) if 0 < seconds < math.inf else None

    @property
    def expires_at(self) -> float | None:
        """The unix time at which it expires, by the clock of its publication; None for never."""
        seconds = self.meta.get("expires")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            return None
        first, created = self.meta.get("id"), self.meta.get("created_at")
        if isinstance(first, str):
            # The task was delayed or routed, so its entry was written later.
            if isinstance(created, (int, float)):
                return float(created + seconds)
            milliseconds = first.partition("-")[0]
            if is_number(milliseconds):
                return int(milliseconds) / 1000 + float(seconds)
        return int(self.first_entry.partition(b"-")[0]) / 1000 + float(seconds)

    def expired(self, now: float) -> Expired | None:
        """Return the reason why the task must not run at a unix time; None if it may."""
        at = self.expires_at
        if at is None or now < at:
            return None
        # Write it like an exception: reports group dead letters by the text before the colon.
        return Expired(
            f"Expired: the task expired at {rfc3339(at, milliseconds=True)},"
            f" before attempt {self.attempt}"
        )

    @property
    def claims(self) -> bool:
        """True if another program published the task with a work item id or an entry id."""
        return WORK_ITEM in self.meta or INBOX in self.meta

    @property
    def ordered(self) -> bool:
        """True if it has an ordering key."""
        return isinstance(self.meta.get("ordering_key"), str)


class UndecodedTask(Taken):
    """A claimed task whose payload is decoded on first use.

    A large payload is thus decoded while the server executes the worker's next request.
    """

    __slots__ = ("_data", "_payload", "_why")

    def __init__(
        self, entry_id: bytes, priority: str, data: bytes, meta: dict[str, Any], attempt: int
    ) -> None:
        super().__init__(entry_id, priority, None, meta, attempt)
        self._data: bytes | None = data

    @property
    def payload(self) -> Any:
        self._decode()
        return self._payload

    @payload.setter
    def payload(self, payload: Any) -> None:
        self._payload = payload

    @property
    def error(self) -> str | None:
        self._decode()
        return self._why

    @error.setter
    def error(self, error: str | None) -> None:
        self._why = error

    def _decode(self) -> None:
        if self._data is not None:
            data, self._data = self._data, None
            try:
                self._payload = orjson.loads(data)
            except ValueError as error:
                self._why = str(error)


def said(error: BaseException | str) -> str:
    """Return the text of an error, truncated to a maximum length."""
    if isinstance(error, str):
        return _sendable(error)[:2000]
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (`__str__` may fail)
        message = "(no text)"
    return _sendable(f"{type(error).__name__}: {message}")[:2000]


def error_text(error: BaseException | str) -> tuple[str, str]:
    """Return the text and the traceback of an error for a dead letter, both truncated."""
    if isinstance(error, str):
        return said(error), ""
    return said(error), _sendable(tracebacks.shown(error)[-_TRACEBACK_KEPT:])


def _sendable(text: str) -> str:
    # File names that are not UTF-8 contain lone surrogates, which cannot be sent.
    return text.encode("utf-8", "backslashreplace").decode()


def decoded(
    entries: list[Any], priority: str, attempt: int, *, claiming: bool, large: bool = False
) -> tuple[list[Taken], bool]:
    """Return entries as tasks, and whether the server must admit one of them; empties `entries`.

    A malformed task carries its error. Unless `claiming`, tasks claim no work items. `large` payloads are
    decoded on first use.
    """
    tasks: list[Taken] = []
    asks_first, usual = False, claiming and priority != RETRY
    append, agent = tasks.append, envelope.AGENT
    task_of: Any = UndecodedTask if large else Taken
    # For large payloads, `bytes` keeps the payload undecoded.
    loads: Any = bytes if large else orjson.loads
    # Pop each entry to free it once its task exists, so that the garbage collector runs less often.
    entries.reverse()
    pop = entries.pop
    while entries:
        entry_id, flat = pop()
        size = len(flat) if flat else 0
        if (size == 2 or (size == 4 and flat[2] == agent)) and flat[0] == b"payload":
            try:
                append(task_of(entry_id, priority, loads(flat[1]), _NO_META, attempt))
            except ValueError as error:
                append(Taken(entry_id, priority, None, {}, attempt, str(error)))
            continue
        try:
            if (
                (size == _ENVELOPED and usual and flat[4] == agent)
                and (flat[0] == b"payload" and flat[2] == b"meta")
                and type(meta := orjson.loads(flat[3])) is dict
            ):
                # Fast path for an entry as `publish` writes it.
                task = task_of(entry_id, priority, loads(flat[1]), meta, attempt)
            else:
                decode = retry_stream.decode if priority == RETRY else envelope.decode
                payload, meta = decode(flat or [])
                task = Taken(entry_id, priority, payload, meta, attempt)
        except (ValueError, UnicodeDecodeError) as error:
            append(Taken(entry_id, priority, None, {}, attempt, str(error)))
            continue
        if not claiming:
            meta.pop(envelope.WORK_ITEM, None)
            if envelope.INBOX in meta:
                meta[envelope.ROUTED_INBOX] = meta.pop(envelope.INBOX)
        append(task)
        asks_first = asks_first or task.asked_first
    return tasks, asks_first
