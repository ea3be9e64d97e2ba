"""The work of the demo project: its queues, their workers, their dead letters, and their metrics."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import agentbus
from agentbus.tasks import Flows, FlowTask, Limits, Schedules, chain, group
from agentbus.workers.metrics import Tally
from agentbus.workers.registry import WorkerRegistration
from tests.screenshots.clock import on_host
from tests.screenshots.demo_talk import BADGER, CI, HERON, KEEPER, MARIA, OTTER

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo

# Seconds in which a worker of this process does what it is given.
_WITHIN = 20.0
# Longer than the clock is ever moved, so that no task of a worker that lives is taken from it.
_VISIBILITY = 86_000.0


class Load:
    """How a queue did in the last hour: tasks a minute, seconds that one ran and waited, and failures."""

    def __init__(self, rate: float, ran: float, waited: float, failing: float = 0.0) -> None:
        self.rate, self.ran, self.waited, self.failing = rate, ran, waited, failing


_LOADS = {
    "builds": Load(1.2, 42.0, 3.0),
    "tests": Load(6.0, 18.0, 6.0, 0.05),
    "reviews": Load(0.4, 240.0, 90.0),
    "mail": Load(44.0, 0.24, 0.08, 0.02),
    "thumbnails": Load(95.0, 0.6, 0.3, 0.01),
    "search-index": Load(180.0, 0.035, 0.02),
    "notifications": Load(260.0, 0.012, 0.01),
    "embeddings": Load(22.0, 2.4, 180.0),
    "invoices": Load(9.0, 0.9, 0.4, 0.12),
    "reports": Load(0.3, 65.0, 1.0),
}
# Queue: the machine of its live worker, tasks at once, tasks done before, its backlog at the end, and the
# age of that in minutes.
_WORKERS = {
    "builds": ("builder-1", 2, 18, 3, 0.7),
    "tests": ("builder-1", 4, 60, 11, 0.4),
    "mail": ("worker-1", 2, 80, 0, 0.05),
    "thumbnails": ("worker-1", 4, 120, 26, 0.2),
    "search-index": ("worker-2", 1, 150, 4, 0.05),
    "notifications": ("worker-2", 1, 200, 2, 0.05),
    "embeddings": ("worker-3", 2, 40, 236, 6.5),
}
_DEAD = ("invoices", "imports")


def _payload(queue: str, number: int) -> dict[str, Any]:
    order = 48_200 + number
    return {
        "builds": {"commit": f"{0xA4C1E9 + number * 7919:07x}", "target": "web"},
        "tests": {"suite": f"unit/{number % 12:02}", "commit": "a4c1e9d"},
        "mail": {"to": f"customer-{order}@example.com", "template": "order-shipped", "order": order},
        "thumbnails": {"image": f"articles/{order}.jpg", "sizes": [320, 640, 1280]},
        "search-index": {"article": order, "change": "stock"},
        "notifications": {"user": number % 900, "kind": "price-drop"},
        "embeddings": {"article": order, "model": "text-small-3"},
        "invoices": {"order": order, "currency": "EUR"},
    }.get(queue, {"order": order})  # fmt: skip


def _tasks(queue: str, count: int) -> list[dict[str, Any]]:
    return [_payload(queue, number) for number in range(count)]


# -- workers --


def _starts(queue: str) -> Callable[[Demo], object]:
    """Start a worker, which does some tasks; each after them takes until the project is over."""

    def happens(project: Demo) -> None:
        host, at_once, done, _, _ = _WORKERS[queue]
        bus = project.own_bus(f"worker-{queue}")
        left = iter(range(done))

        def handler(_delivery: agentbus.Delivery) -> None:
            if next(left, None) is None:
                project.over.wait()

        bus.queue(queue).publish_many(_tasks(queue, done))
        with on_host(host):
            worker = bus.subscribe(queue, handler, concurrency=at_once, prefetch=at_once)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            _until(lambda: worker.done >= done)
        # Now, and not at a later time of the clock.
        bus.runner.run(worker.tally.flush())
        project.workers[queue] = worker
        project.at_end += [thread.join, worker.stop]

    return happens


def _backlog(queue: str) -> Callable[[Demo], object]:
    """Publish what a worker has at the end: what runs, and what is behind it."""

    def happens(project: Demo) -> None:
        _, at_once, _, backlog, _ = _WORKERS[queue]
        bus = project.bus(KEEPER)
        bus.queue(queue).publish_many(_tasks(queue, at_once + backlog))
        _until(lambda: bus.stats(queue)[0].pending == at_once)

    return happens


def run_on(project: Demo) -> None:
    """Have all workers that live send a heartbeat, and write the metrics of the last minute."""
    metrics(0)(project)
    bus = project.bus(KEEPER)
    for one in project.workers.values():
        # What it runs has had its last heartbeat before the clock was moved.
        one._renewal.renew()
    _until(lambda: sum(one.alive for one in bus.workers()) == len(project.workers))


def _until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + _WITHIN
    while not holds():
        assert time.monotonic() < end, "a worker of the demo project does not do its tasks"
        time.sleep(0.01)


def _die(project: Demo) -> None:
    """Have workers send their last heartbeat."""
    for number, queue in enumerate(_DEAD):
        bus = project.bus(f"worker-{queue}")
        with on_host(f"worker-{2 + number}"):
            name = f"worker-{2 + number}:{4100 + number}:5e1f{number}"
            one = WorkerRegistration(bus.scope, name, bus.agent, queue, "default", 2)
            bus.runner.run(one.beat_op("working", 412 * (number + 1), 9, 1))


# -- dead letters, retries, and what waits --


def _error(queue: str, payload: dict[str, Any]) -> BaseException:
    if queue == "mail":
        return ConnectionRefusedError("smtp.example.com:587: connection refused")
    if queue == "thumbnails":
        return TimeoutError(f"the resizer did not answer within 30 s\nimage {payload['image']}")
    if queue == "invoices":
        return KeyError("vat_id")
    return ValueError("row 7: 'pieces' is -1, expected a number from 1 on")


def _bury(queue: str, count: int) -> Callable[[Demo], object]:
    """Have a worker fail with tasks until they are dead letters."""

    def happens(project: Demo) -> None:
        bus = project.bus(f"worker-{queue}")

        def handler(delivery: agentbus.Delivery) -> None:
            raise _error(queue, delivery.payload)

        bus.queue(queue).publish_many(_tasks(queue, count))
        backoff = agentbus.Backoff(0.001, 0.001)
        with bus.subscribe(queue, handler, attempts=2, backoff=backoff, drain=True) as worker:
            worker.run()

    return happens


def _again(project: Demo) -> None:
    """Leave tasks that wait for another attempt."""
    for queue, count in (("webhooks", 5), ("reports", 2)):
        bus = project.bus(f"worker-{queue}")
        bus.queue(queue).publish_many(_tasks(queue, count))

        def handler(_delivery: agentbus.Delivery) -> None:
            raise agentbus.Retry("503 Service Unavailable: maintenance until 10:30", after=2400)

        with on_host("worker-4"):
            worker = bus.subscribe(queue, handler)
            while worker.failed < count:
                worker.run_once()


def _later(project: Demo) -> None:
    """Publish what is due later."""
    keeper = project.bus(KEEPER)
    for hours in (2, 6, 14):
        keeper.queue("reports").publish({"report": "sales", "hours": hours}, delay=hours * 3600)
    keeper.queue("cleanup").publish({"older_than": "30d"}, delay=9 * 3600, priority="low")
    keeper.queue("imports").publish_many(_tasks("imports", 14))
    keeper.queue("docs").publish({"page": "returns"}, priority="low")
    keeper.queue("invoices").publish_many(_tasks("invoices", 7))


def _release(project: Demo) -> None:
    """Publish the tasks of a release, each of which waits for others: two done, one running."""
    ci, keeper = project.bus(CI), project.bus(KEEPER)
    about = {"correlation_id": "release-2.14", "source": "release-keeper"}
    compiled = ci.queue("compile").publish({"commit": "a4c1e9d", "target": "web"}, **about)
    (task,) = ci.queue("compile").fetch(count=1)
    task.ack({"image": "shop-web:2.14.0-rc3", "bytes": 48_211_030})
    checked = [
        ci.queue("checks").publish(
            {"suite": suite, "image": "shop-web:2.14.0-rc3"}, after=compiled, **about
        )
        for suite in ("unit", "e2e")
    ]
    (task,) = project.bus(OTTER).queue("checks").fetch(count=1)
    task.ack({"passed": 1207})
    project.bus(HERON).take("checks", visibility=_VISIBILITY)
    project.released = checked[1]
    staging = keeper.queue("deploys").publish(
        {"to": "staging", "version": "2.14.0-rc3"}, after=checked, **about
    )
    keeper.queue("deploys").publish(
        {"to": "production", "version": "2.14.0"}, after=staging, priority="high", **about
    )
    keeper.queue("mail").publish(
        {"to": "team@shop.example", "template": "released"}, after=staging, **about
    )


def _reviews(project: Demo) -> None:
    keeper, badger = project.bus(KEEPER), project.bus(BADGER)
    for number in (398, 401, 405, 407, 409, 412):
        keeper.queue("reviews").publish(
            {"pull_request": number, "risk": "low"}, ordering_key="shop"
        )
    for _ in range(2):
        badger.take("reviews", visibility=_VISIBILITY).ack({"verdict": "approved"})
    badger.take("reviews", visibility=_VISIBILITY)


def _plan(project: Demo) -> None:
    """Schedule tasks, limit queues, and publish flows: one running, one failed."""
    keeper = project.bus(KEEPER)
    schedules = Schedules(keeper)
    schedules.add("daily-sales", "reports", {"report": "sales"}, cron="0 6 * * mon-fri")
    schedules.add("stock-check", "imports", {"feed": "stock"}, every=900)
    schedules.add("purge-carts", "cleanup", {"older_than": "30d"}, cron="@daily")
    schedules.pause("purge-carts")
    Limits(keeper).set("embeddings", at_once=2)
    Limits(keeper).set("webhooks", per_second=5, burst=20, by="tenant")
    flows = Flows(keeper)
    steps = [FlowTask({"step": one}, queue="onboarding", name=one) for one in _STEPS]
    reserve, charge, pack, mail, ship = steps
    for order in (48_260, 48_257):
        flows.publish(chain(reserve, charge, group(pack, mail), ship), id=f"order-{order}")
    for _ in range(2):
        (task,) = keeper.queue("onboarding").fetch(count=1)
        task.ack({"ok": True})
    (task,) = keeper.queue("onboarding").fetch(count=1)
    task.bury("CardDeclined: insufficient funds")


_STEPS = ("reserve", "charge", "pack", "mail", "ship")


def _pause(project: Demo) -> None:
    project.bus(MARIA).pause(
        queue="imports", why="the supplier's feed is wrong since 09:40", wait=0
    )


# Workers of queues with dead letters start later: they would take the tasks that are to fail.
_LATER = {"thumbnails": 29.5, "mail": 15.5}

DAY: tuple[tuple[float, Callable[[Demo], object]], ...] = (
    *((_LATER.get(queue, 54), _starts(queue)) for queue in _WORKERS),
    *((age, _backlog(queue)) for queue, (*_, age) in _WORKERS.items()),
    (50, _bury("invoices", 23)),
    (33, _bury("imports", 3)),
    (30, _bury("thumbnails", 11)),
    (25, _again),
    (14, _release),
    (13, _reviews),
    (16, _bury("mail", 38)),
    (11, _later),
    (12.5, _plan),
    (12, _die),
    (10, _pause),
)  # fmt: skip


# -- metrics --


def metrics(before: float) -> Callable[[Demo], object]:
    """Return what writes the metrics of 20 seconds, as workers write them each second."""

    def happens(project: Demo) -> None:
        chance = random.Random(round(before * 60))
        for number, (queue, load) in enumerate(_LOADS.items()):
            if queue in _DEAD and before < 12:
                continue
            # Less in the middle of the hour, and a peak before its end.
            wave = 1 + 0.35 * math.sin(before / 9 + number) + (0.8 if 14 < before < 20 else 0.0)
            done = _about(chance, load.rate * wave / 3)
            failed = _about(chance, done * load.failing)
            _write(project, queue, chance, done, failed, load)

    return happens


def _about(chance: random.Random, mean: float) -> int:
    return int(mean + chance.random())


def _write(
    project: Demo, queue: str, chance: random.Random, done: int, failed: int, load: Load
) -> None:
    bus = project.bus(f"worker-{queue}")
    tally = Tally(bus.scope, queue, "default", f"{queue}-1")
    tally.note("received", done + failed)
    tally.note("processed", done)
    tally.note("failed", failed)
    for _ in range(done + failed):
        tally.count_runs(1, chance.lognormvariate(math.log(load.ran), 0.5))
        tally.count_waits(1, chance.lognormvariate(math.log(load.waited), 0.8))
    bus.runner.run(tally.flush())
