"""What the page on guarantees promises, or says is not promised, and no other test holds."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import agentbus
from agentbus.coordination import receipts
from agentbus.core.stream import position
from agentbus.errors import (
    BackendUnavailable,
    EpochMismatch,
    FlagHeld,
    LeaseHeld,
    NotFound,
    NotHolder,
    Refused,
    StaleToken,
    TimedOut,
)
from agentbus.routing import Router, load
from agentbus.tasks import Flows, FlowTask, Limits, Scheduler, Schedules, chain
from agentbus.testing import drain
from tests.inprocess import run
from tests.servers import Server, until_a_client_waits
from tests.small_worker import PATIENCE, Registry
from tests.torture.server import clockwork

needs_clockwork = pytest.mark.skipif(
    clockwork() is None, reason="libfaketime is built for Linux on x86_64 alone"
)


def opened(server: Server, project: str, agent: str = "ada") -> agentbus.Bus:
    return agentbus.connect(server.url, project=project, agent=agent)


def buries(_delivery: Any) -> None:
    raise agentbus.Bury("no")


def does(_delivery: Any) -> int:
    return 1


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


# -- a server that was wiped while somebody waits, or holds --


def meanwhile(wait: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread, and return what comes of it."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(wait())
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_on_a_wiped_server_nothing_is_there_and_each_verb_says_so(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        bob.here()
        sent = ada.tell("bob", "may I?")
        ada.jot("key", "value", tags=["t"])
        ada.lease("src/**")
        Limits(ada).set("limited", at_once=1)
        Schedules(ada).add("poll", "mail", every=60)
        flow = Flows(ada).publish(chain(FlowTask(1, queue="steps")))
        mail = ada.queue("mail")
        first, second = mail.publish_many(range(2))
        held = ada.take("mail")
        bad = ada.queue("bad")
        bad.publish("poison")
        ada.subscribe("bad", buries, drain=True).run()
        (letter,) = bad.dead_letters()
        own_server.wipe(restart=True)

        for verb in (
            lambda: ada.recall("key"),
            lambda: ada.forget("key"),
            lambda: ada.receipts(sent.id),
            lambda: bob.reply(sent.id, "yes"),
            lambda: ada.drop_leases("src/**"),
            lambda: Schedules(ada).show("poll"),
            lambda: Flows(ada).show(flow),
            lambda: bad.replay(letter.id),
            mail.delete,
            mail.inspect,
            lambda: ada.cancel(second),
            lambda: ada.task(second),
            lambda: ada.take("mail"),
        ):
            with pytest.raises(NotFound) as error:
                verb()
            assert error.value.exit_code == 5
        with pytest.raises(StaleToken):
            ada.settle(first, held.token, "done")
        assert (list(bob.inbox()), bad.replay_all()) == ([], [])
        assert bad.purge() == bad.purge(letter.id) == 0
        assert (ada.list_(), ada.leases(), Limits(ada).list()) == ([], [], {})
        # A drain ends, and what comes is done.
        assert ada.subscribe("mail", print, drain=True).run() == 0
        mail.publish("new")
        assert ada.subscribe("mail", does, drain=True).run() == 1


def test_the_shell_reads_a_wiped_channel_from_its_newest_100_messages(
    own_server: Server, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(own_server, project) as bus:
        bus.speak("before")
        list(bus.overhear())
        own_server.wipe(restart=True)
        for number in range(102):
            bus.speak(str(number))

    done = run("--url", own_server.url, "--project", project, "--agent", "ada", "overhear")

    assert done.code == 0
    lines = done.out.decode().splitlines()
    assert [line.split()[-1] for line in lines] == [str(number) for number in range(2, 102)]
    assert b"2 messages were skipped" in done.err


def test_who_waits_for_a_lease_takes_it_on_a_wiped_server(own_server: Server, project: str) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        ada.lease("src/**")
        waiting = meanwhile(lambda: bob.lease("src/a", wait=PATIENCE))
        until_a_client_waits(own_server)
        own_server.wipe(restart=True)

        waiting.result(PATIENCE)
        assert [lease.agent for lease in bob.leases()] == ["bob"]


def test_who_asks_a_wiped_server_has_no_answer_in_time(own_server: Server, project: str) -> None:
    with opened(own_server, project) as bus:
        asking = meanwhile(lambda: bus.ask("mail", "may I?", timeout=1.5))
        until_a_client_waits(own_server)
        own_server.wipe(restart=True)

        with pytest.raises(TimedOut):
            asking.result(PATIENCE)


def test_who_waits_for_a_receipt_is_told_that_the_message_is_gone(
    own_server: Server, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_RECHECK", 0.1)
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        bob.here()
        asking = meanwhile(lambda: ada.tell("bob", "may I?", wait=PATIENCE))
        until_a_client_waits(own_server)
        own_server.wipe(restart=True)

        with pytest.raises(NotFound):
            asking.result(PATIENCE)


def test_a_hold_that_was_wiped_is_reported_at_its_end(own_server: Server, project: str) -> None:
    with opened(own_server, project) as bus:
        with pytest.raises(NotHolder) as error, bus.hold("deploy"):
            own_server.wipe(restart=True)

        assert error.value.exit_code == 4
        assert bus.flags() == []


def test_a_router_goes_on_with_what_comes_to_a_wiped_server(
    own_server: Server, project: str, tmp_path: pathlib.Path
) -> None:
    rules = tmp_path / "team.yaml"
    rules.write_text("agents: [alice]\ndefault: alice\n")
    with opened(own_server, project) as ada, opened(own_server, project, "router") as bus:
        ada.queue("incoming").publish("before")
        with Router(bus, load(rules)) as router:
            routing = meanwhile(router.run)
            assert ada.queue("agent.alice").fetch(block=PATIENCE)
            own_server.wipe(restart=True)
            ada.queue("incoming").publish("after")

            (routed,) = ada.queue("agent.alice").fetch(block=PATIENCE)
            router.stop()
            routing.result(PATIENCE)
        assert routed.payload == "after"


# -- a full server --


def everything(server: Server) -> dict[bytes, bytes]:
    return {key: server.ask("DUMP", key) for key in server.ask("KEYS", "*")}


def test_a_full_server_refuses_what_is_new_and_nothing_is_half_done(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        bob.here()
        sent = ada.tell("bob", "may I?")
        ada.lease("src/**")
        Schedules(ada).add("poll", "mail", every=3600)
        mail = ada.queue("mail")
        mail.publish("poison")
        flow = Flows(ada).publish(chain(FlowTask("poison", queue="steps")))
        for queue in ("mail", "steps"):
            ada.subscribe(queue, buries, drain=True).run()
        (letter,) = mail.dead_letters()
        own_server.starve()
        before = everything(own_server)

        for verb in (
            lambda: ada.speak("hi"),
            lambda: ada.tell("bob", "hi"),
            lambda: bob.reply(sent.id, "yes"),
            lambda: ada.jot("key", "value", tags=["t"]),
            lambda: ada.announce("deploy"),
            lambda: ada.hold("deploy").__enter__(),
            lambda: ada.lease("doc/**"),
            lambda: bob.lease("src/a", wait=1),
            lambda: mail.publish("hi"),
            lambda: mail.publish("hi", delay=60, key="k"),
            lambda: mail.publish_many(["hi", "ho"]),
            lambda: ada.ask("mail", "hi", timeout=1),
            lambda: mail.replay(letter.id),
            lambda: Flows(ada).publish(chain(FlowTask(1, queue="steps"))),
            lambda: Flows(ada).replay(flow),
            lambda: Schedules(ada).add("look", "mail", every=60),
            lambda: Limits(ada).set("mail", at_once=1),
        ):
            with pytest.raises(BackendUnavailable, match="is full") as error:
                verb()
            assert error.value.exit_code == 1
        assert everything(own_server) == before


def renewed(server: Server, key: str) -> None:
    """Return once a key ends later than it was to."""
    left = server.ask("PTTL", key)
    while (now := server.ask("PTTL", key)) <= left:
        left = now


def test_a_full_server_does_all_that_ends_something(own_server: Server, project: str) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        bob.here()
        sent = ada.tell("bob", "one")
        ada.tell("bob", "two")
        ada.lease("src/**")
        mail = ada.queue("mail")
        done = mail.publish("done")
        ada.subscribe("mail", does, drain=True).run()
        bad = ada.queue("bad")
        bad.publish("poison")
        ada.subscribe("bad", buries, drain=True).run()
        (letter,) = bad.dead_letters()
        cancelled = mail.publish("cancelled")
        Flows(ada).publish(chain(FlowTask(1, queue="steps"), FlowTask(2, queue="steps")))
        with ada.hold("deploy", ttl=3):
            following = bob.overhear(follow=True)
            assert next(following).text == "announced deploy"
            own_server.starve()
            renewed(own_server, ada.scope.keys.flag("deploy"))
            ended = meanwhile(lambda: ada.await_("deploy", delete=True, timeout=PATIENCE))
        assert ended.result(PATIENCE)[0].state == "satisfied"
        assert next(following).text == "satisfied deploy"

        assert [message.text for message in bob.inbox()] == ["one", "two"]
        assert ada.receipts(sent.id, wait=PATIENCE, until="read").state == "read"
        assert [lease.pattern for lease in ada.drop_leases("src/**")] == ["src/**"]
        assert mail.result(done) == 1
        assert bad.purge(letter.id) == 1
        assert ada.cancel(cancelled).state == "cancelled"
        assert ada.task(cancelled).state == "cancelled"
        assert [entry.state for entry in mail.inspect()] == ["done", "cancelled"]
        mail.pause()
        assert mail.resume()
        ada.halt()
        assert ada.resume()
        assert ada.subscribe("steps", does, drain=True).run() == 2
        assert mail.delete(force=True).queue == "mail"


def test_a_step_is_recorded_on_a_full_server(own_server: Server, project: str) -> None:
    steps: list[str] = []
    with opened(own_server, project) as bus:
        bus.queue("mail").publish("a letter")
        own_server.starve()

        def handle(delivery: Any) -> None:
            delivery.step("charge", lambda: steps.append("charge"))
            if delivery.attempt == 1:
                raise ValueError("not yet")

        bus.subscribe("mail", handle, drain=True, backoff=agentbus.Backoff(first=0.01)).run()

    assert steps == ["charge"]


def test_limits_hold_on_a_full_server(own_server: Server, project: str) -> None:
    running, most = 0, 0

    def handle(_delivery: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    with opened(own_server, project) as bus:
        Limits(bus).set("mail", at_once=1, per_second=1000)
        bus.queue("mail").publish_many(range(10))
        own_server.starve()

        assert bus.subscribe("mail", handle, concurrency=4, drain=True).run() == 10
        assert most == 1


def test_a_tick_that_a_full_server_refuses_is_published_when_it_has_room(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as bus:
        Schedules(bus).add("poll", "mail", every=0.01)
        own_server.starve()
        scheduler = Scheduler(bus)
        running = meanwhile(scheduler.run)
        while b"errorstat_OOM" not in own_server.ask("INFO", "errorstats"):
            pass
        own_server.feed()

        (delivery,) = bus.queue("mail").fetch(block=PATIENCE, count=1)
        scheduler.stop()
        running.result(PATIENCE)
        assert delivery.headers["schedule"] == "poll"


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


def test_notes_inboxes_and_leases_go_back_with_a_lost_tail(
    own_server: Server, project: str
) -> None:
    with opened(own_server, project) as ada, opened(own_server, project, "bob") as bob:
        bob.here()
        ada.tell("bob", "one")
        ada.jot("key", "old")
        ada.lease("dropped/**")
        size = size_of_log(own_server)
        assert [sent.text for sent in bob.inbox()] == ["one"]
        ada.tell("bob", "two")
        ada.jot("key", "new")
        ada.jot("other", "new")
        ada.drop_leases("dropped/**")
        taken = ada.lease("taken/**")
        own_server.kill()
        own_server.lose_tail(size_of_log(own_server) - size)
        own_server.start()

        assert [sent.text for sent in bob.inbox()] == ["one"]
        assert ada.recall("key").value == "old"
        with pytest.raises(NotFound):
            ada.recall("other")
        with pytest.raises(LeaseHeld):
            bob.lease("dropped/a")
        bob.lease("taken/a")
        (again,) = [lease for lease in bob.leases() if lease.agent == "bob"]
        assert again.token > taken.leases[0].token


@pytest.mark.parametrize("said", [False, True])
def test_a_follower_of_a_server_without_its_tail(
    own_server: Server, project: str, said: bool
) -> None:
    with opened(own_server, project) as bus:
        bus.speak("kept")
        size = size_of_log(own_server)
        bus.speak("lost")
        following = bus.overhear(follow=True, since="0")
        assert [next(following).text for _ in range(2)] == ["kept", "lost"]
        own_server.kill()
        own_server.lose_tail(size_of_log(own_server) - size)
        own_server.start()
        if said:
            bus.speak("new")
            assert next(following).text == "new"
        else:
            with pytest.raises(EpochMismatch):
                next(following)


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


@needs_clockwork
def test_what_is_kept_or_waits_for_a_time_is_over_when_the_clock_has_leapt_past_it(
    clocked: Server, project: str
) -> None:
    with opened(clocked, project) as ada, opened(clocked, project, "bob") as bob:
        mail = ada.queue("mail")
        done = mail.publish("done")
        ada.subscribe("mail", does, drain=True).run()
        mail.publish("late", delay=3600)
        ada.satisfy("build")
        ada.lease("src/**", ttl=600)
        Schedules(ada).add("poll", "ticks", every=3600)
        leaped(clocked, 90_000)

        with pytest.raises(TimedOut):
            ada.await_("build", timeout=0.1)
        with pytest.raises(NotFound, match="no longer kept"):
            mail.result(done)
        assert [task.payload for task in mail.fetch()] == ["late"]
        bob.lease("src/a")
        assert [tick.error for tick in Scheduler(ada).run_once()] == [None]


@needs_clockwork
def test_what_ends_at_a_time_ends_late_when_the_clock_goes_back(
    clocked: Server, project: str
) -> None:
    leaped(clocked, 7200)
    with opened(clocked, project) as ada, opened(clocked, project, "bob") as bob:
        ada.announce("deploy", ttl=60)
        ada.lease("src/**", ttl=60)
        ada.queue("mail").publish("a letter")
        held = ada.take("mail", visibility=0.001)
        ada.jot("older", "x")
        Schedules(ada).add("poll", "ticks", every=0.01)
        while not Scheduler(ada).run_once():
            pass
        leaped(clocked, 0)
        ada.jot("newer", "x")

        with pytest.raises(FlagHeld):
            bob.announce("deploy")
        with pytest.raises(LeaseHeld):
            bob.lease("src/a")
        with pytest.raises(NotFound):
            bob.take("mail")
        assert ada.settle(held.id, held.token, "done").state == "done"
        assert [note.key for note in ada.list_()] == ["older", "newer"]
        assert Scheduler(ada).run_once() == []


@needs_clockwork
def test_steps_and_ended_flows_are_forgotten_when_the_clock_leaps_by_more_than_30_days(
    clocked: Server, project: str
) -> None:
    steps: list[str] = []
    with opened(clocked, project) as bus:

        def attempt() -> None:
            (delivery,) = bus.queue("mail").fetch()
            delivery.step("charge", lambda: steps.append("charge"))
            delivery.retry(after=0)

        flow = Flows(bus).publish(chain(FlowTask(1, queue="flow")))
        bus.subscribe("flow", does, drain=True).run()
        bus.queue("mail").publish("a letter")
        attempt()
        attempt()
        assert steps == ["charge"]
        leaped(clocked, 31 * 86_400)

        attempt()
        assert steps == ["charge", "charge"]
        with pytest.raises(NotFound):
            Flows(bus).show(flow)


@needs_clockwork
@pytest.mark.parametrize(("leap", "started"), [(7200.0, 1), (-7200.0, 0)])
def test_buckets_fill_when_the_clock_leaps_forward_and_not_when_it_goes_back(
    clocked: Server, project: str, leap: float, started: int
) -> None:
    rate = 0.01 if leap > 0 else 1000
    with opened(clocked, project) as bus:
        Limits(bus).set("mail", per_second=rate, burst=1)
        mail = bus.queue("mail")
        mail.publish_many(range(3))
        assert len(mail.fetch(count=1)) == 1
        leaped(clocked, leap)

        assert len(mail.fetch(count=3)) == started


@needs_clockwork
def test_a_live_worker_may_count_as_dead_when_the_clock_leaps_forward(
    clocked: Server, project: str
) -> None:
    with opened(clocked, project) as bus:
        Registry(bus, "mail", "w1").beat()
        bus.queue("mail").publish("x")
        leaped(clocked, 60)

        order = bus.pause(queue="mail")
        assert (order.confirmed, order.unconfirmed) == ((), ())
        assert bus.queue("mail").delete(force=True).workers == ()


@needs_clockwork
def test_a_dead_worker_may_count_as_live_when_the_clock_goes_back(
    clocked: Server, project: str
) -> None:
    leaped(clocked, 7200)
    with opened(clocked, project) as bus:
        bus.queue("mail").publish("x")
        Registry(bus, "mail", "w1").beat()
        leaped(clocked, 0)

        assert bus.pause(queue="mail", wait=0).unconfirmed == ("w1",)
        with pytest.raises(Refused, match="live workers: w1"):
            bus.queue("mail").delete()


def leaped(server: Server, seconds: float) -> None:
    """Have a server's clock leap, and return when it has."""
    server.shift(seconds)
    # The first answers may tell the time of its last round.
    while abs(int(server.ask("TIME")[0]) - time.time() - seconds) > 60:
        pass
