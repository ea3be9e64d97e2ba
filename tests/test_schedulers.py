"""Schedulers, and servers, that are killed and frozen at any moment: each tick is published once."""

from __future__ import annotations

import contextlib
import datetime
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.queues.state import Entry
from agentbus.tasks import Schedules, ScheduleState
from agentbus.tasks.ticks import MOST_MISSED
from tests.servers import Server, Shell, program

# In ms; none divides another.
PERIODS = (50, 70, 110)
# A scheduler of ours that works takes this long at most to see that it is due, whatever else runs.
PATIENCE = 60.0


@contextlib.contextmanager
def schedulers(shell: Shell, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run some schedulers, and end all that are in the list at the end."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [scheduler(shell) for _ in range(number)]
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()


def scheduler(shell: Shell) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program(), "schedule", "run"],
        env=shell.environment,
        cwd=shell.home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def published(bus: agentbus.Bus, name: str) -> int:
    return Schedules(bus).show(name).published


def wait_for(bus: agentbus.Bus, name: str, number: int) -> None:
    """Wait until so many ticks of a schedule were published."""
    end = time.monotonic() + PATIENCE
    while published(bus, name) < number:
        assert time.monotonic() < end, f"{published(bus, name)} of {number} ticks"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "faults"), [(3, 15), pytest.param(20, 200, marks=pytest.mark.slow)]
)
def test_each_tick_is_published_once_however_schedulers_are_killed_and_frozen(
    real_shell: Shell, own_server: Server, project: str, number: int, faults: int
) -> None:
    chance, shell = random.Random(7), real_shell
    shell.environment["AGENTBUS_URL"] = own_server.url
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        schedules = Schedules(bus)
        queue = bus.queue("mail", bound=1_000_000)
        config = shell.home / "config.yaml"
        config.write_text("queues: {'*': {bound: 1000000}}\n")
        shell.environment["AGENTBUS_CONFIG"] = str(config)
        with schedulers(shell, number) as running:
            added = [
                schedules.add(f"every-{period}", "mail", every=period / 1000, missed="all")
                for period in PERIODS
            ]
            wait_for(bus, "every-50", 3)
            frozen: list[subprocess.Popen[bytes]] = []
            for _ in range(faults):
                # At any moment, which is often between the decision on a tick and its request.
                time.sleep(chance.random() * 0.1)
                if chance.random() < 0.1:
                    own_server.kill()
                    own_server.start()
                if len(frozen) > number // 2 or (frozen and chance.random() < 0.3):
                    frozen.pop(0).send_signal(signal.SIGCONT)
                victim = chance.choice([one for one in running if one not in frozen])
                if chance.random() < 0.6:
                    victim.send_signal(signal.SIGSTOP)
                    frozen.append(victim)
                else:
                    running.remove(victim)
                    victim.kill()
                    victim.wait()
                    running.append(scheduler(shell))
            for one in frozen:
                one.send_signal(signal.SIGCONT)
            wait_for(bus, "every-110", published(bus, "every-110") + 3)
        kept = {one.name: one for one in schedules.list()}
        entries = queue.inspect(limit=1_000_000)

    for one in added:
        found = [each for each in entries if each.envelope["headers"]["schedule"] == one.name]
        check(one, found)
        assert len(found) == kept[one.name].published > 5


def check(one: ScheduleState, found: list[Entry]) -> None:
    """Fail unless each tick of a schedule was published once, in their order."""
    assert one.every is not None
    period, before = round(one.every * 1000), 0
    for entry in found:
        due = datetime.datetime.fromisoformat(entry.envelope["headers"]["schedule-due"])
        due_ms = round(due.timestamp() * 1000)
        number, rest = divmod(due_ms - one.anchor, period)
        assert rest == 0
        if number != before + 1:
            # On a slow machine more may be due at once than are published: the latest are.
            assert number > before
            assert entry.published * 1000 - due_ms >= (MOST_MISSED - 1) * period
        before = number


def test_a_scheduler_ends_with_exit_code_0_when_it_is_told_to(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        Schedules(bus).add("poll", "mail", every=0.05)
        with schedulers(real_shell, 1) as (one,):
            wait_for(bus, "poll", 1)

            one.send_signal(signal.SIGTERM)

            assert one.wait(30) == 0


def test_a_scheduler_ends_with_exit_code_0_also_while_the_server_is_away(
    real_shell: Shell, own_server: Server, project: str
) -> None:
    real_shell.environment |= {"AGENTBUS_URL": own_server.url, "AGENTBUS_DEADLINE": "0.3"}
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        Schedules(bus).add("poll", "mail", every=0.05)
        with schedulers(real_shell, 1) as (one,):
            wait_for(bus, "poll", 1)
            own_server.kill()

            one.send_signal(signal.SIGTERM)

            assert one.wait(30) == 0
