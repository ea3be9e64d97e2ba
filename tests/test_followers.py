"""Followers of a server that comes back without what it had: they report it, whatever its clock says."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from queue import SimpleQueue
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus import EpochMismatch
from tests.servers import Server, ask

PATIENCE = 60.0
OPTIONS: list[dict[str, Any]] = [{}, {"start": "newest"}, {"since": "0"}, {"peek": True}]


def come_back_empty(server: Server, stream: str, *fields: str) -> None:
    """Restart a server without its data, with an entry as its clock, which is far behind, would make."""
    server.kill()
    shutil.rmtree(server.place / "appendonlydir")
    server.start()
    server.ask("XADD", stream, "5-1", *fields)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_follower_reports_a_server_that_came_back_empty(options, own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.speak("before")
        messages = bus.overhear(follow=True, **options)
        assert next(messages).text == "before"

        come_back_empty(own_server, f"{project}:ch:main", "agent_id", "bob", "message", "after")

        with pytest.raises(EpochMismatch, match="went back in time"):
            next(messages)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_an_asynchronous_follower_does_so_too(options, own_server, project):
    async with agentbus.aio.connect(own_server.url, project=project, agent="ada") as bus:
        await bus.speak("before")
        messages = bus.overhear(follow=True, **options)
        assert (await anext(messages)).text == "before"
        following = asyncio.ensure_future(anext(messages))
        while b"blocked_clients:0" in own_server.ask("INFO", "clients"):
            await asyncio.sleep(0.005)

        come_back_empty(own_server, f"{project}:ch:main", "agent_id", "bob", "message", "after")

        with pytest.raises(EpochMismatch, match="went back in time"):
            await following


@pytest.mark.parametrize(
    ("options", "said"), [*((each, 1) for each in OPTIONS), ({"peek": True}, 1100)], ids=str
)
def test_a_follower_reports_a_server_that_was_wiped_although_somebody_speaks_at_once(
    options, said, connect
):
    bus, other = connect("ada"), connect("bob")
    bus.speak("before")
    messages = bus.overhear(follow=True, **options)
    assert next(messages).text == "before"

    for key in ask(bus, "KEYS", f"{bus.project}:*"):
        ask(bus, "DEL", key)
    for number in range(said):
        ask(other, "XADD", f"{bus.project}:ch:main", "*", "agent_id", "bob", "message", number)

    with pytest.raises(EpochMismatch, match="the channel was deleted"):
        list(messages)


def test_a_follower_of_a_server_that_lost_the_end_of_its_log_reads_on(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=30) as bus:
        bus.speak("one")
        messages = bus.overhear(follow=True)
        assert next(messages).text == "one"
        # when the server loses what was written from here on
        bus.speak("two")
        kept = own_server.written
        assert next(messages).text == "two"
        bus.speak("three")
        assert next(messages).text == "three"
        size = own_server.written - kept
        own_server.kill()
        own_server.lose_tail(size)
        own_server.start()
        bus.speak("four")

        # then
        assert next(messages).text == "four"


def test_a_follower_of_metrics_reports_it(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.queue("mail").publish("x")
        bus.subscribe("mail")(lambda _task: None)
        bus.work(drain=True)
        samples = bus.samples(follow=True)
        next(samples)

        come_back_empty(own_server, f"{project}:metrics", "x", "y")

        with pytest.raises(EpochMismatch, match="went back in time"):
            next(samples)


# -- many followers of one process --

MANY = [200, pytest.param(1000, marks=pytest.mark.slow)]


def connections(server: Server) -> int:
    """Return how many clients of the bus there are, besides the one that asks."""
    listed: bytes = server.ask("CLIENT", "LIST")
    return sum(b" name=agentbus" in line for line in listed.splitlines())


class Crowd:
    """Followers in threads, and what each has heard."""

    def __init__(self, followers: list[Iterator[agentbus.Message]]) -> None:
        self.heard: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self.threads = [
            threading.Thread(target=self._follow, args=(number, follower), daemon=True)
            for number, follower in enumerate(followers)
        ]
        for thread in self.threads:
            thread.start()

    def _follow(self, number: int, follower: Iterator[agentbus.Message]) -> None:
        for message in follower:
            self.heard.put((number, message.text))
            if message.text == "end":
                return

    def hears(self, text: str) -> bool:
        """Return whether each follower hears this next."""
        found = {self.heard.get(timeout=PATIENCE) for _ in self.threads}
        return found == {(number, text) for number in range(len(self.threads))}

    def ends(self) -> None:
        """Wait until all have heard the end."""
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.mark.parametrize("buses", ["one bus", "a bus each"])
@pytest.mark.parametrize("number", MANY)
def test_many_followers_in_threads_share_their_connections(number, buses, own_server, project):
    url = own_server.url
    with agentbus.connect(url, project=project, agent="ada", deadline=PATIENCE) as ada:
        opened = [
            agentbus.connect(url, project=project, agent=f"agent-{index}", deadline=PATIENCE)
            for index in range(1 if buses == "one bus" else number)
        ]
        ada.speak("first")
        crowd = Crowd(
            [
                opened[index % len(opened)].overhear(since="0", follow=True)
                for index in range(number)
            ]
        )
        assert crowd.hears("first")
        assert connections(own_server) <= 5
        ada.speak("second")
        assert crowd.hears("second")
        assert connections(own_server) <= 5
        ada.speak("end")
        assert crowd.hears("end")
        crowd.ends()
        for bus in opened:
            bus.close()


@pytest.mark.parametrize("number", MANY)
async def test_many_asynchronous_buses_follow_on_few_connections(number, own_server, project):
    async with AsyncExitStack() as opened:
        ada, *buses = [
            await opened.enter_async_context(
                agentbus.aio.connect(
                    own_server.url, project=project, agent=f"a{index}", deadline=PATIENCE
                )
            )
            for index in range(number + 1)
        ]
        await ada.speak("first")
        followers = [bus.overhear(follow=True) for bus in buses]
        assert {m.text for m in await asyncio.gather(*map(anext, followers))} == {"first"}
        following = [asyncio.ensure_future(anext(follower)) for follower in followers]
        await ada.speak("second")
        assert {m.text for m in await asyncio.gather(*following)} == {"second"}
        assert connections(own_server) <= 5
        for follower in followers:
            await follower.aclose()


def test_shared_followers_report_a_server_that_came_back_empty(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.speak("before")
        ended: SimpleQueue[str] = SimpleQueue()

        def follow() -> None:
            try:
                for message in bus.overhear(since="0", follow=True):
                    ended.put(message.text)
            except EpochMismatch as error:
                ended.put(error.message)

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert {ended.get(timeout=PATIENCE) for _ in threads} == {"before"}
        while b"blocked_clients:2" not in own_server.ask("INFO", "clients"):
            time.sleep(0.005)

        come_back_empty(own_server, f"{project}:ch:main", "agent_id", "bob", "message", "after")

        assert all("went back in time" in ended.get(timeout=PATIENCE) for _ in threads)
        for thread in threads:
            thread.join(PATIENCE)


async def test_a_shared_read_beyond_the_end_of_the_channel_starts_again(own_server, project):
    async with (
        agentbus.aio.connect(own_server.url, project=project, agent="ada") as bus,
        agentbus.aio.connect(own_server.url, project=project, agent="bob") as bob,
    ):
        await bob.speak("first")
        beyond = bus.overhear(since="0", follow=True)
        assert (await anext(beyond)).text == "first"
        waiting = asyncio.ensure_future(anext(beyond))
        while b"blocked_clients:1" not in own_server.ask("INFO", "clients"):
            await asyncio.sleep(0.005)
        own_server.ask("DEL", f"{project}:ch:main")
        own_server.ask("XADD", f"{project}:ch:main", "5-1", "agent_id", "bob", "message", "early")
        early = bus.overhear(since="0", follow=True)
        assert (await anext(early)).text == "early"
        following = asyncio.ensure_future(anext(early))
        with pytest.raises(EpochMismatch):
            await waiting
        own_server.ask("XADD", f"{project}:ch:main", "6-1", "agent_id", "bob", "message", "next")
        assert (await asyncio.wait_for(following, PATIENCE)).text == "next"
        await early.aclose()


def test_a_follower_left_by_the_first_one_goes_on(own_server, project):
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        bus.speak("one")
        first, second = (bus.overhear(since="0", follow=True) for _ in range(2))
        assert (next(first).text, next(second).text) == ("one", "one")
        first.close()
        bus.speak("two")
        assert next(second).text == "two"
        second.close()
        third = bus.overhear(since="0", follow=True)
        assert next(third).text == "one"
        third.close()


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another one"])
async def test_a_loop_left_by_break_has_recorded_how_far_it_came_once_the_bus_is_closed(
    valkey, project, others, follow
):
    async with AsyncExitStack() as stack:
        bob = await stack.enter_async_context(
            agentbus.aio.connect(valkey.url, project=project, agent="bob")
        )
        first = bob.overhear(follow=True, timeout=PATIENCE)
        for number in range(3):
            await bob.speak(str(number))
        if others:
            assert (await anext(first)).text == "0"

        async with agentbus.aio.connect(valkey.url, project=project, agent="ada") as ada:
            async for message in ada.overhear(follow=follow):
                # The one at which the loop is left counts as not read.
                if message.text == "1":
                    break

        with agentbus.connect(valkey.url, project=project, agent="ada") as again:
            assert [one.text for one in again.overhear()] == ["1", "2"]
        await first.aclose()
