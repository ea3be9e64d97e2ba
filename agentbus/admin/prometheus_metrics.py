"""The metrics of the Prometheus exporter: names, kinds, labels and help texts.

Names and units follow Prometheus's conventions: base units, `_seconds`, `_total` for counters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its `kind` is gauge, counter or histogram; a counter's name ends in `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_GROUP, _CONSUMER = "queue group", "stream consumer"
# Help texts of the metrics, by kind and labels, then by name.
_TEXTS = {
    ("gauge", ""): {
        "up": "1 if the server answered this scrape, else 0.",
        "scrape_duration_seconds": "Duration of the requests for this scrape.",
        "queues": "Number of queues; at most 1,000 of them have metrics.",
        "halted": "1 while all workers are halted, else 0.",
        "consumers_quarantined": "Number of consumers in quarantine.",
        "agents": "Number of present agents; at most 1,000 are counted.",
        "flags_held": "Number of held flags; a new flag counts within a minute.",
        "flags_awaited": "Number of flags for which agents wait.",
        "channel_entries": "Number of entries in the channel.",
        "notes": "Number of notes.",
    },
    ("gauge", "agent"): {
        "agent_unread_messages": "Unread messages of a present agent, of the 100 with the most.",
    },
    ("gauge", "flag agent"): {
        "flag_held_seconds": "Time since the flag was taken, of the 100 held the longest.",
    },
    ("gauge", "flag"): {
        "flag_waiters": "Agents that wait for the flag.",
        "flag_waiting_seconds": "Time since the first of them began to wait, of the 100 longest.",
    },
    ("gauge", "version"): {"build_info": "Always 1; the label is the exporter's version."},
    ("gauge", "queue"): {
        "queue_paused": "1 while the queue is paused, else 0.",
        "queue_delayed": "Tasks that are not due yet.",
    },
    ("gauge", f"{_GROUP} priority"): {"queue_waiting": "Tasks not yet delivered to the group."},
    ("gauge", _GROUP): {
        "queue_pending": "Tasks that the group's consumers hold.",
        "queue_retrying": "Tasks that wait for their next attempt.",
        "queue_lag": "Unfinished due tasks: waiting, pending and retrying.",
        "queue_oldest_waiting_seconds": "Age of the oldest task not yet delivered; 0 if none.",
        "queue_oldest_pending_seconds": "Longest time since the heartbeat of a pending task;"
        " 0 if none.",
        "queue_consumers": "Number of live consumers in the group.",
        "queue_dead_letters": "Number of dead letters that were neither replayed nor purged.",
        "workers_running": "Tasks that live workers are running.",
    },
    ("counter", "queue event"): {"queue_tasks_total": "Tasks by event, since the first task."},
    ("counter", "queue"): {"queue_busy_seconds_total": "Run time of handlers, for tasks done."},
    ("counter", f"{_GROUP} event"): {"group_tasks_total": "Tasks by event."},
    ("counter", _GROUP): {
        "group_busy_seconds_total": "Run time of handlers.",
        "group_waited_seconds_total": "Time from publication to the start of the handler.",
    },
    ("histogram", _GROUP): {
        "handler_duration_seconds": "Run time of handlers, since the exporter started.",
        "task_wait_seconds": "Time from publication to the start of the handler, since the exporter"
        " started.",
    },
    ("gauge", f"{_GROUP} state"): {
        "workers": "Workers: working, paused, stopping, or dead (no heartbeat for 3 s).",
    },
    ("gauge", "stream"): {
        "outbox_lag_seconds": "Age of the oldest event in the outbox not yet published; 0 if none.",
        "outbox_waiting_events": "Events not yet published; 100,000 means that or more.",
        "outbox_silent_seconds": "Time since the last report of a relay that had events left; 0 if it"
        " had none.",
    },
    ("counter", "stream event"): {
        "outbox_events_total": "Events that relays published or lost, since the exporter started.",
    },
    ("gauge", _CONSUMER): {
        "consumer_lag_seconds": "Age of the oldest event not yet processed; 0 if none.",
        "consumer_lag_events": "Events not yet processed; 100,000 means that or more.",
        "consumer_silent_seconds": "Time since the last report of a consumer that has events left;"
        " 0 if it has none.",
    },
    ("counter", _CONSUMER): {
        "consumer_quarantines_total": "Quarantines of a consumer, since the exporter started.",
    },
    ("counter", f"{_CONSUMER} event"): {
        "consumer_events_total": "Events by outcome, since the exporter started.",
    },
    ("histogram", _CONSUMER): {
        "consumer_handler_duration_seconds": "Run time of a consumer's handler, since the exporter"
        " started.",
    },
    ("gauge", f"{_CONSUMER} reason"): {
        "consumer_quarantined": "1 for a consumer that its supervisor has quarantined.",
    },
}
# The first label of each metric is `project`.
FAMILIES = tuple(
    Family(f"agentbus_{name}", kind, ("project", *labels.split()), text)
    for (kind, labels), texts in _TEXTS.items()
    for name, text in texts.items()
)


def sample_names() -> set[str]:
    """Return the names of the metrics' samples, for queries."""
    names = set()
    for family in FAMILIES:
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {family.name + end for end in ends}
    return names
