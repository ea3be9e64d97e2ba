"""With OpenTelemetry, a task's handler is a child of what published it; without it nothing happens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import agentbus
from agentbus.core import context
from agentbus.errors import InvalidPayload, QueueFull
from agentbus.queues import tracing
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from agentbus.tasks import Flows, FlowTask, Scheduler, Schedules, chain
from tests.servers import ROOT

SOON = Backoff(first=0.0)
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """The spans that were ended, by name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def provide(monkeypatch: pytest.MonkeyPatch, provider: Any) -> None:
    """Have a provider for a test: for a whole process there can be but one."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_known", (None, None))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provide(monkeypatch, provider)
    yield Kept(exporter)
    provider.shutdown()


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.context is not None
    assert parent.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    flags = span.context.trace_flags
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{flags:02x}"


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "async", "returns a coroutine"])
def test_a_handler_is_a_child_of_the_publish(
    bus: agentbus.Bus, spans: Kept, concurrency: int, kind: str
) -> None:
    inside = []

    def plain(delivery: agentbus.Delivery) -> Any:
        inside.append((delivery.traceparent, trace.get_current_span().get_span_context().span_id))

    async def later(delivery: agentbus.Delivery) -> None:
        await asyncio.sleep(0)
        plain(delivery)

    def both(delivery: agentbus.Delivery) -> Any:
        return later(delivery)

    handler: Any = {"plain": plain, "async": later}.get(kind, both)
    with trace.get_tracer_provider().get_tracer("test").start_as_current_span("order"):
        task = bus.queue("mail").publish({"to": "a"}, correlation_id="c-1")
    bus.subscribe("mail", handler, group="g", count=1, concurrency=concurrency).run()

    order, publish, process = (spans.one(n) for n in ("order", "publish mail", "process mail"))
    assert is_child(publish, order)
    assert is_child(process, publish)
    assert process.context is not None
    assert inside == [(traceparent(publish), process.context.span_id)]
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert publish.attributes == {
        "messaging.system": "agentbus",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": task,
    }
    assert process.attributes == {
        "messaging.system": "agentbus",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
        "messaging.message.id": task,
        "messaging.message.conversation_id": "c-1",
        "agentbus.attempt": 1,
        "agentbus.priority": "normal",
    }


async def test_spans_of_an_asynchronous_bus(abus: agentbus.AsyncBus, spans: Kept) -> None:
    async def handler(delivery: agentbus.Delivery) -> None:
        await abus.queue("post").publish("next")

    tracer = trace.get_tracer_provider().get_tracer("test")

    async def order(number: int) -> None:
        with tracer.start_as_current_span(f"order {number}"):
            await abus.queue("mail").publish(number)

    await asyncio.gather(*(order(number) for number in range(3)))
    await abus.subscribe("mail", handler, count=3).run()

    for number in range(3):
        order_span = spans.one(f"order {number}")
        (publish,) = [s for s in spans.named("publish mail") if is_child(s, order_span)]
        (process,) = [s for s in spans.named("process mail") if is_child(s, publish)]
        assert [s for s in spans.named("publish post") if is_child(s, process)]


def test_what_a_handler_publishes_is_its_child(bus: agentbus.Bus, spans: Kept) -> None:
    bus.queue("mail").publish(1)
    bus.subscribe("mail", lambda delivery: bus.queue("post").publish(2) and None, count=1).run()

    assert is_child(spans.one("publish post"), spans.one("process mail"))
    (delivery,) = bus.queue("post").fetch()
    assert delivery.traceparent == traceparent(spans.one("publish post"))
    assert delivery.causation_id is not None


@pytest.mark.parametrize("delay", [None, 0.01])
def test_each_attempt_has_a_span_and_a_failed_one_says_so(
    bus: agentbus.Bus, spans: Kept, delay: float | None
) -> None:
    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("not yet")

    bus.queue("mail").publish(1, delay=delay)
    bus.subscribe("mail", handler, count=1, backoff=SOON).run()

    first, second = spans.named("process mail")
    publish = spans.one("publish mail")
    assert is_child(first, publish)
    assert is_child(second, publish)
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes is not None
    assert first.attributes["error.type"] == "ValueError"
    (event,) = first.events
    assert event.name == "exception"
    assert second.status.status_code is StatusCode.UNSET


def test_a_batch_is_a_span_linked_to_each_publish(bus: agentbus.Bus, spans: Kept) -> None:
    for number in range(3):
        bus.queue("mail").publish(number)
    bus.subscribe("mail", lambda deliveries: None, batch=True, count=3).run()

    batches = spans.named("process mail")
    assert [link.context.span_id for batch in batches for link in batch.links] == [
        span.context.span_id for span in spans.named("publish mail") if span.context
    ]
    for batch in batches:
        assert batch.attributes is not None
        assert batch.attributes["messaging.batch.message_count"] == len(batch.links)


def test_tasks_that_are_published_together_share_a_span(bus: agentbus.Bus, spans: Kept) -> None:
    bus.queue("mail").publish_many(range(3))

    publish = spans.one("publish mail")
    assert publish.attributes is not None
    assert publish.attributes["messaging.batch.message_count"] == 3
    found = bus.queue("mail").fetch()
    assert [one.payload for one in found] == [0, 1, 2]
    assert {one.traceparent for one in found} == {traceparent(publish)}


def test_a_stream_of_tasks_is_a_span(bus: agentbus.Bus, spans: Kept) -> None:
    assert len(list(bus.queue("mail").publish_stream(range(2)))) == 2

    publish = spans.one("publish mail")
    assert {one.traceparent for one in bus.queue("mail").fetch()} == {traceparent(publish)}


def test_a_task_after_others_is_a_child_of_its_publish(bus: agentbus.Bus, spans: Kept) -> None:
    first = bus.queue("first").publish(1)
    bus.queue("mail").publish(2, after=first)
    for queue in ("first", "mail"):
        bus.subscribe(queue, lambda _one: None, drain=True).run()

    assert is_child(spans.one("process mail"), spans.one("publish mail"))


def test_the_tasks_of_a_flow_are_children_of_its_span(bus: agentbus.Bus, spans: Kept) -> None:
    undo = FlowTask("back", queue="mail")
    parts = (FlowTask(1, queue="mail", undo=undo), FlowTask(2, queue="mail"))
    flow = Flows(bus).publish(chain(*parts), id="order-17")

    def handle(delivery: Delivery) -> None:
        if delivery.payload == 2:
            raise agentbus.Bury("no")

    for _ in range(3):
        bus.subscribe("mail", handle, drain=True).run()

    published = spans.one("publish flow")
    assert published.attributes is not None
    assert published.attributes["agentbus.flow"] == flow
    assert published.attributes["messaging.batch.message_count"] == 2
    ran = spans.named("process mail")
    assert len(ran) == 3
    for one in ran:
        assert is_child(one, published)
        assert one.attributes is not None
        assert one.attributes["agentbus.flow"] == flow


def test_a_flow_that_is_there_already_has_no_second_span(bus: agentbus.Bus, spans: Kept) -> None:
    for _ in range(2):
        Flows(bus).publish(FlowTask(1, queue="mail"), id="order-17")

    assert len(spans.named("publish flow")) == 1


def test_a_tick_is_a_span_that_names_its_schedule(bus: agentbus.Bus, spans: Kept) -> None:
    Schedules(bus).add("poll", "mail", every=0.01)
    while not Scheduler(bus).run_once():
        pass
    bus.subscribe("mail", lambda _one: None, drain=True).run()

    published = spans.named("publish mail")[0]
    assert published.attributes is not None
    assert published.attributes["agentbus.schedule"] == "poll"
    assert is_child(spans.named("process mail")[0], published)


def test_a_step_is_a_span_within_the_run(bus: agentbus.Bus, spans: Kept) -> None:
    bus.queue("mail").publish(1)

    def handle(delivery: Delivery) -> None:
        delivery.step("charge", lambda: bus.queue("inner").publish(2))

    bus.subscribe("mail", handle, drain=True).run()

    assert is_child(spans.one("step charge"), spans.one("process mail"))
    assert is_child(spans.one("publish inner"), spans.one("step charge"))


def test_a_traceparent_that_was_given_stays_and_is_the_parent(
    bus: agentbus.Bus, spans: Kept
) -> None:
    bus.queue("mail").publish(1, traceparent=GIVEN)

    publish = spans.one("publish mail")
    assert publish.parent is not None
    assert f"{publish.parent.span_id:016x}" in GIVEN
    assert [one.traceparent for one in bus.queue("mail").fetch()] == [GIVEN]


def test_a_publish_that_is_refused_is_an_error_of_its_span(bus: agentbus.Bus, spans: Kept) -> None:
    queue = bus.queue("mail", bound=1)
    queue.publish(1)
    with pytest.raises(QueueFull):
        queue.publish(2)
    with pytest.raises(InvalidPayload):
        queue.publish(3, traceparent="nonsense")

    _, full, invalid = spans.named("publish mail")
    for span, name in ((full, "QueueFull"), (invalid, "InvalidPayload")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == name


def test_a_foreign_task_is_handled_in_a_span_of_its_own(bus: agentbus.Bus, spans: Kept) -> None:
    bus.queue("mail").publish(1)
    # As another program writes it: with what is no traceparent.
    key = bus.scope.keys.queue("mail")
    from tests.servers import ask

    ask(bus, "XADD", key, "*", "payload", "2", "meta", '{"traceparent": ["x"]}')
    bus.subscribe("mail", lambda delivery: None, count=2).run()

    own = [span for span in spans.named("process mail") if span.parent is None]
    assert len(own) == 1


def test_what_is_not_sampled_says_so_to_the_handler(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(monkeypatch, TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    bus.queue("mail").publish(1)

    (delivery,) = bus.queue("mail").fetch()

    assert int(delivery.traceparent[-2:], 16) & trace.TraceFlags.SAMPLED == 0
    assert context.is_traceparent(delivery.traceparent)


@pytest.mark.parametrize("provider", [trace.ProxyTracerProvider, trace.NoOpTracerProvider])
def test_without_a_provider_nothing_is_added(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch, provider: Any
) -> None:
    provide(monkeypatch, provider())
    assert tracing.tracer() is None
    bus.queue("mail").publish(1)
    seen = []
    bus.subscribe("mail", lambda delivery: seen.append(delivery.traceparent), count=1).run()

    assert seen == [None]


def test_a_provider_that_is_set_late_is_found() -> None:
    """Also in a program that has published before."""
    program = (
        "import agentbus\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "with agentbus.connect('memory://t', project='t', agent='a') as bus:\n"
        "    bus.queue('mail').publish(1)\n"
        "    bus.queue('mail').publish(2)\n"
        "    trace.set_tracer_provider(TracerProvider())\n"
        "    bus.queue('mail').publish(3)\n"
        "    print([one.traceparent is not None for one in bus.queue('mail').fetch()])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("[False, False, True]\n", "")


def test_nothing_of_it_is_loaded_by_us() -> None:
    """Without the package, or before the program has loaded it, all works as ever."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import agentbus\n"
        "with agentbus.connect('memory://t', project='t', agent='a') as bus:\n"
        "    bus.queue('mail').publish(1)\n"
        "    for options in ({}, {'batch': True}, {'concurrency': 2}):\n"
        "        bus.subscribe('mail', lambda d: None, group=str(options), count=1, **options).run()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.')])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
