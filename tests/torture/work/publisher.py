"""The process that publishes, as far as it may; its successor goes on where it was."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import agentbus
from agentbus.core.errors import BackendUnavailable, OutcomeUnknown
from agentbus.core.keys import Keys
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import FAIL, Scribe, read_history
from tests.torture.plain import plain_client
from tests.torture.work.tasks import PUBLISH, QUEUE, Publication, TaskPlan

MAXLEN = "maxlen"
_PAUSE = 0.05
_DEADLINE = 5.0
_KEPT = 100


def publish(
    send: Callable[[Publication], Any], limit: Allowance, history: pathlib.Path, tasks: TaskPlan
) -> None:
    """Publish in order what no predecessor has, and write a history of the outcomes."""
    start, scribe = resumed_at(history), Scribe(history)
    for one in tasks.publications(start):
        if not limit.reaches(one.number + 1):
            return
        of = {"n": one.number, "first": one.first, "last": one.last, "order": one.ordering_key}
        settled = False
        while not settled:
            try:
                with (
                    contextlib.suppress(OutcomeUnknown),
                    scribe.asking(PUBLISH, BackendUnavailable, **of),
                ):
                    send(one)
                settled = True
            except BackendUnavailable:
                # Refused for a reason that may pass, or the server is away.
                time.sleep(_PAUSE)


def resumed_at(history: pathlib.Path) -> int:
    """Return the publication to go on with: one in doubt is skipped, one that was refused is repeated."""
    told = [entry for entry in read_history(history) if entry.op == PUBLISH]
    if not told:
        return 0
    number: int = told[-1].of["n"]
    return number if told[-1].phase == FAIL else number + 1


def sender(bus: agentbus.Bus, tasks: TaskPlan) -> Callable[[Publication], Any]:
    """Publish by the library."""
    queue = bus.queue(QUEUE, bound=tasks.number + 1)

    def send(one: Publication) -> Any:
        if tasks.plain or len(one.payloads) > 1:
            return queue.publish_many(one.payloads, priority=one.priority)
        return queue.publish(
            one.payloads[0],
            key=f"task {one.first}",
            delay=one.delay,
            ordering_key=one.ordering_key,
        )

    return send


def trimming(url: str, project: str) -> Callable[[Publication], Any]:
    """Publish as many programs do: so that the stream never grows too long."""
    raw, stream = plain_client(url), Keys(project).queue(QUEUE, "normal")

    def send(one: Publication) -> None:
        for payload in one.payloads:
            raw.xadd(stream, {"payload": json.dumps(payload)}, maxlen=_KEPT, approximate=False)

    return send


def main(told: Assignment, limit: Allowance) -> None:
    """Publish everything, and end."""
    tasks = TaskPlan(told.seed, **told.options, plain=told.kind != "library")
    with agentbus.connect(told.url, project=told.project, agent="ada", deadline=_DEADLINE) as bus:
        send = trimming(told.url, told.project) if told.kind == MAXLEN else sender(bus, tasks)
        publish(send, limit, told.history, tasks)
