"""Encodes tasks as the fields and values of their entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentbus.core import context, envelope
from agentbus.core.errors import UsageError
from agentbus.queues.ids import PRIORITIES, UNIQUE_KEPT
from agentbus.queues.task import Task, envelope_of

if TYPE_CHECKING:
    from agentbus.store.scope import Scope


class Encoded:
    """A task with an envelope: its payload and the rest of the envelope, both encoded, and its keys.

    `meta` is empty if the keys and the payload are all there is.
    """

    __slots__ = ("key", "meta", "ordering_key", "payload", "unique")

    def __init__(
        self,
        payload: bytes,
        meta: bytes,
        key: str | None,
        ordering_key: str | None,
        unique: bool = False,
    ) -> None:
        self.payload = payload
        self.meta = meta
        self.key = key
        self.ordering_key = ordering_key
        self.unique = unique

    def words(self, agent: str) -> list[bytes | str]:
        """Return the fields and values of its entry, published by an agent."""
        meta = (b"meta", self.meta) if self.meta else ()
        return [b"payload", self.payload, *meta, *envelope.by(agent)]


def encoded(scope: Scope, item: object, more: Mapping[str, Any] | None = None) -> bytes | Encoded:
    """Return an encoded payload; for a task with more than that, and in a handler, with its envelope.

    `more` are fields of the envelope that no publisher sets.
    """
    origin = context.current.get()
    if not isinstance(item, Task):
        if origin is None and not more:
            return envelope.encode(item, scope.max_body)
        item = Task(item)
    found = envelope_of(item)
    data = envelope.encode(item.payload, scope.max_body)
    if found is None and origin is None and not more:
        return data
    meta = {**(found or {}), **more} if more else found or {}
    if origin is not None:
        _link(meta, origin)
    kept = envelope.encode(meta, scope.max_body) if meta else b""
    if item.unique is not None and item.key is None:
        raise UsageError("a unique task has no key", hint="give it a key")
    return Encoded(data, kept, item.key, item.ordering_key, item.unique is not None)


def meta_of(scope: Scope, item: Task) -> bytes:
    """Return the encoded envelope of a task without its payload; empty if there is nothing in it."""
    found = encoded(scope, replace(item, payload=None, unique=None))
    return found.meta if isinstance(found, Encoded) else b""


def _link(meta: dict[str, Any], origin: context.Origin) -> None:
    """Link a task that a handler publishes to the handler's task."""
    meta.setdefault("correlation_id", origin.correlation_id or origin.id)
    meta.setdefault("causation_id", origin.id)
    if origin.trail:
        meta.setdefault("trail", origin.trail)
    if origin.traceparent and context.is_traceparent(origin.traceparent):
        meta.setdefault("traceparent", context.child(origin.traceparent))


def window_of(item: object, window: float) -> float:
    """Return for how many seconds the key of a task stands for it; `window` unless it is unique."""
    return UNIQUE_KEPT if isinstance(item, (Task, Encoded)) and item.unique else window


def known(priority: object) -> None:
    """Raise `UsageError` for another word than a priority."""
    if priority not in PRIORITIES:
        raise UsageError(
            f"{priority!r} is not a priority", hint=f"use one of {', '.join(PRIORITIES)}"
        )
