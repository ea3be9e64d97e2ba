"""Spans for publishing and handling tasks, if the program uses OpenTelemetry.

The extra `otel` installs its API, which is not imported here: unless the program has imported it and set a
provider, each publish and each run of a handler costs only one dict lookup. Names and attributes follow
OpenTelemetry's semantic conventions for messaging. Spans never contain payloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from sys import modules
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agentbus.core.context import is_traceparent
from agentbus.core.version import __version__
from agentbus.queues.task import Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

    from agentbus.core.context import Origin
    from agentbus.store.steps import Op


P = ParamSpec("P")
T = TypeVar("T")

API = "opentelemetry.trace"
# The last known tracer provider, and its tracer.
_known: tuple[object, Any] = (None, None)


def tracer() -> Any:
    """Return the `Tracer`; None unless the program has configured one that records spans."""
    global _known  # noqa: PLW0603 (a provider makes a new tracer on each call)
    api = modules.get(API)
    # Another thread may still be importing the module.
    if api is None or not hasattr(api, "get_tracer_provider"):
        return None
    known, known_tracer = _known
    # get_tracer_provider reads the environment on each call, so skip it if no provider is set.
    # Without `_TRACER_PROVIDER`, always call it.
    if known is not None and known_tracer is None and getattr(api, "_TRACER_PROVIDER", api) is None:
        return None
    provider = api.get_tracer_provider()
    if provider is not known:
        silent = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
        known_tracer = None if silent else provider.get_tracer("agentbus", __version__)
        _known = provider, known_tracer
    return known_tracer


def in_span(
    stamp: Callable[[Any, str | None], object], *, each: bool = False
) -> Callable[[Callable[P, Op[T]]], Callable[P, Op[T]]]:
    """Decorate a publishing operation, so that it runs in a span if there is a tracer.

    `stamp` returns an item with the span as its `traceparent`. The operation's third argument is the item,
    or with `each` an iterable of items.
    """

    def stamp_all(items: Any, traceparent: str | None) -> object:
        return (stamp(item, traceparent) for item in items)

    def decorate(publish: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
        def publish_in_span(*args: P.args, **options: P.kwargs) -> Op[T]:
            if tracer() is None:
                return publish(*args, **options)
            return _publishing(stamp_all if each else stamp, publish, args, options)

        return publish_in_span

    return decorate


def _publishing(
    stamp: Callable[[Any, str | None], object],
    publish: Callable[..., Op[T]],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Op[T]:
    own_tracer, (scope, queue, items, *rest) = tracer(), args
    if own_tracer is None:
        return (yield from publish(*args, **options))
    from opentelemetry.trace import SpanKind  # needs the extra `otel`

    # The parent is the span in the task's `traceparent`, or else the current span.
    span = own_tracer.start_span(
        f"publish {queue}",
        _parent(getattr(items, "traceparent", None)),
        kind=SpanKind.PRODUCER,
        attributes=_about(queue, "publish", "send"),
    )
    # Do not make the span current: an operation may end in another thread or coroutine.
    try:
        stamped = stamp(items, _written(span))
        ids = yield from publish(scope, queue, stamped, *rest, **options)
        if isinstance(ids, str):
            span.set_attribute("messaging.message.id", ids)
        elif isinstance(ids, list):
            span.set_attribute("messaging.batch.message_count", len(ids))
        return ids
    except BaseException as error:
        _failed(span, error)
        raise
    finally:
        span.end()


def begin(what: str, destination: str, **attributes: str | int) -> Span | None:
    """Begin a span for publishing other than by a call of `publish`; None without a tracer.

    The span is not visible until `end` ends it. `stamped` writes it into the tasks.
    """
    own_tracer = tracer()
    if own_tracer is None:
        return None
    from opentelemetry.trace import SpanKind  # needs the extra `otel`

    about = _about(destination, "publish", "send") | attributes
    span: Span = own_tracer.start_span(f"publish {what}", kind=SpanKind.PRODUCER, attributes=about)
    return span


def end(span: Span | None, error: BaseException | None = None) -> None:
    """End a span begun by `begin`."""
    if span is not None:
        if error is not None:
            _failed(span, error)
        span.end()


def stamped(item: object, span: Span | str | None) -> Any:
    """Return an item with a span, or its `traceparent`; a task with a `traceparent` keeps it."""
    traceparent = span if span is None or isinstance(span, str) else _written(span)
    if traceparent is None:
        return item
    if not isinstance(item, Task):
        return Task(item, traceparent=traceparent)
    return item if item.traceparent is not None else replace(item, traceparent=traceparent)


def in_step(name: str) -> AbstractContextManager[object]:
    """Run the block, a durable step of a handler, in a current span."""
    own_tracer = tracer()
    if own_tracer is None:
        return nullcontext()
    span: AbstractContextManager[object] = own_tracer.start_as_current_span(f"step {name}")
    return span


def handle(run: Callable[[Any], Any], delivery: Any) -> Any:
    """Run a handler for a delivery, in a span whose parent is the publisher's span."""
    if tracer() is None:
        return run(delivery)
    with _handling(delivery):
        return run(delivery)


