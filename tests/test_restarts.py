"""What lives longer than its server, or shares a connection: all of it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import redis

import agentbus
import agentbus.aio
from agentbus.errors import BackendUnavailable
from tests.servers import Server, Shell, free_port, until_a_client_waits


def said_on(server: Server, project: str) -> list[bytes]:
    entries = server.ask("XRANGE", f"{project}:ch:main", "-", "+")
    return [dict(itertools.pairwise(flat))[b"message"] for _, flat in entries]


# -- connections that outlive their server --


@pytest.fixture
def connect_to(project):
    def _connect(url: str, **options: Any) -> agentbus.Bus:
        return agentbus.connect(url, project=project, agent="ada", **options)

    return _connect


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(number)` in so many threads at once, and raise what one of them raised."""
    with futures.ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()


def restart(server: Server) -> None:
    """Kill a server and start it again; it may still be reading its data."""
    server.kill()
    with contextlib.suppress(redis.ResponseError):
        server.start()


def test_idle_connections_are_replaced_after_a_restart(own_server, connect_to, project):
    with connect_to(own_server.url) as bus:
        in_threads(8, lambda number: bus.speak(f"before {number}"))
        restart(own_server)

        in_threads(8, lambda number: bus.speak(f"after {number}"))

    assert len(said_on(own_server, project)) == 16
    assert len(set(said_on(own_server, project))) == 16


async def test_an_asynchronous_connection_is_replaced_after_a_restart(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project) as bus:
        await bus.speak("before")
        await asyncio.to_thread(restart, own_server)
        await bus.speak("after")

    assert said_on(own_server, project) == [b"before", b"after"]


def test_scripts_that_the_server_forgot_are_sent_again(own_server, connect_to, project):
    with connect_to(own_server.url) as bus:
        bus.speak("one")
        own_server.ask("SCRIPT", "FLUSH")
        bus.speak("two")
        own_server.ask("SCRIPT", "FLUSH")
        assert [said.text for said in bus.overhear()] == ["one", "two"]

    assert said_on(own_server, project) == [b"one", b"two"]


async def test_scripts_that_the_server_forgot_are_sent_again_by_coroutines(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project) as bus:
        for turn in range(3):
            own_server.ask("SCRIPT", "FLUSH")
            await asyncio.gather(*(bus.speak(f"{turn} {number}") for number in range(20)))

    assert len(set(said_on(own_server, project))) == 60
    assert len(said_on(own_server, project)) == 60


def test_threads_may_share_a_bus(own_server, connect_to, project):
    with connect_to(own_server.url) as bus:

        def work(thread: int) -> None:
            for number in range(50):
                bus.speak(f"{thread} {number}")
                bus.jot(f"note {thread}", str(number))
                assert bus.recall(f"note {thread}").value == str(number)

        in_threads(8, work)

    said = [text for text in said_on(own_server, project) if not text.startswith(b"noted")]
    assert sorted(said) == sorted(f"{t} {n}".encode() for t in range(8) for n in range(50))


def test_a_thread_that_waits_does_not_hold_up_another(own_server, connect_to):
    with connect_to(own_server.url) as bus, futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bus.await_, "go", timeout=60)
        until_a_client_waits(own_server)
        bus.speak("not held up")
        bus.satisfy("go")

        assert [met.flag for met in waiting.result()] == ["go"]


def test_a_bus_may_be_used_in_a_forked_child(own_server, connect_to, project):
    with connect_to(own_server.url) as bus:
        bus.speak("before the fork")
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            # Nothing of the test run may go on in the child.
            code = 1
            try:
                os.close(write_end)
                os.read(read_end, 1)
                for number in range(50):
                    bus.speak(f"child {number}")
                code = 0
            finally:
                os._exit(code)
        os.close(read_end)
        os.close(write_end)
        for number in range(50):
            bus.speak(f"parent {number}")
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    said = said_on(own_server, project)
    wanted = [f"{who} {n}".encode() for who in ("child", "parent") for n in range(50)]
    assert sorted(said) == sorted([b"before the fork", *wanted])


# -- verbs that wait outlive their server --


