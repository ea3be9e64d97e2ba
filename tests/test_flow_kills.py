"""Flows whose workers are killed: each task has one result, and all of what failed is undone."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.tasks import Flow, Flows, FlowTask, chain, group
from tests.servers import ROOT, Server, ask, client
from tests.tiers import nightly

# A worker: what it returns is another text in each run, so that a second result would be seen.
_BODY = """
import sys, uuid, agentbus
from tests.servers import ask

with agentbus.connect(sys.argv[1], project="app") as bus:
    def handler(delivery):
        given = delivery.payload
        ask(bus, "RPUSH", "log", f"{delivery.flow} {given['do']} {' '.join(delivery.results())}")
        if given["do"] == "fail":
            raise agentbus.Bury("as asked")
        return uuid.uuid4().hex

    bus.subscribe("work", handler, attempts=1000, visibility=0.3).run()
"""


def flow_of(fails: bool) -> Flow:
    """Return ten tasks of which one may fail; those before it can be undone."""

    def task(name: str) -> FlowTask:
        undo = FlowTask({"do": f"undo-{name}"}, queue="work")
        return FlowTask({"do": name}, queue="work", undo=undo)

    last = FlowTask({"do": "fail" if fails else "pay"}, queue="work")
    return chain(
        *(task("1"), task("2"), group(task("3"), task("4"), task("5")), task("6"), task("7")),
        *(last, task("9"), task("10")),
    )


@contextlib.contextmanager
def workers(url: str, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [start(url) for _ in range(number)]
        yield running
    finally:
        for one in running:
            one.kill()
            one.wait()


def start(url: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", _BODY, url], cwd=ROOT, env=environment)


@pytest.mark.parametrize(("number", "kills"), [(6, 4), nightly(100, 100)])
def test_killed_workers_lose_no_step_of_a_flow(own_server: Server, number: int, kills: int) -> None:
    chance, pause = random.Random(7), threading.Event()
    with agentbus.connect(own_server.url, project="app") as bus:
        flows = Flows(bus)
        ids = [flows.publish(flow_of(fails=n % 2 == 1), id=f"f{n}") for n in range(number)]
        with workers(own_server.url, 3) as running:
            for kill in range(1, kills + 1):
                # When about this share of the work is done, whatever the process is doing then.
                while ask(bus, "LLEN", "log") < kill * number * 11 // (kills + 1):
                    pause.wait(0.01)
                at = chance.randrange(len(running))
                running[at].kill()
                running[at].wait()
                running[at] = start(own_server.url)
            while any(one.ended is None for one in flows.list()):
                pause.wait(0.05)

        log = [line.decode().split() for line in ask(bus, "LRANGE", "log", 0, -1)]
        for n, flow in enumerate(ids):
            shown = flows.show(flow)
            own = [(line[1], line[2:]) for line in log if line[0] == flow]
            assert shown.state == ("compensated" if n % 2 else "done")
            of_name = dict(zip(_NAMES, shown.tasks, strict=True))
            done = {
                name: bus.result(one.id) for name, one in of_name.items() if one.state == "done"
            }
            for name, handed in own:
                if name.startswith("undo-"):
                    assert handed == [done[name.removeprefix("undo-")]]
                else:
                    before = of_name[_NAMES[7] if name == "fail" else name].after
                    assert handed == [done[_NAMES[number - 1]] for number in before]
            undone = [*dict.fromkeys(name for name, _ in own if name.startswith("undo-"))]
            expected = [f"undo-{name}" for name in reversed(_NAMES[:7])] if n % 2 else []
            assert undone == expected
        left_behind(own_server.url)


_NAMES = ["1", "2", "3", "4", "5", "6", "7", "pay", "9", "10"]


def left_behind(url: str) -> None:
    """Assert that what is left expires, but for the queue, and what a project has one of."""
    with client(url) as plain:
        stay = {key.decode() for key in plain.keys("app:*") if plain.ttl(key) == -1}
    kinds = {key.split(":")[1] for key in stay if not key.endswith(":bell")}
    assert not kinds & {"after", "delayed", "order", "seen", "results"}
    assert {key for key in stay if key.startswith("app:flows")} == {"app:flows"}
    assert not [key for key in stay if key.endswith(":runs")]
