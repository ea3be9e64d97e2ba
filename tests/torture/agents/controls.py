"""The library with one fault each, as other programs have it, which the checks must catch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentbus.coordination import inbox, receipts, tell
from agentbus.core.stream import position, text
from agentbus.store import resp
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from agentbus.coordination.inbox import Page
    from agentbus.coordination.receipts import Receipt
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_UNBOUNDED = 10**9
_LATER = 1.6
_ADDED = b"redis.call('XADD', to.inbox, '*'"


def _spoil(old: bytes, new: bytes, *scripts: str) -> None:
    """Replace a text that the scripts have."""
    for script in scripts:
        source = resp.source(script)
        assert source.count(old) == 1, script
        spoilt = source.replace(old, new)
        resp._sources[script] = spoilt
        resp.digests()[script] = hashlib.sha1(spoilt, usedforsecurity=False).hexdigest()


# -- messages --


def read_first() -> None:
    """Mark messages as read before they are handed out."""
    read = inbox.read

    def reading(scope: Scope, **options: Any) -> Op[Page]:
        page = yield from read(scope, **options)
        yield from inbox.mark(scope, [message.id for message in page.messages])
        return page

    inbox.read = reading


def print_last() -> None:
    """Mark messages as read, and print them later."""
    read_first()
    read = inbox.read

    def reading(scope: Scope, **options: Any) -> Op[Page]:
        page = yield from read(scope, **options)
        # Longer than the command lives before it is killed.
        time.sleep(_LATER)
        return page

    inbox.read = reading


def last_id() -> None:
    """Move the position to the newest message that was read, past others that were not."""
    mark = inbox.mark

    def marking(scope: Scope, ids: Sequence[str], kind: str = "heard") -> Op[int]:
        if ids:
            newest = max((inbox.split_id(one)[0] for one in ids), key=position)
            passed = yield Command("XRANGE", scope.keys.inbox(scope.agent), "-", newest)
            ids = [inbox.message_id(text(entry), scope.agent) for entry, _ in passed]
        return (yield from mark(scope, ids, kind))

    inbox.mark = marking


def reads_again() -> None:
    """Look at the position alone, and not at what was read beyond it."""
    _spoil(
        b"local is_read = not again and beyond > 0 and redis.call('HGET', KEYS[2], from)",
        b"local is_read = false",
        "read_inbox",
    )


def maxlen() -> None:
    """Trim an inbox by its length, read or not."""
    _spoil(_ADDED, _ADDED[:-3] + b"'MAXLEN', 15, '*'", "tell")


def unbounded() -> None:
    """Put any number of messages into an inbox."""
    tell.MOST_UNREAD = _UNBOUNDED  # type: ignore[attr-defined]


def whole_inbox() -> None:
    """Count messages that were read, too, against the bound of an inbox."""
    _spoil(
        b"return { unread(to.inbox, to.at),",
        b"return { redis.call('XLEN', to.inbox),",
        "tell",
    )


def refuse_after() -> None:
    """Put a message into a full inbox, and then refuse it."""
    _spoil(
        b"then return { 'full', to.name, left } end",
        b"then "
        + _ADDED
        + b", 'agent_id', sender, unpack(fields)) return { 'full', to.name, left } end",
        "tell",
    )


def say_again() -> None:
    """Send what was not answered again, as if it had not been sent."""
    _spoil(b"local before = already(KEYS[2], ARGV[2])", b"local before = nil", "tell")


def answer_again() -> None:
    """Send each answer, also the second one to a message."""
    _spoil(b"if type(answer) == 'string' then return", b"if false then return", "tell")


def read_on_arrival() -> None:
    """Call a message read when it has arrived."""
    _receipts(lambda found: replace(found, state="read") if found.state == "sent" else found)


def no_answers() -> None:
    """Know of a message whether it was read, and of no answer."""
    _receipts(lambda found: replace(found, answered=None))


def _receipts(change: Callable[[Receipt], Receipt]) -> None:
    receipt = receipts._receipt
    receipts._receipt = lambda *of: change(receipt(*of))


# -- leases --


def by_name() -> None:
    """Take two patterns to conflict only if they are written alike."""
    _spoil(
        b"return meets(split_path(a), split_path(b), '**', segments)",
        b"return a.path == b.path",
        *("lease", "list_leases"),
    )


def no_expiry() -> None:
    """Keep leases until they are dropped, whenever they end."""
    _spoil(
        b"ends and tonumber(ends) > now then", b"ends then", "lease", "list_leases", "end_leases"
    )


def clock_tokens() -> None:
    """Use the clock as the fencing token, which is the same within a millisecond."""
    _spoil(b"redis.call('INCR', key)\n    token = redis.call('GET', key)", b"", "lease")


def keeps_given() -> None:
    """Give a lease to another agent, and keep it."""
    _spoil(b"redis.call('HDEL', key, one.field)\n", b"", "tell")


def gives_part() -> None:
    """Give a lease, and keep others that overlap it."""
    _spoil(b"if not going[one.field] then", b"if false then", "tell")


CONTROLS: dict[str, Callable[[], None]] = {
    control.__name__: control
    for control in (
        *(
            read_first,
            print_last,
            last_id,
            reads_again,
            maxlen,
            unbounded,
            whole_inbox,
            refuse_after,
        ),
        *(say_again, answer_again, read_on_arrival, no_answers, by_name, no_expiry),
        *(clock_tokens, keeps_given, gives_part),
    )
}
