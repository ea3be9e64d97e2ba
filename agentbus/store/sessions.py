"""Records which POSIX session uses an agent's name, to detect two sessions with one name."""

from __future__ import annotations

import os

from agentbus.core.stream import is_number, text
from agentbus.store.scope import ATTENDED
from agentbus.store.steps import Batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    T = TypeVar("T")


def attending(scope: Scope, op: Op[T]) -> Op[T]:
    """Run an operation, and record its session after the first reply if that is due."""
    answered = False
    try:
        step = next(op)
        while True:
            try:
                reply = yield step
            except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                step = op.throw(failure)
                continue
            if not answered:
                answered = True
                if scope.monotonic() - scope.attended >= ATTENDED:
                    yield from scope.attend()
            step = op.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        op.close()


def records(scope: Scope) -> Op[list[tuple[str, str, int, float]]]:
    """Return each session: its agent, host, POSIX session id, and the unix time when it was last seen."""
    _, sessions = yield from records_now(scope)
    return sessions


def records_now(scope: Scope) -> Op[tuple[float, list[tuple[str, str, int, float]]]]:
    """Return the server's time, and the result of `records`."""
    (seconds, micros), reply = yield Batch(
        [("TIME",), ("ZRANGE", scope.keys.sessions, 0, -1, "WITHSCORES")]
    )
    now = int(seconds) + int(micros) / 1_000_000
    if not isinstance(reply, list):
        return now, []
    sessions = []
    for member, seen in zip(reply[::2], reply[1::2], strict=True):
        parts = text(member).split("\n")
        # Another program may have written any member.
        if len(parts) == 3 and is_number(parts[2]):
            sessions.append((parts[0], parts[1], int(parts[2]), float(seen) / 1000))
    return now, sessions


def lives(host: str, number: int, silent: float, longest: float) -> bool:
    """Tell whether a POSIX session lives: by its processes if it is of this host.

    A session on another host counts as alive if it was silent for less than `longest` seconds.
    """
    from agentbus.core.running import session_runs

    if host != os.uname().nodename:
        return silent < longest
    return session_runs(number)
