"""Encodes tasks as the fields and values of their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import context, envelope
from agentbus.core.errors import UsageError
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.task import Task, check, envelope_of

if TYPE_CHECKING:
    from agentbus.store.scope import Scope


def words_of(scope: Scope, item: object) -> Any:
    """Return an encoded payload; for a `Task`, its fields, its key and its ordering key."""
    origin = context.current.get()
    if not isinstance(item, Task):
        if origin is None:
            return envelope.encode(item, scope.max_body)
        item = Task(item)
    words: list[bytes | str] = [b"payload", envelope.encode(item.payload, scope.max_body)]
    if meta := meta_of(scope, item):
        words += [b"meta", meta]
    words += envelope.by(scope.agent)
    return words, item.key, item.ordering_key


def meta_of(scope: Scope, item: Task) -> bytes:
    """Return the encoded envelope of a task without its payload; empty if there is nothing in it."""
    meta = envelope_of(item)
    check(meta)
    origin = context.current.get()
    if not all(meta.values()):
        meta = {name: value for name, value in meta.items() if value}
    if origin is not None:
        # A task that a handler publishes is linked to the handler's task.
        meta.setdefault("correlation_id", origin.correlation_id or origin.id)
        meta.setdefault("causation_id", origin.id)
        if origin.trail:
            meta.setdefault("trail", origin.trail)
        if origin.traceparent and context.is_traceparent(origin.traceparent):
            meta.setdefault("traceparent", context.child(origin.traceparent))
    return envelope.encode(meta, scope.max_body) if meta else b""


def known(priority: object) -> None:
    """Raise `UsageError` for another word than a priority."""
    if priority not in PRIORITIES:
        raise UsageError(
            f"{priority!r} is not a priority", hint=f"use one of {', '.join(PRIORITIES)}"
        )
