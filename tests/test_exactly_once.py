"""A write that is repeated because its answer was lost happens once, and none is lost."""

from __future__ import annotations

import asyncio
import collections
import subprocess
import threading
from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.errors import OutcomeUnknown
from tests import embedded
from tests.proxy import Proxy
from tests.servers import Shell, program

_LOOP = """
for number in $(seq 1 "$2"); do
  "$AGENTBUS" speak "loop $1 message $number" >/dev/null
  echo "$?"
done
"""


@pytest.fixture
def shell() -> Iterator[Shell]:
    with embedded.shell({"AGENTBUS": program()}) as made:
        yield made


def speak_under_kills(shell: Shell, loops: int, each: int, kills: int) -> None:
    # given shells that speak one message after the other
    shell.ok("speak", "the first")
    speakers = [
        subprocess.Popen(
            ["sh", "-c", _LOOP, "sh", str(loop), str(each)],
            env=shell.environment,
            cwd=shell.home,
            stdout=subprocess.PIPE,
            text=True,
        )
        for loop in range(loops)
    ]
    codes: list[list[str]] = [[] for _ in speakers]
    progress = threading.Semaphore(0)

    def collect(loop: int) -> None:
        out = speakers[loop].stdout
        assert out is not None
        for line in out:
            codes[loop].append(line.strip())
            progress.release()

    readers = [threading.Thread(target=collect, args=(loop,)) for loop in range(loops)]
    for reader in readers:
        reader.start()

    # when the server is killed again and again, each time after some of them have spoken
    for _ in range(kills):
        for _ in range(loops * each // (kills + 1)):
            progress.acquire()
        # All of these may have spoken before the last kill, and nobody since.
        shell.ok("server", "start")
        embedded.kill_server(shell)
    for reader in readers:
        reader.join()
    for speaker in speakers:
        with speaker:
            pass

    # then every call succeeded, and each message is there once
    assert collections.Counter(code for some in codes for code in some) == {"0": loops * each}
    spoken = [f"loop {loop} message {n}" for loop in range(loops) for n in range(1, each + 1)]
    assert sorted(embedded.heard(shell)) == sorted(["the first", *spoken])


def test_speaking_while_the_server_is_killed_again_and_again(shell):
    speak_under_kills(shell, loops=4, each=20, kills=4)


@pytest.mark.slow
def test_a_thousand_messages_under_twenty_kills(shell):
    speak_under_kills(shell, loops=4, each=250, kills=20)


# -- a network that loses answers --


@pytest.fixture
def lossy(own_server) -> Iterator[Proxy]:
    """A proxy that loses the reply to every third request, and the connection with it."""
    with Proxy(own_server.socket) as proxy:
        proxy.loses_every = 3
        yield proxy


@pytest.fixture
def far_bus(lossy, project) -> Iterator[agentbus.Bus]:
    """A bus behind the lossy proxy, with all the time in the world."""
    with agentbus.connect(lossy.url, project=project, agent="ada", deadline=60) as bus:
        yield bus


@pytest.fixture
def near_bus(own_server, project) -> Iterator[agentbus.Bus]:
    """A bus that sees what really happened."""
    with agentbus.connect(own_server.url, project=project, agent="auditor") as bus:
        yield bus


def texts(bus: agentbus.Bus) -> list[str]:
    return [said.text for said in bus.overhear(limit=100_000, since="0")]


def test_speak_whose_answer_is_lost_is_stored_once(far_bus, near_bus, lossy):
    told = [far_bus.speak(f"message {number}").id for number in range(100)]

    assert texts(near_bus) == [f"message {number}" for number in range(100)]
    assert [said.id for said in near_bus.overhear(limit=1000, since="0")] == told
    assert lossy.lost > 30


def test_jot_whose_answer_is_lost_is_announced_once(far_bus, near_bus, lossy):
    for number in range(50):
        far_bus.jot(f"note {number}", str(number), tags=["t", f"t{number % 3}"])

    assert texts(near_bus) == [f"noted note {number}" for number in range(50)]
    assert lossy.lost > 10


def test_jot_if_absent_whose_answer_is_lost_is_not_told_that_the_note_exists(far_bus, lossy):
    notes = [far_bus.jot(f"note {n}", "mine", if_absent=True).key for n in range(50)]

    assert notes == [f"note {n}" for n in range(50)]
    assert lossy.lost > 10


def test_forget_whose_answer_is_lost_is_not_told_that_the_note_is_missing(far_bus, near_bus, lossy):
    for number in range(50):
        near_bus.jot(f"note {number}", "x", tags=["t"])

    for number in range(50):
        far_bus.forget(f"note {number}")

    assert near_bus.list_() == []
    assert lossy.lost > 10


def test_announce_whose_answer_is_lost_takes_the_flag_once(far_bus, near_bus, lossy):
    holds = [far_bus.announce(f"flag {number}") for number in range(50)]

    assert not any(hold.renewed for hold in holds)
    assert {flag.flag: flag.token for flag in near_bus.flags()} == {
        f"flag {number}": hold.token for number, hold in enumerate(holds)
    }
    assert texts(near_bus) == [f"announced flag {number}" for number in range(50)]
    assert lossy.lost > 10


def test_satisfy_whose_answer_is_lost_is_said_once(far_bus, near_bus, lossy):
    for number in range(50):
        far_bus.satisfy(f"flag {number}")

    assert texts(near_bus) == [f"satisfied flag {number}" for number in range(50)]
    assert lossy.lost > 10


def test_release_whose_answer_is_lost_is_not_told_that_it_holds_nothing(far_bus, near_bus, lossy):
    for number in range(50):
        far_bus.announce(f"flag {number}")
        far_bus.release(f"flag {number}")

    assert [state for state in near_bus.flags() if state.state == "held"] == []
    assert len(texts(near_bus)) == 100
    assert lossy.lost > 30


def test_a_completion_whose_consumer_loses_the_answer_is_consumed_by_it(far_bus, near_bus, lossy):
    for number in range(50):
        near_bus.satisfy(f"flag {number}")
        (met,) = far_bus.await_(f"flag {number}", delete=True, timeout=60)
        assert met.state == "satisfied"

    assert near_bus.flags() == []
    assert lossy.lost > 30


def test_overhear_loses_no_message_when_answers_are_lost(far_bus, near_bus, lossy):
    for number in range(100):
        near_bus.speak(f"message {number}")

    said: list[str] = []
    while batch := [message.text for message in far_bus.overhear(limit=7)]:
        said += batch

    assert said == [f"message {number}" for number in range(100)]
    assert lossy.lost > 8


async def test_a_hundred_coroutines_speak_through_a_lossy_network(lossy, near_bus, project):
    async with agentbus.aio.connect(lossy.url, project=project, agent="ada", deadline=60) as bus:
        for turn in range(5):
            await asyncio.gather(*(bus.speak(f"{turn} {number}") for number in range(100)))

    said = await asyncio.to_thread(texts, near_bus)
    assert sorted(said) == sorted(f"{turn} {number}" for turn in range(5) for number in range(100))
    assert lossy.lost > 0


async def test_a_hundred_coroutines_announce_and_satisfy_through_a_lossy_network(
    lossy, near_bus, project
):
    async with agentbus.aio.connect(lossy.url, project=project, agent="ada", deadline=60) as bus:

        async def life(number: int) -> bool:
            hold = await bus.announce(f"flag {number}")
            await bus.satisfy(f"flag {number}", token=hold.token)
            return hold.renewed

        assert not any(await asyncio.gather(*(life(number) for number in range(100))))

    assert len(await asyncio.to_thread(texts, near_bus)) == 200
    assert lossy.lost > 0


def test_threads_that_share_a_bus_speak_through_a_lossy_network(far_bus, near_bus, lossy):
    def talk(thread: int) -> None:
        for number in range(25):
            far_bus.speak(f"{thread} {number}")

    threads = [threading.Thread(target=talk, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(texts(near_bus)) == sorted(f"{t} {n}" for t in range(8) for n in range(25))
    assert lossy.lost > 50


# -- when even repeating does not help --


def test_an_answer_that_never_comes_is_an_outcome_unknown_and_one_message_at_most(
    own_server, near_bus, project
):
    near_bus.speak("the server knows the script from here on")
    with Proxy(own_server.socket) as proxy:
        proxy.swallow = True
        with agentbus.connect(proxy.url, project=project, agent="ada", deadline=1) as bus:
            for number in range(3):
                with pytest.raises(OutcomeUnknown):
                    bus.speak(f"message {number}")

    assert texts(near_bus)[1:] == ["message 0", "message 1", "message 2"]


async def test_coroutines_without_an_answer_are_told_that_the_outcome_is_unknown(
    own_server, near_bus, project
):
    await asyncio.to_thread(near_bus.speak, "the server knows the script from here on")
    with Proxy(own_server.socket) as proxy:
        proxy.swallow = True
        async with agentbus.aio.connect(proxy.url, project=project, deadline=1) as bus:
            outcomes = await asyncio.gather(
                *(bus.speak(f"message {number}") for number in range(100)), return_exceptions=True
            )

    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    said = (await asyncio.to_thread(texts, near_bus))[1:]
    assert sorted(said) == sorted(f"message {number}" for number in range(100))


def test_copies_that_arrive_late_are_stored_once(own_server, near_bus, project):
    # given a server that is frozen while a message is sent to it again and again
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as bus:
        bus.speak("first")
        own_server.stop()
        with pytest.raises(OutcomeUnknown):
            bus.speak("second")

        # when it goes on, with all the copies before it
        own_server.go_on()
        bus.speak("third")

    assert texts(near_bus) == ["first", "second", "third"]