async def ahandle(run: Callable[[Any], Awaitable[Any]], delivery: Any) -> Any:
    """Run an asynchronous handler like `handle`."""
    if tracer() is None:
        return await run(delivery)
    with _handling(delivery):
        return await run(delivery)


def handle_all(run: Callable[[Any], Any], deliveries: Sequence[Any]) -> Any:
    """Run a handler for a batch of deliveries, in a span linked to their publishers' spans."""
    if tracer() is None or not deliveries:
        return run(deliveries)
    attributes = {"messaging.batch.message_count": len(deliveries)}
    with _processing(deliveries[0], attributes, links=_links(deliveries)):
        return run(deliveries)


def _handling(delivery: Any) -> AbstractContextManager[None]:
    attributes = {
        "messaging.message.id": delivery.id,
        "agentbus.attempt": delivery.attempt,
        "agentbus.priority": delivery.priority,
    }
    if isinstance(flow := delivery.flow, str):
        attributes["agentbus.flow"] = flow
    if isinstance(delivery.correlation_id, str):
        attributes["messaging.message.conversation_id"] = delivery.correlation_id
    return _processing(delivery, attributes, context=_parent(delivery.traceparent))


def _processing(
    delivery: Any, attributes: dict[str, Any], **place: Any
) -> AbstractContextManager[None]:
    """Run the block, a handler's run, in a current span."""
    return contextmanager(_spanning)(delivery, attributes, place)


def _spanning(delivery: Any, attributes: dict[str, Any], place: dict[str, Any]) -> Iterator[None]:
    from opentelemetry.trace import SpanKind  # needs the extra `otel`

    with tracer().start_as_current_span(
        f"process {delivery.queue}",
        kind=SpanKind.CONSUMER,
        attributes={
            **_about(delivery.queue, "process", "process"),
            "messaging.consumer.group.name": delivery.group,
            **attributes,
        },
        record_exception=False,
        set_status_on_exception=False,
        **place,
    ) as span:
        try:
            yield
        except BaseException as error:
            _failed(span, error)
            raise


def _failed(span: Span, error: BaseException) -> None:
    """Mark a span as failed, except for an exit or a generator that is closed early."""
    if not isinstance(error, Exception):
        return
    from opentelemetry.trace import StatusCode  # needs the extra `otel`

    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, type(error).__name__)


def _about(queue: str, name: str, kind: str) -> dict[str, str]:
    return {
        "messaging.system": "agentbus",
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _links(deliveries: Sequence[Origin]) -> list[Link]:
    from opentelemetry.trace import Link, get_current_span  # needs the extra `otel`

    contexts = (_parent(delivery.traceparent) for delivery in deliveries)
    spans = [get_current_span(context) for context in contexts if context is not None]
    return [Link(span.get_span_context()) for span in spans]


def _parent(traceparent: object) -> Context | None:
    """Return the context of a `traceparent`; None (the current context) if it is malformed."""
    if not is_traceparent(traceparent):
        return None
    from opentelemetry.context import get_current  # needs the extra `otel`

    # Needs the extra `otel`.
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": str(traceparent)}
    return TraceContextTextMapPropagator().extract(carrier, get_current())


def _written(span: Span) -> str | None:
    """Return the `traceparent` of a span; None for an invalid one."""
    from opentelemetry.trace import set_span_in_context  # needs the extra `otel`

    # Needs the extra `otel`.
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent")
