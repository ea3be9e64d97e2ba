"""Typed tasks in several processes that are killed while they run them: each is done, with its result."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from tests.servers import Shell, closed
from tests.tiers import nightly

APP = """
import dataclasses, os, pathlib, signal
import agentbus
tasks = agentbus.Tasks()
SOON = agentbus.Backoff(first=0.01, longest=0.01)
@dataclasses.dataclass
class Order:
    number: int
    text: str
@dataclasses.dataclass
class Receipt:
    text: str
    attempt: int
@tasks.task(queue="mail", attempts=500, backoff=SOON, given=(agentbus.Delivery,))
def fill(delivery: agentbus.Delivery, order: Order) -> Receipt:
    if order.number % EVERY == 0 and not pathlib.Path(f"sprung-{order.number}").exists():
        with open("here", "w") as here:
            here.write(f"{os.getpid()} {order.number}\\n")
        signal.pause()
    if order.number % 7 == 3 and delivery.attempt < 3:
        raise OSError("not yet")
    return Receipt(f"{order.number} {order.text}", delivery.attempt)
"""


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


def started(shell: Shell) -> subprocess.Popen[str]:
    return shell.start(
        *("work", "killedapp:tasks", "--processes", "2", "--visibility", "0.3", "--drain")
    )


# How many tasks, of how many one is killed with its process, and of how many processes the parent, which
# gives up at the fifth crash within a minute.
@pytest.mark.parametrize(("number", "every", "most"), [(24, 12, 1), nightly(1200, 30, 3)])
def test_typed_tasks_survive_kills_of_processes_and_parents_with_their_results(
    real_shell: Shell, bus: agentbus.Bus, number: int, every: int, most: int
) -> None:
    # given typed tasks that fail twice at times, and some that do not end before their process is killed
    home = real_shell.home
    app = home / "killedapp.py"
    app.write_text(APP.replace("EVERY", str(every)))
    os.mkfifo(home / "here")
    found: dict[str, Any] = runpy.run_path(str(app))
    fill, order = found["fill"], found["Order"]
    handles = fill.publish_many(bus, [fill.item(order(n, "Grüße")) for n in range(number)])
    left, killed = set(range(0, number, every)), 0
    parent = started(real_shell)

    # when each of these is killed, and at times the parent instead
    with os.fdopen(os.open(home / "here", os.O_RDWR)) as here:
        while left:
            pid, trap = map(int, here.readline().split())
            left.discard(trap)
            (home / f"sprung-{trap}").touch()
            if killed < most:
                killed += 1
                # It may have died with its parent.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                continue
            killed = 0
            parent.kill()
            assert parent.stdout is not None
            # then no process outlives it
            assert closed(parent.stdout)
            parent.communicate()
            parent = started(real_shell)

    # then all are done, each result is the one of its task, and nothing is left over
    _, told = parent.communicate(timeout=600)
    assert parent.returncode == 0, told
    receipts = [handle.result(wait=1) for handle in handles]
    assert [one.text for one in receipts] == [f"{n} Grüße" for n in range(number)]
    assert all(receipts[n].attempt >= 3 for n in range(3, number, 7))
    assert all(receipts[n].attempt >= 2 for n in range(0, number, every))
    mail = bus.queue("mail")
    (group,) = mail.groups()
    assert (group.pending, mail.remaining(), mail.dead_letters()) == (0, 0, [])
