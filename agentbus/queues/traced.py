"""Publishing in spans: what `publishing` does, where the program has set up OpenTelemetry."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any

from agentbus.queues import publish as publishing, tracing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def publisher() -> ModuleType:
    """Return the module that publishes: this one if there is anybody to tell of it, else `publishing`."""
    # Each publish asks: without OpenTelemetry this is one look into a dict.
    if tracing.API not in modules or tracing.tracer() is None:
        return publishing
    return modules[__name__]


def publish(scope: Scope, queue: str, item: object, **options: Any) -> Op[str]:
    """Append one task in a span, and have it carry that as its `traceparent`, unless it has its own."""
    found = tracing.tracer()
    if found is None:
        return (yield from publishing.publish(scope, queue, item, **options))
    with tracing.publishing(found, queue, _given(item)) as (span, traceparent):
        stamped = _stamped(item, traceparent)
        task_id = yield from publishing.publish(scope, queue, stamped, **options)
        tracing.published(span, task_id)
    return task_id


def publish_many(
    scope: Scope, queue: str, items: Iterable[object], **options: Any
) -> Op[list[str]]:
    """Append tasks in one span, and have each carry it."""
    found = tracing.tracer()
    if found is None:
        return (yield from publishing.publish_many(scope, queue, items, **options))
    with tracing.publishing(found, queue) as (span, traceparent):
        stamped = _each(items, traceparent)
        ids = yield from publishing.publish_many(scope, queue, stamped, **options)
        tracing.published_many(span, len(ids))
    return ids


def publish_stream(scope: Scope, queue: str, items: Iterable[object], **options: Any) -> Op[None]:
    """Append tasks in one span that lasts as long as the stream, and have each carry it."""
    found = tracing.tracer()
    if found is None:
        yield from publishing.publish_stream(scope, queue, items, **options)
        return
    with tracing.publishing(found, queue) as (_, traceparent):
        yield from publishing.publish_stream(scope, queue, _each(items, traceparent), **options)


def _each(items: Iterable[object], traceparent: str | None) -> Iterator[object]:
    for item in items:
        yield _stamped(item, traceparent)


def _given(item: object) -> object:
    return item.traceparent if isinstance(item, publishing.Task) else None


def _stamped(item: object, traceparent: str | None) -> object:
    """Return what is to be published with a `traceparent`; one of its own stays."""
    if traceparent is None:
        return item
    if not isinstance(item, publishing.Task):
        return publishing.Task(item, traceparent=traceparent)
    return item if item.traceparent is not None else item.__replace__(traceparent=traceparent)
