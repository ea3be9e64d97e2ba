"""Many real processes, or threads, at once: one winner, nobody forgotten, nothing lost to a kill."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import agentbus
from tests.servers import Server, Shell, all_exit
from tests.tiers import nightly

GLANCE = 0.01
WITHIN = 120.0


@pytest.fixture
def crowd(tmp_path: pathlib.Path, own_server: Server, project: str) -> Shell:
    """A shell on a server of the test's own, patient enough for a crowded machine."""
    return Shell(
        tmp_path / "home",
        {
            "AGENTBUS_PROJECT": project,
            "AGENTBUS_URL": own_server.url,
            "AGENTBUS_AGENT": "ada",
            "AGENTBUS_DEADLINE": "60",
            "AGENTBUS_JSON": "1",
        },
    )


@pytest.fixture
def bus(own_server: Server, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(own_server.url, project=project, agent="lead", deadline=60) as opened:
        yield opened


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(GLANCE)


def blocked(server: Server) -> int:
    """Return how many clients wait for a stream to grow."""
    for line in server.ask("INFO", "clients").decode().splitlines():
        if line.startswith("blocked_clients:"):
            return int(line.partition(":")[2])
    raise AssertionError("the server does not say")


def all_wait(server: Server, processes: Sequence[subprocess.Popen[str]]) -> None:
    """Return once every process waits; none may have returned."""
    until(lambda: blocked(server) == len(processes) or any(p.poll() is not None for p in processes))
    assert [p.args for p in processes if p.poll() is not None] == []


def moment(entry_id: str | bytes) -> tuple[int, ...]:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return tuple(int(part) for part in text.split("-"))


# -- announce --


def race_for_a_flag(crowd: Shell, server: Server, rounds: int) -> list[int]:
    """Let 50 processes announce one flag at once, and return the winners' tokens."""
    tokens = []
    for _ in range(rounds):
        # While the server is frozen the announces gather in front of it.
        server.stop()
        racers = [
            crowd.start("announce", "building", env={"AGENTBUS_AGENT": f"racer-{number}"})
            for number in range(50)
        ]
        server.go_on()
        said = all_exit(racers, timeout=WITHIN)
        codes = sorted(racer.returncode for racer in racers)
        assert codes == [0] + [4] * 49
        (won,) = [json.loads(line) for line in said if line]
        tokens.append(won["token"])
        crowd.ok("satisfy", "building", "--agent", won["agent_id"])
    return tokens


def test_of_fifty_processes_that_announce_one_flag_at_once_one_wins(crowd, own_server):
    tokens = race_for_a_flag(crowd, own_server, 2)

    assert tokens == sorted(set(tokens))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_fifty_processes_one_wins_in_each_of_a_hundred_rounds(crowd, own_server):
    tokens = race_for_a_flag(crowd, own_server, 100)

    assert tokens == sorted(set(tokens))


# -- await --


@pytest.mark.parametrize("number", [40, nightly(200)])
def test_many_awaiters_sleep_until_the_satisfy_and_none_misses_it(crowd, own_server, bus, number):
    awaiters = [
        crowd.start("await", "building", "--timeout", "300", stderr=subprocess.DEVNULL)
        for _ in range(number)
    ]
    all_wait(own_server, awaiters)

    bus.announce("building")
    bus.speak("nothing yet", topic="coordination")
    all_wait(own_server, awaiters)
    bus.satisfy("building")
    bus.announce("building")

    said = [json.loads(line) for line in all_exit(awaiters, timeout=WITHIN)]
    assert [(met["state"], met["agent_id"]) for met in said] == [("satisfied", "lead")] * number
    assert {awaiter.returncode for awaiter in awaiters} == {0}


def test_one_of_many_processes_that_await_a_ticket_gets_it(crowd, own_server, bus):
    awaiters = [
        crowd.start("await", "ticket", "--delete", "--timeout", "300", stderr=subprocess.DEVNULL)
        for _ in range(8)
    ]
    all_wait(own_server, awaiters)

    for ticket in range(8):
        bus.satisfy("ticket", note=f"{ticket}")
        until(lambda: sum(a.poll() is not None for a in awaiters) == ticket + 1)  # noqa: B023

    got = [json.loads(line)["note"] for line in all_exit(awaiters)]
    assert sorted(got) == [str(ticket) for ticket in range(8)]


def test_a_holder_that_is_killed_frees_its_flag_and_satisfies_nobody(crowd, own_server, bus):
    holder = crowd.start("hold", "deploy", "--ttl", "2", "--", "cat", stdin=subprocess.PIPE)
    bus.await_("deploy", until="announced", timeout=WITHIN)
    free = crowd.start("await", "deploy", "--until", "free", "--timeout", "60")
    done = crowd.start("await", "deploy", "--timeout", "60")
    all_wait(own_server, [free, done])

    holder.kill()
    holder.communicate()

    (met,) = [json.loads(line) for line in all_exit([free])]
    assert (met["state"], met["agent_id"], free.returncode) == ("free", None, 0)
    assert done.poll() is None
    done.terminate()
    assert all_exit([done]) == [""]


# -- overhear --


def cursor(server: Server, project: str, agent: str) -> tuple[int, ...]:
    found = server.ask("GET", f"{project}:last:{agent}")
    return (0, 0) if found is None else moment(found)


def heard_ids(said: str) -> list[tuple[int, ...]]:
    # A line that the kill cut short was not heard.
    return [
        moment(json.loads(line)["id"]) for line in said.splitlines(keepends=True) if "\n" in line
    ]


def test_an_agent_killed_anywhere_in_overhear_loses_nothing(crowd, own_server, bus, project):
    spoken = [moment(bus.speak(f"message {number}").id) for number in range(200)]
    chance = random.Random(7)
    heard: set[tuple[int, ...]] = set()
    before = (0, 0)

    for _ in range(40):
        reader = crowd.start("overhear", "--from-start", "--max", "12")
        with contextlib.suppress(subprocess.TimeoutExpired):
            reader.wait(chance.uniform(0, 0.15))
        reader.kill()
        got = heard_ids(reader.communicate()[0])
        heard.update(got)
        after = cursor(own_server, project, "ada")
        assert got == sorted(got)
        assert before <= after <= max(heard, default=(0, 0))
        before = after
    heard.update(heard_ids(crowd.ok("overhear", "--max", "1000")))

    assert heard == set(spoken)


def test_processes_of_one_agent_never_rewind_its_cursor(crowd, own_server, bus, project):
    spoken = [moment(bus.speak(f"message {number}").id) for number in range(120)]
    seen: list[tuple[int, ...]] = []
    heard: set[tuple[int, ...]] = set()

    while not seen or seen[-1] < spoken[-1]:
        readers = [
            crowd.start("overhear", "--from-start", "--max", str(most)) for most in (3, 5, 40, 9)
        ]
        while any(reader.poll() is None for reader in readers):
            seen.append(cursor(own_server, project, "ada"))
        for said in all_exit(readers):
            heard.update(heard_ids(said))
        seen.append(cursor(own_server, project, "ada"))

    assert seen == sorted(seen)
    assert heard == set(spoken)


def test_what_many_processes_say_at_once_is_all_there(crowd, bus):
    speakers = [crowd.start("speak", f"message {number}") for number in range(50)]
    all_exit(speakers)

    said = [message.text for message in bus.overhear()]

    assert sorted(said) == sorted(f"message {number}" for number in range(50))


@pytest.mark.parametrize("servers", [20, nightly(100)])
def test_threads_that_use_a_new_server_in_memory_at_once_share_its_data(servers):
    between, crowd = sys.getswitchinterval(), 8
    at_once = threading.Barrier(crowd)

    def speak(bus: agentbus.Bus) -> None:
        at_once.wait(60)
        bus.speak("hi")

    sys.setswitchinterval(1e-6)
    try:
        for number in range(servers):
            url = f"memory://threads{number}"
            buses = [agentbus.connect(url, agent=f"a{each}") for each in range(crowd)]
            with ThreadPoolExecutor(crowd) as pool:
                list(pool.map(speak, buses))

            assert len(list(buses[0].overhear(since="0"))) == crowd
    finally:
        sys.setswitchinterval(between)
