"""The metrics that Prometheus is told: their names, kinds, labels, and what each says.

Names and units follow Prometheus' conventions: base units, `_seconds`, `_total` for what only grows.
"""

from __future__ import annotations

from agentbus.core.record import Record

_QUEUE = ("project", "queue")
_GROUP = ("project", "queue", "group")
_STREAM = ("project", "stream")
_CONSUMER = ("project", "stream", "consumer")


class Family(Record):
    """One metric: its `kind` is gauge, counter or histogram; a counter's name ends in `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


FAMILIES = (
    Family("agentbus_up", "gauge", ("project",), "1 if the server answered this scrape, else 0."),
    Family(
        "agentbus_build_info", "gauge", ("project", "version"), "1; what the exporter's version is."
    ),
    Family(
        "agentbus_scrape_duration_seconds", "gauge", ("project",), "How long the server was asked."
    ),
    Family("agentbus_queues", "gauge", ("project",), "Queues; of 1,000 there are figures."),
    Family("agentbus_halted", "gauge", ("project",), "1 while all workers are halted, else 0."),
    Family("agentbus_queue_paused", "gauge", _QUEUE, "1 while the queue is paused, else 0."),
    Family("agentbus_queue_delayed", "gauge", _QUEUE, "Tasks that are not due yet."),
    Family(
        "agentbus_queue_waiting",
        "gauge",
        (*_GROUP, "priority"),
        "Tasks that were not delivered to the group yet.",
    ),
    Family("agentbus_queue_pending", "gauge", _GROUP, "Tasks that the group's consumers hold."),
    Family("agentbus_queue_retrying", "gauge", _GROUP, "Tasks that wait for their next attempt."),
    Family(
        "agentbus_queue_lag", "gauge", _GROUP, "Tasks to be done: waiting, pending and retrying."
    ),
    Family(
        "agentbus_queue_oldest_waiting_seconds",
        "gauge",
        _GROUP,
        "Age of the oldest task that was not delivered yet; 0 if there is none.",
    ),
    Family(
        "agentbus_queue_oldest_pending_seconds",
        "gauge",
        _GROUP,
        "How long the task that was not heard of for longest has been silent; 0 if none is held.",
    ),
    Family("agentbus_queue_consumers", "gauge", _GROUP, "Names of consumers in the group."),
    Family("agentbus_queue_dead_letters", "gauge", _GROUP, "Tasks among the dead letters."),
    Family(
        "agentbus_queue_tasks_total",
        "counter",
        (*_QUEUE, "event"),
        "What became of tasks, since the queue was made.",
    ),
    Family(
        "agentbus_queue_busy_seconds_total",
        "counter",
        _QUEUE,
        "How long handlers ran, in all, for tasks that were done.",
    ),
    Family(
        "agentbus_group_tasks_total",
        "counter",
        (*_GROUP, "event"),
        "What the group's workers told became of tasks.",
    ),
    Family("agentbus_group_busy_seconds_total", "counter", _GROUP, "How long handlers ran."),
    Family(
        "agentbus_group_waited_seconds_total",
        "counter",
        _GROUP,
        "How long tasks waited until their handler began.",
    ),
    Family(
        "agentbus_handler_duration_seconds",
        "histogram",
        _GROUP,
        "How long handlers ran, since the exporter started.",
    ),
    Family(
        "agentbus_task_wait_seconds",
        "histogram",
        _GROUP,
        "How long tasks waited until their handler began, since the exporter started.",
    ),
    Family(
        "agentbus_workers",
        "gauge",
        (*_GROUP, "state"),
        "Workers: working, paused, stopping, or dead, that is silent for over 3 s.",
    ),
    Family(
        "agentbus_workers_running", "gauge", _GROUP, "Tasks that live workers run at this moment."
    ),
    Family(
        "agentbus_outbox_lag_seconds",
        "gauge",
        _STREAM,
        "Age of the oldest event in the outbox that is to be published; 0 if there is none.",
    ),
    Family(
        "agentbus_outbox_waiting_events",
        "gauge",
        _STREAM,
        "Events to be published; 100,000 is that or more.",
    ),
    Family(
        "agentbus_outbox_events_total",
        "counter",
        (*_STREAM, "event"),
        "What relays did, since the exporter started.",
    ),
    Family(
        "agentbus_consumer_lag_seconds",
        "gauge",
        _CONSUMER,
        "Age of the oldest event that the consumer has to pass; 0 if there is none.",
    ),
    Family(
        "agentbus_consumer_lag_events",
        "gauge",
        _CONSUMER,
        "Events that the consumer has to pass; 100,000 is that or more.",
    ),
    Family(
        "agentbus_consumer_events_total",
        "counter",
        (*_CONSUMER, "event"),
        "What a consumer did with events, since the exporter started.",
    ),
    Family(
        "agentbus_consumer_handler_duration_seconds",
        "histogram",
        _CONSUMER,
        "How long a consumer's handler ran, since the exporter started.",
    ),
    Family(
        "agentbus_consumer_quarantined",
        "gauge",
        (*_CONSUMER, "reason"),
        "1 for a consumer that its supervisor gave up.",
    ),
)


def sample_names() -> set[str]:
    """Return the names under which samples of the metrics may be asked for."""
    found = set()
    for family in FAMILIES:
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + end for end in ends}
    return found
