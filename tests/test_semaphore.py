"""At most so many hold a semaphore at once, whichever of them are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

import agentbus
from agentbus.errors import NotHolder, SemaphoreFull, UsageError
from tests.conftest import Connect
from tests.pausing import hurry
from tests.servers import ROOT, Server, Shell, ask
from tests.test_races import until
from tests.tiers import nightly

PATIENCE = 60.0


def test_as_many_hold_it_as_may(bus: agentbus.Bus) -> None:
    gpu = bus.semaphore("gpu", 2)
    first = gpu.acquire()
    gpu.acquire()

    with pytest.raises(SemaphoreFull, match="'gpu' has 2 holders already"):
        gpu.acquire()
    gpu.release(first)
    gpu.acquire()


def test_the_error_names_the_holders(bus: agentbus.Bus, connect: Connect) -> None:
    connect("ada").semaphore("gpu", 1).acquire()

    with pytest.raises(SemaphoreFull, match="'gpu' has 1 holder already: ada"):
        bus.semaphore("gpu", 1).acquire()


def test_two_names_are_two_semaphores(bus: agentbus.Bus) -> None:
    bus.semaphore("gpu", 1).acquire()
    bus.semaphore("gpu:1", 1).acquire()


def test_one_that_waits_gets_the_place_that_is_given_up(
    bus: agentbus.Bus, connect: Connect
) -> None:
    gpu = bus.semaphore("gpu", 1)
    token = gpu.acquire()
    got: list[str] = []
    waiting = threading.Thread(
        target=lambda: got.append(connect("ada").semaphore("gpu", 1).acquire(PATIENCE))
    )
    waiting.start()

    gpu.release(token)
    waiting.join(PATIENCE)

    assert len(got) == 1


def test_a_place_that_is_not_renewed_is_free_after_its_ttl(
    bus: agentbus.Bus, connect: Connect
) -> None:
    lost = bus.semaphore("gpu", 1, ttl=0.1)
    token = lost.acquire()
    connect("ada").semaphore("gpu", 1).acquire(PATIENCE)

    with pytest.raises(NotHolder):
        lost.renew(token)
    with pytest.raises(NotHolder):
        lost.release(token)


def test_a_block_holds_it_beyond_its_ttl(
    bus: agentbus.Bus, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = hurry(monkeypatch)
    other = connect("ada").semaphore("gpu", 1)
    key = bus.scope.keys.limits("~semaphores", "gpu")[0]

    def end() -> float:
        return float(ask(bus, "ZRANGE", key, 0, 0, "WITHSCORES")[1])

    with bus.semaphore("gpu", 1, ttl=60).held():
        first = end()
        until(lambda: end() > first)
        with pytest.raises(SemaphoreFull):
            other.acquire()

    assert intervals == [20]
    other.acquire()


def test_a_block_that_raises_gives_it_up(bus: agentbus.Bus) -> None:
    gpu = bus.semaphore("gpu", 1)
    with pytest.raises(ValueError, match="no"), gpu.held():
        raise ValueError("no")

    gpu.acquire()


def test_coroutines_hold_it(bus: agentbus.Bus) -> None:
    most, now = [0], [0]

    async def work(gpu: agentbus.coordination.semaphore.Semaphore) -> None:
        async with gpu.held(wait=PATIENCE):
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0)
            now[0] -= 1

    async def main() -> None:
        async with agentbus.AsyncBus(bus.settings) as other:
            gpu = other.semaphore("gpu", 3)
            await asyncio.gather(*(work(gpu) for _ in range(20)))

    asyncio.run(main())
    assert 1 <= most[0] <= 3


def test_nothing_is_left_of_it(bus: agentbus.Bus) -> None:
    with bus.semaphore("gpu", 2).held():
        pass

    assert bus.clear(dry_run=True).get("limits", 0) == 0


@pytest.mark.parametrize("holders", [0, -1, 10_001, True, 1.5])
def test_a_wrong_number_of_holders_is_refused(bus: agentbus.Bus, holders: int) -> None:
    with pytest.raises(UsageError):
        bus.semaphore("gpu", holders)


@pytest.mark.parametrize("ttl", [0, -1.0, True, 40 * 86_400])
def test_a_wrong_ttl_is_refused(bus: agentbus.Bus, ttl: float) -> None:
    with pytest.raises(UsageError):
        bus.semaphore("gpu", 1, ttl=ttl)


_BODY = """
import contextlib, sys, agentbus
from tests.servers import ask

with agentbus.connect(sys.argv[1], project="app") as bus:
    gpu = bus.semaphore("gpu", 3, ttl=0.3)
    for _ in range(int(sys.argv[2])):
        token = gpu.acquire(60)
        ask(bus, "RPUSH", "log", ask(bus, "ZCARD", "app:limits:~semaphores:gpu"))
        # On a busy machine this may be later than its TTL.
        with contextlib.suppress(agentbus.NotHolder):
            gpu.release(token)
    ask(bus, "INCR", "ended")
"""


@pytest.mark.parametrize(("rounds", "kills"), [(30, 4), nightly(1000, 60)])
def test_killed_holders_never_let_more_in(own_server: Server, rounds: int, kills: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", _BODY, own_server.url, str(rounds)]
        return subprocess.Popen(words, cwd=ROOT, env=environment)

    pause = threading.Event()
    with agentbus.connect(own_server.url, project="app") as bus:
        running = [start() for _ in range(6)]
        for kill in range(kills):
            while int(ask(bus, "LLEN", "log")) < (kill + 1) * rounds * 4 // kills:
                pause.wait(0.005)
            running[kill % 6].send_signal(signal.SIGKILL)
            running[kill % 6].wait()
            running[kill % 6] = start()
        for one in running:
            assert one.wait(timeout=120) in (0, -signal.SIGKILL)
        seen = {int(number) for number in ask(bus, "LRANGE", "log", 0, -1)}

    assert max(seen) <= 3
    assert seen & {2, 3}


# -- the shell --


def test_the_shell_holds_a_place(real_shell: Shell) -> None:
    with real_shell.start(
        "hold", "gpu", "--holders", "2", "--", "sh", "-c", "echo in; sleep 60"
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "in\n"
        real_shell.ok("hold", "gpu", "--holders", "2", "--", "true")
        full = real_shell.run("hold", "gpu", "--holders", "1", "--", "true")
        assert (full.returncode, "has 1 holder already" in full.stderr) == (4, True)
        one.terminate()
        one.wait()

    real_shell.ok("hold", "gpu", "--holders", "1", "--wait", "30", "--", "true")
    assert (
        real_shell.run("hold", "gpu", "--holders", "1", "--", "sh", "-c", "exit 7").returncode == 7
    )
    assert real_shell.run("hold", "gpu", "--holders", "0", "--", "true").returncode == 2
