"""Programs of a load that are not workers: one that fetches, and one that publishes up to a bound."""

from __future__ import annotations

import time

import agentbus
from agentbus.core.errors import QueueFull
from tests.torture.assignment import Allowance, Assignment
from tests.torture.work.loads import FETCH, FETCHED, LOADS
from tests.torture.work.tasks import PUBLISH
from tests.torture.work.worker import TaskHandler

FILL = "fill"
_PAUSE = 0.05


def fetch(told: Assignment) -> None:
    """Fetch some tasks at a time, and do one after the other, until killed."""
    do = TaskHandler(told)
    with agentbus.connect(told.url, project=told.project, agent="fetcher") as bus:
        queue = bus.queue(told.options["queue"])
        visibility = told.options["visibility"]
        while True:
            for delivery in queue.fetch(count=FETCHED, block=0.2, visibility=visibility):
                task = delivery.payload, delivery.attempt, delivery.id
                do(*task)
                with do.settling(*task) as answered:
                    answered(delivery.ack())


def fill(told: Assignment) -> None:
    """Publish one task after the other, each until the queue has room for it, and end."""
    load, scribe = LOADS[told.options["load"]], told.scribe()
    assert load.bound is not None
    with agentbus.connect(told.url, project=told.project, agent="ada") as bus:
        queue = bus.queue(told.options["queue"], bound=load.bound)
        for payload in load.payloads:
            while True:
                try:
                    with scribe.asking(PUBLISH, QueueFull, n=payload["i"]):
                        queue.publish(payload)
                    break
                except QueueFull:
                    time.sleep(_PAUSE)


def main(told: Assignment, _limit: Allowance) -> None:
    """Do what the kind says."""
    {FETCH: fetch, FILL: fill}[told.kind](told)
