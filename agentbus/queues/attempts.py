"""The record of a task's attempts: worker, time, duration and outcome of each.

The scripts that settle a task write it. A first attempt that succeeds is not recorded, because that would
cost every task: the attempt log has it. For a task that has failed once, the newest 20 attempts are
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentbus.core.stream import is_number, text
from agentbus.queues.ids import taker

# Seconds for which the record of a task's attempts is kept after the last one.
RUNS_KEPT = 86_400
_LONGEST_ERROR = 500
_CANCELLED = "it was cancelled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task; times are unix times, `waited` and `took` in seconds.

    `outcome` is `running`, `done`, `failed` (will be retried), `retried` (at its handler's request),
    `dead`, `cancelled`, `snoozed`, or `lost` (its worker died, or another worker reclaimed the task).
    `waited` is the time between due time and start, and `took` what a running attempt has taken so far.
    None means unknown.
    """

    attempt: int
    worker: str | None
    agent_id: str | None
    began: float | None
    waited: float | None
    took: float | None
    outcome: str
    error: str | None

    @property
    def host(self) -> str | None:
        """The host of its worker, by the worker's name."""
        return host_of(self.worker)


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The cancellation of a running task: the agent that asked, and the time (RFC 3339)."""

    agent_id: str
    timestamp: str


def host_of(worker: str | None) -> str | None:
    """Return the host of a worker, by its name; None for an agent that takes tasks by hand."""
    host, _, rest = (worker or "").partition(":")
    return host if rest and taker(worker) is None else None


def who(worker: str, agent: str) -> bytes:
    """Return the part of a record that identifies the worker."""
    return orjson.dumps({"worker": worker, "agent_id": agent})[1:-1]


def record(
    attempt: int, worker: str, agent: str, outcome: str, error: str | None, *, after: float | None
) -> bytes:
    """Return the record of an attempt, without its end, to which the script adds the times.

    The next attempt is due after `after` seconds.
    """
    fields: dict[str, Any] = {"attempt": attempt, "worker": worker, "agent_id": agent}
    fields["outcome"] = outcome
    if error is not None:
        fields["error"] = error[:_LONGEST_ERROR]
    if after is not None:
        fields["after_ms"] = round(after * 1000)
    return orjson.dumps(fields)[:-1]


def newest(flat: Sequence[bytes]) -> list[bytes]:
    """Return the recorded runs in order, from the fields of the record."""
    pairs = ((text(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2))
    return [run for _, run in sorted((int(field), run) for field, run in pairs if is_number(field))]


def decoded(stored: Sequence[bytes], due: float | None) -> tuple[Attempt, ...]:
    """Return the attempts in a record; the first recorded attempt was due at `due`."""
    attempts: list[Attempt] = []
    for record in stored:
        try:
            fields = orjson.loads(record)
            began, ended = fields.get("began"), fields.get("ended")
            outcome = fields.get("outcome", "running")
            number = fields["attempt"]
        except (ValueError, KeyError, AttributeError):
            # Another program wrote this record.
            continue
        # The due time is unknown if the attempts before this one are no longer recorded.
        known = due is not None and (attempts or number == 1)
        attempts.append(
            Attempt(
                number,
                fields.get("worker"),
                fields.get("agent_id"),
                None if began is None else began / 1000,
                max(0.0, began / 1000 - due) if known and began is not None and due else None,
                None if began is None or ended is None else (ended - began) / 1000,
                outcome,
                fields.get("error"),
            )
        )
        after = fields.get("after_ms")
        due = None if ended is None or after is None else (ended + after) / 1000
    return tuple(attempts)


def cancelled_by(mark: str) -> str:
    """Return the error of a cancelled task, from the record of the agent and the time."""
    agent = mark.rpartition(" @ ")[0]
    return f"{_CANCELLED} by {agent}" if agent else _CANCELLED


def stop_order(mark: str) -> StopOrder | None:
    """Return who cancelled a running task, from the record; None if it is malformed."""
    agent, _, at = mark.rpartition(" @ ")
    return StopOrder(agent, at) if agent else None


def is_cancelled(verdict: str) -> bool:
    """Return whether a recorded outcome is that of a cancelled task, by the sign before its error."""
    return verdict.startswith("-")


def burial(kept: bytes) -> tuple[str, str] | None:
    """Return a task's dead letter ('' if it was cancelled) and error, from the value kept as its result.

    Return None if the value is a result.
    """
    if not kept.startswith(b"!"):
        return None
    letter, _, error = text(kept[1:]).partition(" ")
    return letter, error