def test_await_survives_a_restart(own_server, tmp_path, project, connect_to):
    shell = Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project})
    waiter = shell.start("await", "built", "--url", own_server.url, "--timeout", "60")
    with connect_to(own_server.url) as bus:
        # The awaiter reads the channel from here on, blocked.
        until_a_client_waits(own_server)
        restart(own_server)
        bus.satisfy("built")

    output, said = waiter.communicate(timeout=60)
    assert (waiter.returncode, said) == (0, "")
    assert "built" in output


def test_follow_survives_a_restart(own_server, tmp_path, project, connect_to):
    shell = Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "bob"})
    words = ("overhear", "--follow", "--max", "2", "--timeout", "60", "--json")
    listener = shell.start(*words, "--url", own_server.url)
    assert listener.stdout is not None
    with connect_to(own_server.url) as bus:
        bus.speak("before")
        assert "before" in listener.stdout.readline()
        restart(own_server)
        bus.speak("after")

    assert "after" in listener.communicate(timeout=60)[0]
    assert listener.returncode == 0


async def test_coroutines_that_wait_survive_a_restart(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, agent="bob") as bus:
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            async with contextlib.aclosing(bus.overhear(follow=True)) as said:
                async for message in said:
                    await heard.put(message.text)
                    if message.text == "after":
                        return

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(follow())
            waits = [group.create_task(bus.await_(f"flag {n}")) for n in range(50)]
            await bus.speak("before")
            assert await heard.get() == "before"
            await asyncio.to_thread(restart, own_server)
            await bus.speak("after")
            assert await heard.get() == "after"
            for number in range(50):
                await bus.satisfy(f"flag {number}")

    assert [(await wait)[0].state for wait in waits] == ["satisfied"] * 50


def step_down(server: Server) -> None:
    """Make a primary a replica, which ends all blocked reads, and a primary again."""
    server.ask("REPLICAOF", "127.0.0.1", free_port())
    server.ask("REPLICAOF", "NO", "ONE")


def test_verbs_that_wait_survive_a_primary_that_steps_down(own_server, tmp_path, project):
    shell = Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project, "AGENTBUS_URL": own_server.url})
    shell.ok("announce", "held", "--agent", "ada")
    words = [
        ("await", "built", "--timeout", "60"),
        ("overhear", "--follow", "--max", "1", "--topic", "t", "--timeout", "60"),
        ("announce", "held", "--wait", "60", "--agent", "bob"),
    ]
    waiters = [shell.start(*each) for each in words]
    while own_server.ask("CLIENT", "LIST").count(b"cmd=xread") < len(waiters):
        pass
    step_down(own_server)
    for each in (
        ("satisfy", "built"),
        ("speak", "hi", "--topic", "t"),
        ("release", "held", "--agent", "ada"),
    ):
        shell.ok(*each)

    said = [waiter.communicate(timeout=60) for waiter in waiters]
    assert [waiter.returncode for waiter in waiters] == [0, 0, 0], said


async def test_coroutines_that_wait_survive_a_primary_that_steps_down(own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, agent="bob") as bus:
        waits = [asyncio.ensure_future(bus.await_(f"flag {n}", timeout=60)) for n in range(5)]
        await asyncio.to_thread(until_a_client_waits, own_server)
        await asyncio.to_thread(step_down, own_server)
        for number in range(5):
            await bus.satisfy(f"flag {number}")

        assert [(await wait)[0].state for wait in waits] == ["satisfied"] * 5


def test_await_is_told_when_the_server_does_not_come_back_in_time(own_server, connect_to):
    with connect_to(own_server.url, deadline=1) as bus, futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bus.await_, "never", timeout=2)
        until_a_client_waits(own_server)
        own_server.kill()

        with pytest.raises(BackendUnavailable):
            waiting.result()


def test_a_server_that_reads_its_data_for_a_while_is_waited_for(own_server, connect_to, project):
    # given a server that needs some time to read its data
    own_server.ask("EVAL", "for i = 1, 300000 do redis.call('SET', 'k' .. i, 'v') end", 0)
    with connect_to(own_server.url) as bus:
        bus.speak("before")

        # when it is started again, and a message is spoken before it has read them
        restart(own_server)
        bus.speak("after")

    assert said_on(own_server, project) == [b"before", b"after"]
