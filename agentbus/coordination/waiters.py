"""Records which agents wait for which flags, so that others can see it."""

from __future__ import annotations

from agentbus.core.record import Record
from agentbus.core.stream import is_number, text
from agentbus.store.steps import Batch, LinkDown, Script, ServerReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds between two renewals of a record, and milliseconds after which it expires.
_RENEWED = 10.0
_KEPT_MS = 30_000
# Maximum number of waits to list.
_MOST = 10_000


class Waiter(Record):
    """An agent that waits until a flag is in a state, `since` a unix time."""

    flag: str
    until: str
    agent_id: str
    since: float


class Waiting:
    """The record of one wait for flags. Failures are ignored, because nothing depends on the record."""

    def __init__(self, scope: Scope, flags: Sequence[str], until: str) -> None:
        self._scope = scope
        keys = scope.keys
        self._keys = [
            keys.waiting,
            *(
                key
                for flag in flags
                for key in (keys.flag(flag), keys.done(flag), keys.failed(flag))
            ),
        ]
        self._flags = flags
        self._about = until, scope.agent, scope.token()
        # The server dates the records when they are first written.
        self._since = ""
        self._renewed = float("-inf")

    def renew(self) -> Op[None]:
        """Write the record if it is due."""
        if self._scope.monotonic() - self._renewed >= _RENEWED:
            self._renewed = self._scope.monotonic()
            yield from self._write(_KEPT_MS)

    def end(self) -> Op[None]:
        """Delete the record if there is one."""
        if self._renewed > float("-inf"):
            yield from self._write(0)

    def _write(self, kept: int) -> Op[None]:
        until, agent, token = self._about
        about = f"{until}\n{agent}\n{self._since}\n{token}"
        records = [f"{flag}\n{about}" for flag in self._flags]
        try:
            # Send the end of a wait without waiting for the reply, before the caller continues.
            since = yield Script(
                "record_waiters",
                self._keys,
                (kept, *records),
                optional=True,
                posted=not kept,
            )
            self._since = self._since or since
        except (LinkDown, ServerReply):
            return


def waiters(scope: Scope) -> Op[list[Waiter]]:
    """Return the waiting agents and their flags, ordered by flag and time."""
    time, records = yield Batch(
        [("TIME",), ("ZREVRANGE", scope.keys.waiting, 0, _MOST - 1, "WITHSCORES")]
    )
    if not isinstance(records, list):
        return []
    now = int(time[0]) * 1000
    waiting = []
    for record, until in zip(records[::2], records[1::2], strict=True):
        parts = text(record).split("\n")
        # Another program may have written any record.
        if float(until) > now and len(parts) == 5 and is_number(parts[3]):
            flag, state, agent, since, _ = parts
            waiting.append(Waiter(flag, state, agent, int(since) / 1000))
    return sorted(waiting, key=lambda waiter: (waiter.flag, waiter.since))
