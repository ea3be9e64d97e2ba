"""What the page on guarantees promises, or says is not promised, and no other test holds."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.core.stream import position
from agentbus.errors import NotHolder, TimedOut
from agentbus.testing import drain
from tests.servers import Server
from tests.torture.server import clockwork

needs_clockwork = pytest.mark.skipif(
    clockwork() is None, reason="libfaketime is built for Linux on x86_64 alone"
)


def opened(server: Server, project: str, agent: str = "ada") -> agentbus.Bus:
    return agentbus.connect(server.url, project=project, agent=agent)


# -- a server that is killed, by its settings --


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--appendfsync", "always"), 3),
        (("--appendfsync", "no"), 3),
        (("--appendonly", "no", "--save", "3600 1"), 2),
        (("--appendonly", "no"), 0),
    ],
    ids=["always", "no", "snapshots", "nothing"],
)
def test_what_a_killed_server_keeps_is_what_its_settings_say(
    tmp_path: pathlib.Path, project: str, options: tuple[str, ...], kept: int
) -> None:
    with Server(tmp_path / "server", *options) as server, opened(server, project) as bus:
        bus.speak("one")
        bus.speak("two")
        if "3600 1" in options:
            server.ask("SAVE")
        bus.speak("three")

        server.kill()
        server.start()

        assert [said.text for said in bus.overhear()] == ["one", "two", "three"][:kept]


# -- a server that was wiped --


def test_a_reader_of_a_wiped_server_hears_what_comes_and_is_not_told(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as bus:
        bus.speak("before")
        assert len(list(bus.overhear())) == 1
        own_server.wipe(restart=True)
        bus.speak("after")

        assert [said.text for said in bus.overhear()] == ["after"]


def test_a_holder_on_a_wiped_server_is_told_and_tokens_go_on_growing(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        ada.announce("deploy")
        ada.release("deploy")
        hold = ada.announce("deploy", ttl=60)
        own_server.wipe(restart=True)

        assert bob.announce("deploy").token > hold.token
        with pytest.raises(NotHolder):
            hold.renew()


def test_who_awaits_on_a_wiped_server_waits_on_for_a_completion(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as bus:
        bus.satisfy("build")
        own_server.wipe(restart=True)

        with pytest.raises(TimedOut):
            bus.await_("build", timeout=0.1)
        bus.satisfy("build")
        assert bus.await_("build", timeout=30)[0].state == "satisfied"


def test_a_wiped_server_has_no_order_to_halt_any_longer(own_server: Server, project: str) -> None:
    with opened(own_server, project) as bus:
        bus.halt()
        own_server.wipe(restart=True)
        bus.queue("mail").publish("a letter")

        assert bus.subscribe("mail", lambda _delivery: None, drain=True).run() == 1


# -- a server that loses the end of what it has acknowledged --


def size_of_log(server: Server) -> int:
    return sum(path.stat().st_size for path in (server.place / "appendonlydir").glob("*.incr.aof"))


def test_a_server_without_its_tail_has_readers_hear_again_and_tells_nobody(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as bus:
        bus.speak("kept")
        size = size_of_log(own_server)
        bus.speak("lost")
        assert [said.text for said in bus.overhear()] == ["kept", "lost"]
        own_server.kill()
        own_server.lose_tail(size_of_log(own_server) - size)
        own_server.start()
        bus.speak("new")

        assert [said.text for said in bus.overhear()] == ["kept", "new"]


def test_a_server_without_its_tail_gives_no_token_twice_and_the_first_holder_is_told(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        ada.speak("kept")
        size = size_of_log(own_server)
        hold = ada.announce("deploy", ttl=600)
        own_server.kill()
        own_server.lose_tail(size_of_log(own_server) - size)
        own_server.start()

        assert bob.announce("deploy").token > hold.token
        with pytest.raises(NotHolder):
            hold.renew()


# -- a server whose clock leaps --


@pytest.fixture
def clocked(tmp_path: pathlib.Path) -> Iterator[Server]:
    with Server(tmp_path / "clocked", clock=True) as server:
        yield server


@needs_clockwork
@pytest.mark.parametrize("leap", [7200.0, -7200.0])
def test_ids_only_grow_though_the_clock_leaps(clocked: Server, project: str, leap: float) -> None:
    with opened(clocked, project) as bus:
        ids = [bus.speak("before").id]
        for seconds in (leap, 0.0):
            leaped(clocked, seconds)
            ids.append(bus.speak("after").id)

        assert sorted(ids, key=position) == ids
        assert [said.id for said in bus.overhear()] == ids


def test_what_was_answered_is_kept_for_three_hours_for_each_kind_of_write(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as bus, opened(own_server, project, "bob") as bob:
        mail = bus.queue("mail")
        bob.here()
        for number, write in enumerate(
            (
                lambda: bus.speak("hi"),
                lambda: bus.jot("key", "value"),
                lambda: bus.announce("deploy"),
                lambda: bus.satisfy("deploy"),
                lambda: bus.tell("bob", "hi"),
                lambda: mail.publish("plain"),
                lambda: mail.publish("keyed", key="k"),
                lambda: mail.publish_many(["one", "two"]),
                lambda: drain(bob, "mail", lambda delivery: None),
            )
        ):
            write()
            # The next write of a client takes the same slot.
            slots = own_server.ask("KEYS", "*:once:*")
            left = [int(own_server.ask("TTL", slot)) for slot in slots]
            assert left, number
            assert [ttl for ttl in left if not 10_700 < ttl <= 10_800] == [], number


@needs_clockwork
def test_a_hold_ends_when_the_clock_leaps_past_its_end_and_its_holder_is_told(
    clocked: Server, project: str
) -> None:
    with opened(clocked, project) as ada, opened(clocked, project, "bob") as bob:
        hold = ada.announce("deploy", ttl=600)
        leaped(clocked, 7200)

        assert bob.announce("deploy").token > hold.token
        with pytest.raises(NotHolder):
            hold.renew()


@needs_clockwork
def test_a_task_is_taken_over_when_the_clock_leaps_past_the_visibility_and_counts_once(
    clocked: Server, project: str
) -> None:
    with opened(clocked, project) as ada, opened(clocked, project, "bob") as bob:
        ada.queue("mail").publish("a letter")
        (mine,) = ada.queue("mail").fetch()
        leaped(clocked, 7200)

        (theirs,) = bob.queue("mail").fetch()

        assert (mine.ack(), theirs.ack()) == (False, True)
        assert theirs.attempt == 2


@needs_clockwork
def test_tokens_go_back_where_data_and_clock_do_together(clocked: Server, project: str) -> None:
    with opened(clocked, project) as ada:
        hold = ada.announce("deploy")
        leaped(clocked, -7200)
        assert ada.announce("deploy", force=True).token == hold.token
        ada.release("deploy")
        assert ada.announce("deploy").token == hold.token + 1
        clocked.ask("FLUSHALL")

        assert ada.announce("deploy").token < hold.token


@needs_clockwork
def test_a_window_of_keys_is_over_when_the_clock_has_leapt_past_it(
    clocked: Server, project: str
) -> None:
    with opened(clocked, project) as bus:
        first = bus.queue("mail").publish("a letter", key="k")
        assert bus.queue("mail").publish("a letter", key="k") == first
        leaped(clocked, 7200)

        assert bus.queue("mail").publish("a letter", key="k") != first


def leaped(server: Server, seconds: float) -> None:
    """Have a server's clock leap, and return when it has."""
    server.shift(seconds)
    # The first answers may tell the time of its last round.
    while abs(int(server.ask("TIME")[0]) - time.time() - seconds) > 60:
        pass
