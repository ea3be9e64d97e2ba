"""Who waits for which flag can be seen, and whose connection is whose."""

from __future__ import annotations

import signal
import threading

import pytest

import agentbus
from agentbus import FlagFailed, TimedOut
from agentbus.coordination.waiters import Waiting
from agentbus.store.steps import Command, one_step
from tests.pausing import Blocked, awaiting
from tests.servers import Shell


@pytest.fixture
def bob(connect):
    return connect("bob")


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


def who(bus):
    return [(one.flag, one.until, one.agent_id) for one in bus.waiters()]


def test_an_agent_that_awaits_flags_is_seen_until_it_is_done(bus, bob):
    waiting = awaiting(bob, "linux", "mac")

    assert who(bus) == [("linux", "satisfied", "bob"), ("mac", "satisfied", "bob")]
    assert all(isinstance(one.since, float) for one in bus.waiters())
    bus.satisfy("linux")
    bus.satisfy("mac")
    waiting.finish()
    assert who(bus) == []


def test_what_is_asked_after_a_wait_gets_its_own_answer(bus, bob):
    bus.jot("key", "value")
    for flag in ("linux", "mac"):
        waiting = awaiting(bob, flag)
        bus.satisfy(flag)
        waiting.finish()

        assert bob.recall("key").value == "value"
        assert {state.flag for state in bob.flags()} >= {flag}


def test_a_wait_ends_though_its_connection_was_closed_meanwhile(real_url, project):
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        bob.satisfy("linux")
        waiting = Waiting(bob.scope, ["linux"], "satisfied")
        bob.runner.run(waiting.renew())
        (idle,) = bob.runner.link._idle
        idle.close()

        bob.runner.run(waiting.end())

        assert bob.await_("linux")


def test_a_connection_in_use_is_closed_once_it_has_its_reply(own_server, project):
    bob = agentbus.connect(own_server.url, project=project, agent="bob")
    waiting = awaiting(bob, "linux")
    finishing = threading.Thread(target=waiting.finish)
    finishing.start()
    while b"cmd=xread" not in own_server.ask("CLIENT", "LIST"):
        pass
    link = bob.runner.link

    bob.close()
    with agentbus.connect(own_server.url, project=project, agent="ada") as ada:
        ada.satisfy("linux")
    finishing.join()

    assert link._idle == []


def test_a_connection_that_an_interrupt_left_to_nobody_is_closed(real_url, project):
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        bob.jot("key", "value")
        # As after an interrupt between taking it and using it.
        connection = bob.runner.link._idle.pop()
        socket = connection._socket
        del connection

        assert socket.fileno() == -1
        assert bob.recall("key").value == "value"


def test_an_agent_that_waits_for_a_hold_to_end_is_seen(bus, bob):
    bus.announce("deploy")
    waiting = Blocked(bob, "announce", "deploy", wait=30)

    assert who(bus) == [("deploy", "free", "bob")]
    bus.release("deploy")
    waiting.finish()
    assert who(bus) == []


def test_a_wait_that_fails_or_times_out_is_over(bus, bob):
    waiting = awaiting(bob, "linux")
    bus.fail("linux")
    with pytest.raises(FlagFailed):
        waiting.finish()
    with pytest.raises(TimedOut):
        bob.await_("mac", timeout=0.05)

    assert who(bus) == []


def test_two_waits_of_one_agent_are_two(bus, bob):
    first, _second = (awaiting(bob, "linux", any=True) for _ in range(2))

    assert len(who(bus)) == 2
    bus.satisfy("linux")
    first.finish()
    assert len(who(bus)) == 1


def test_the_record_of_a_killed_waiter_expires(bus, bob):
    awaiting(bob, "linux")
    keys = bus.scope.keys
    (record,) = bus.runner.run(one_step(Command("ZRANGE", keys.waiting, 0, -1)))
    bus.runner.run(one_step(Command("ZADD", keys.waiting, 1, record)))

    assert who(bus) == []


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", "text"),
        ("ZADD", "9e15", "no record"),
        ("ZADD", "9e15", "a\nb\nc\nnever\nx"),
        ("ZADD", "9e15", b"\xff\n\n\n\n"),
    ],
)
def test_records_that_another_program_spoilt_are_left_out(bus, spoil):
    bus.flags()
    for key in (bus.scope.keys.waiting, bus.scope.keys.sessions):
        bus.runner.run(one_step(Command(spoil[0], key, *spoil[1:])))

    assert bus.waiters() == []
    assert "names" not in [finding.check for finding in bus.doctor()]
    bus.satisfy("linux")
    assert [met.flag for met in bus.await_("linux", timeout=1)] == ["linux"]


def test_list_flags_shows_who_waits_for_what_since_when(shell):
    waiting = shell.start("await", "deploy", "building", "--agent", "bob")
    shell.ok("announce", "building")
    with agentbus.connect(
        shell.environment["AGENTBUS_URL"], project=shell.environment["AGENTBUS_PROJECT"]
    ) as bus:
        while len(bus.waiters()) < 2:
            pass

    building, deploy = shell.records("list", "--flags")
    text = shell.ok("list", "--flags")
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=60)

    assert (building["flag"], building["state"]) == ("building", "held")
    assert (deploy["flag"], deploy["state"], deploy["agent_id"]) == ("deploy", "free", None)
    (one,) = deploy["waiting"]
    assert (one["until"], one["agent_id"]) == ("satisfied", "bob")
    assert f"deploy free; bob waits until satisfied since {one['since']}" in text


@pytest.mark.parametrize(
    ("agent", "name"), [("ada", "agentbus:ada"), ("ci @ n%ght", "agentbus:ci%20@%20n%25ght")]
)
def test_connections_have_the_agents_name(real_url, project, agent, name):
    with agentbus.connect(real_url, project=project, agent=agent) as bus:
        listed = bus.runner.run(one_step(Command("CLIENT", "LIST")))

    assert f" name={name} " in listed.decode()


async def test_connections_of_a_loop_have_the_agents_name(real_url, project):
    async with agentbus.aio.connect(real_url, project=project, agent="ada") as abus:
        listed = await abus.runner.run(one_step(Command("CLIENT", "LIST")))

    assert " name=agentbus:ada " in listed.decode()
