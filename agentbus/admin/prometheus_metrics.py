"""The metrics of the Prometheus exporter: names, kinds, labels and help texts.

Names and units follow Prometheus's conventions: base units, `_seconds`, `_total` for counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Family(Record):
    """One metric: its `kind` is gauge, counter or histogram; a counter's name ends in `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def _all(kind: str, labels: str, texts: Mapping[str, str]) -> Iterator[Family]:
    """Yield metrics of one kind, each with the label `project` first."""
    for name, text in texts.items():
        yield Family(f"agentbus_{name}", kind, ("project", *labels.split()), text)


_GROUP, _STREAM = "queue group", "stream"
_CONSUMER = f"{_STREAM} consumer"
FAMILIES = (
    *_all("gauge", "", {"up": "1 if the server answered this scrape, else 0."}),
    *_all("gauge", "version", {"build_info": "Always 1; the label is the exporter's version."}),
    *_all(
        "gauge",
        "",
        {
            "scrape_duration_seconds": "Duration of the requests for this scrape.",
            "queues": "Number of queues; at most 1,000 of them have metrics.",
            "halted": "1 while all workers are halted, else 0.",
        },
    ),
    *_all(
        "gauge",
        "queue",
        {
            "queue_paused": "1 while the queue is paused, else 0.",
            "queue_delayed": "Tasks that are not due yet.",
        },
    ),
    *_all(
        "gauge", f"{_GROUP} priority", {"queue_waiting": "Tasks not yet delivered to the group."}
    ),
    *_all(
        "gauge",
        _GROUP,
        {
            "queue_pending": "Tasks that the group's consumers hold.",
            "queue_retrying": "Tasks that wait for their next attempt.",
            "queue_lag": "Unfinished due tasks: waiting, pending and retrying.",
            "queue_oldest_waiting_seconds": "Age of the oldest task not yet delivered; 0 if none.",
            "queue_oldest_pending_seconds": "Longest time since the heartbeat of a pending task;"
            " 0 if none.",
            "queue_consumers": "Number of consumers in the group.",
            "queue_dead_letters": "Number of dead letters.",
        },
    ),
    *_all("counter", "queue event", {"queue_tasks_total": "Tasks by event, since the first task."}),
    *_all(
        "counter", "queue", {"queue_busy_seconds_total": "Run time of handlers, for tasks done."}
    ),
    *_all("counter", f"{_GROUP} event", {"group_tasks_total": "Tasks by event."}),
    *_all(
        "counter",
        _GROUP,
        {
            "group_busy_seconds_total": "Run time of handlers.",
            "group_waited_seconds_total": "Time from publication to the start of the handler.",
        },
    ),
    *_all(
        "histogram",
        _GROUP,
        {
            "handler_duration_seconds": "Run time of handlers, since the exporter started.",
            "task_wait_seconds": "Time from publication to the start of the handler, since the"
            " exporter started.",
        },
    ),
    *_all(
        "gauge",
        f"{_GROUP} state",
        {"workers": "Workers: working, paused, stopping, or dead (no heartbeat for 3 s)."},
    ),
    *_all("gauge", _GROUP, {"workers_running": "Tasks that live workers are running."}),
    *_all(
        "gauge",
        _STREAM,
        {
            "outbox_lag_seconds": "Age of the oldest event in the outbox not yet published; 0 if none.",
            "outbox_waiting_events": "Events not yet published; 100,000 means that or more.",
        },
    ),
    *_all(
        "counter",
        f"{_STREAM} event",
        {
            "outbox_events_total": "Events that relays published or lost, since the exporter started."
        },
    ),
    *_all(
        "gauge",
        _CONSUMER,
        {
            "consumer_lag_seconds": "Age of the oldest event not yet processed; 0 if none.",
            "consumer_lag_events": "Events not yet processed; 100,000 means that or more.",
        },
    ),
    *_all(
        "counter",
        f"{_CONSUMER} event",
        {"consumer_events_total": "Events by outcome, since the exporter started."},
    ),
    *_all(
        "histogram",
        _CONSUMER,
        {
            "consumer_handler_duration_seconds": "Run time of a consumer's handler, since the exporter"
            " started."
        },
    ),
    *_all(
        "gauge",
        f"{_CONSUMER} reason",
        {"consumer_quarantined": "1 for a consumer that its supervisor has quarantined."},
    ),
)


def sample_names() -> set[str]:
    """Return the names of the metrics' samples, for queries."""
    found = set()
    for family in FAMILIES:
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + end for end in ends}
    return found
