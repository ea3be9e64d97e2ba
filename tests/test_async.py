"""The asynchronous bus: the same verbs, and many coroutines that wait on few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import agentbus
import agentbus.aio
from agentbus import FlagHeld, NotHolder, TimedOut
from tests.pausing import hurry
from tests.servers import Server, ask
from tests.tiers import on_one_store


@pytest.fixture
async def abob(url: str, project: str) -> AsyncIterator[agentbus.AsyncBus]:
    async with agentbus.aio.connect(url, project=project, agent="bob") as opened:
        yield opened


async def heard(bus, *topics, **options):
    return [message.text async for message in bus.overhear(topics, **options)]


async def begun(bus: agentbus.AsyncBus) -> None:
    """Return once the tasks that were made have asked the server what they first ask of it.

    Their requests and this one go over the same connection, in order.
    """
    await asyncio.sleep(0)
    await bus.speak("all have asked before this is said")


async def test_what_is_said_is_heard_once(abus, abob):
    await abus.speak("hi", topic="build")

    assert await heard(abob) == ["hi"]
    assert await heard(abob) == []


async def test_a_reader_that_stops_hears_the_message_in_hand_again(abus):
    for text in ("one", "two", "three"):
        await abus.speak(text)

    reading = abus.overhear()
    assert (await anext(reading)).text == "one"
    assert (await anext(reading)).text == "two"
    await reading.aclose()

    assert await heard(abus) == ["two", "three"]


async def test_follow_goes_on_as_messages_come(abus, abob):
    following = abob.overhear(follow=True)
    await abus.speak("one")
    assert (await anext(following)).text == "one"

    coming = asyncio.create_task(anext(following))
    await abus.speak("two")

    assert (await coming).text == "two"
    await following.aclose()


async def test_follow_ends_in_time(abus):
    await abus.speak("one")

    assert await heard(abus, follow=True, timeout=0.05) == ["one"]


async def test_notes_are_written_and_found(abus):
    written = await abus.jot("plan", "x", tags=["a"])

    assert await abus.recall("plan") == written
    assert [note.key for note in await abus.notes(["a"])] == ["plan"]
    await abus.forget("plan")
    with pytest.raises(agentbus.NotFound):
        await abus.recall("plan")


async def test_a_flag_is_held_by_one(abus, abob):
    hold = await abus.announce("building", ttl=50)

    with pytest.raises(FlagHeld):
        await abob.announce("building")
    assert (await hold.renew(500)).ttl == 500
    assert (await abus.satisfy("building")).token == hold.token


async def test_await_wakes_for_a_satisfy(abus, abob):
    waiting = asyncio.create_task(abob.await_("building", timeout=60))

    await abus.announce("building")
    await abus.satisfy("building", note="done")

    assert [(met.by, met.note) for met in await waiting] == [("ada", "done")]


async def test_await_in_vain_times_out(abus):
    with pytest.raises(TimedOut):
        await abus.await_("building", timeout=0.05)


async def test_an_awaiter_that_is_cancelled_leaves_the_others_waiting(abus, abob):
    gone, stays = (asyncio.create_task(abob.await_("building", timeout=60)) for _ in range(2))
    await begun(abob)

    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await abus.satisfy("building")

    assert [met.flag for met in await stays] == ["building"]


async def test_a_block_satisfies_its_flag(abus):
    async with abus.hold("deploy") as hold:
        (found,) = await abus.flags()
        assert (found.state, found.token) == ("held", hold.token)

    assert [found.state for found in await abus.flags()] == ["satisfied"]


async def test_a_block_that_raises_fails_its_flag(abus):
    with pytest.raises(ZeroDivisionError):
        async with abus.hold("deploy"):
            raise ZeroDivisionError

    (found,) = await abus.flags()
    assert (found.state, found.note) == ("failed", "ZeroDivisionError")


async def test_a_block_outlives_the_ttl_of_its_hold(abus, abob, bus, monkeypatch):
    intervals = hurry(monkeypatch)
    async with abus.hold("deploy", ttl=60):
        ask(bus, "PEXPIRE", abus.scope.keys.flag("deploy"), 30_000)
        while (await abob.flags())[0].ttl < 31:
            # In memory, nothing else here lets the renewal run.
            await asyncio.sleep(0)
        with pytest.raises(TimedOut):
            await abob.await_("deploy", until="free", timeout=0.1)

    assert intervals == [20]


async def test_a_block_that_lost_its_hold_is_told(abus, abob):
    with pytest.raises(NotHolder):
        async with abus.hold("deploy"):
            await abob.announce("deploy", force=True)


async def test_announce_waits_for_the_holder(abus, abob):
    await abus.announce("building")
    waiting = asyncio.create_task(abob.announce("building", wait=60))
    await begun(abob)

    await abus.release("building")

    assert (await waiting).agent_id == "bob"


async def test_two_buses_of_both_kinds_meet(abus, connect):
    blocking = connect("eve")

    blocking.speak("from a thread")

    assert await heard(abus) == ["from a thread"]


# -- many at once --

# A thousand coroutines share one event loop. On a loaded machine, an answer that is there can wait longer
# than a client's usual deadline before its coroutine runs.
PATIENCE = 240.0


async def test_a_thousand_coroutines_await_on_a_handful_of_connections(
    own_server: Server, project: str
):
    async with (
        agentbus.aio.connect(
            own_server.url, project=project, agent="crowd", deadline=PATIENCE
        ) as crowd,
        agentbus.aio.connect(own_server.url, project=project, agent="ada") as ada,
    ):
        waiting = [asyncio.create_task(crowd.await_("go", timeout=PATIENCE)) for _ in range(1000)]
        await begun(crowd)
        await ada.announce("go")
        connections = own_server.ask("CLIENT", "LIST").splitlines()
        assert len(connections) <= 5
        assert not any(task.done() for task in waiting)

        await ada.satisfy("go")
        await ada.announce("go")
        met = await asyncio.gather(*waiting)

    assert {found[0].by for found in met} == {"ada"}


@on_one_store
async def test_a_thousand_followers_hear_every_message(url: str, project: str):
    async with agentbus.aio.connect(
        url, project=project, agent="crowd", deadline=PATIENCE
    ) as crowd:
        await crowd.speak("before")
        texts = ["before", "one", "two"]

        async def follow() -> list[str]:
            got = []
            async for message in crowd.overhear(since="0-0", follow=True):
                got.append(message.text)
                if len(got) == len(texts):
                    return got
            return got

        followers = [asyncio.create_task(follow()) for _ in range(1000)]
        for text in texts[1:]:
            await crowd.speak(text)

        assert await asyncio.gather(*followers) == [texts] * 1000


async def test_many_writers_at_once_are_all_heard(abus):
    await asyncio.gather(*(abus.speak(f"{number}") for number in range(500)))

    assert sorted(map(int, await heard(abus, limit=None))) == list(range(500))


async def test_who_is_closed_after_the_bus_has_nobody_to_tell(url: str, project: str) -> None:
    async with agentbus.aio.connect(url, project=project, agent="ada") as bus:
        await bus.speak("one")
        await bus.speak("two")
        hearing = bus.overhear(follow=True)
        assert (await anext(hearing)).text == "one"
        assert (await anext(hearing)).text == "two"

    await hearing.aclose()

    async with agentbus.aio.connect(url, project=project, agent="ada") as bus:
        assert [m.text async for m in bus.overhear()][-1] == "two"


async def test_a_fetch_that_waits_gets_what_is_published_meanwhile(abus, abob):
    fetching = asyncio.create_task(abob.queue("mail").fetch(block=30))
    await begun(abob)
    await abus.queue("mail").publish(1)

    (delivery,) = await fetching

    assert delivery.payload == 1
    assert await delivery.ack()
