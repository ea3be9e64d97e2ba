"""Fills in the envelope of tasks that `publish` and `ask` send."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson

from agentbus.commands._declare import Args, Param, seconds, whole
from agentbus.core.context import is_traceparent
from agentbus.core.settings import environment
from agentbus.core.timespec import parse_rfc3339


def header(text: str) -> tuple[str, str]:
    """Parse `name=value`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not a header: write it as name=value")
    return name, value


def time(text: str) -> float:
    """Convert a time, such as 2024-01-20T15:30:00Z, to unix seconds."""
    unix_time = parse_rfc3339(text)
    if unix_time is None:
        raise ValueError(f"{text!r} is not a time such as 2024-01-20T15:30:00Z")
    return unix_time


PARAMS = (
    Param(
        "--priority",
        "The task's priority (normal, unless the queue's policy says otherwise).",
        choices=("low", "normal", "high", "critical"),
    ),
    Param("--topic T", "What the task is about.", values="topic"),
    Param("--source S", "Where it comes from."),
    Param("--task NAME", "The typed task that it is for, where the queue has several."),
    Param("--tenant T", "Whose it is."),
    Param(
        "--correlation-id ID",
        "Id of the larger unit of work (that of the current task, else a new one).",
    ),
    Param("--traceparent T", "W3C trace context. [TRACEPARENT]"),
    Param("--attempts N", "At most N runs, whatever the worker's --attempts are.", convert=whole),
    Param("--expires S", "Do not run it after S seconds, but bury it.", convert=seconds),
    Param("--time-limit S", "Stop an attempt after S seconds; it has failed.", convert=seconds),
    Param("--header K=V", "A header. May be repeated.", convert=header, many=True),
)


def fields(args: Args, causation_id: str | None = None) -> dict[str, Any]:
    """Return the fields of a `Task` from the options and the task that this program handles."""
    around = environment()
    cause = around.get("AGENTBUS_TASK_ID")
    return {
        "priority": args.priority,
        "topic": args.topic,
        "source": args.source,
        "tenant": args.tenant,
        "task": args.task,
        "correlation_id": args.correlation_id
        or around.get("AGENTBUS_CORRELATION_ID")
        or cause
        or _random_id(),
        "causation_id": causation_id or cause,
        "traceparent": args.traceparent or _trace(around),
        "trail": _trail(around.get("AGENTBUS_TRAIL")),
        "attempts": args.attempts,
        "expires": args.expires,
        "time_limit": args.time_limit,
        "headers": dict(args.header) or None,
    }


def _random_id() -> str:
    """Return a random UUID (version 4, RFC 9562): importing `uuid` takes half of a verb's time."""
    number = int.from_bytes(os.urandom(16), "big")
    number = number & ~(0xF << 76 | 0b11 << 62) | 4 << 76 | 0b10 << 62
    digits = f"{number:032x}"
    ends = (0, 8, 12, 16, 20, 32)
    return "-".join(digits[begin:end] for begin, end in pairwise(ends))


def _trace(around: Mapping[str, str]) -> str | None:
    """Return the trace in the environment; None if another program has left a malformed one."""
    candidates = (around.get("TRACEPARENT"), around.get("AGENTBUS_TRACEPARENT"))
    return next(filter(is_traceparent, candidates), None)


def _trail(text: str | None) -> Any:
    """Return the agents that the current task has passed; None if the text is not JSON."""
    if not text:
        return None
    try:
        trail = orjson.loads(text)
    except ValueError:
        return None
    return trail if isinstance(trail, list) else None
