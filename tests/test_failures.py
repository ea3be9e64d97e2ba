"""Flags that fail: who awaits them is told at once, and why."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import FlagFailed, NotHolder, TimedOut, UsageError
from agentbus.store.steps import Command, one_step
from tests.pausing import awaiting


@pytest.fixture
def bob(connect):
    return connect("bob")


@pytest.fixture
def eve(connect):
    return connect("eve")


def state(bus, flag):
    return {found.flag: found.state for found in bus.flags()}.get(flag, "free")


# -- fail --


def test_fail_ends_the_hold_and_leaves_the_failure(bus):
    hold = bus.announce("building")
    ended = bus.fail("building", note="exit 2")

    assert (ended.state, ended.agent_id, ended.token) == ("failed", "ada", hold.token)
    (found,) = bus.flags()
    assert (found.state, found.agent_id, found.note) == ("failed", "ada", "exit 2")


def test_a_flag_that_was_never_announced_can_fail(bus):
    bus.fail("building")

    assert state(bus, "building") == "failed"


def test_fail_is_refused_while_another_agent_holds_the_flag(bus, bob):
    bus.announce("building")

    with pytest.raises(NotHolder, match="held by ada"):
        bob.fail("building")
    bob.fail("building", force=True)

    assert state(bus, "building") == "failed"


@pytest.mark.parametrize(
    ("verb", "left"), [("announce", "held"), ("satisfy", "satisfied"), ("fail", "failed")]
)
@pytest.mark.parametrize("before", ["satisfy", "fail"])
def test_the_last_outcome_replaces_the_one_before(bus, before, verb, left):
    getattr(bus, before)("building")

    getattr(bus, verb)("building")

    assert state(bus, "building") == left


def test_a_failure_is_an_event_with_its_token_and_note(bus):
    hold = bus.announce("building")
    bus.fail("building", note="exit 2")

    (last,) = bus.overhear("coordination", last=1)

    assert last.event == "failed"
    assert last.details == {"flag": "building", "token": str(hold.token), "note": "exit 2"}


def test_a_program_that_reads_completions_alone_takes_no_failure_for_one(bus):
    bus.satisfy("building")
    bus.fail("building")

    assert bus.runner.run(one_step(Command("EXISTS", bus.scope.keys.done("building")))) == 0


# -- await --


def test_await_raises_at_once_if_the_flag_has_failed(bus, bob):
    bus.fail("building", note="exit 2")

    with pytest.raises(FlagFailed, match=r"'building' failed \(by ada\): exit 2") as failed:
        bob.await_("building", timeout=0.1)

    assert (failed.value.exit_code, failed.value.flag) == (8, "building")
    assert (failed.value.note, failed.value.by) == ("exit 2", "ada")
    assert isinstance(failed.value.at, float)


def test_await_wakes_when_the_flag_fails(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building")

    bus.fail("building", note="exit 2")

    with pytest.raises(FlagFailed, match="exit 2"):
        waiting.finish()


def test_await_wakes_for_a_failure_however_short_it_lasted(bus, bob):
    waiting = awaiting(bob, "building")

    bus.fail("building")
    bus.announce("building")

    with pytest.raises(FlagFailed):
        waiting.finish()


def test_one_failure_ends_who_awaits_all(bus, bob):
    waiting = awaiting(bob, "linux", "mac")

    bus.satisfy("linux")
    bus.fail("mac")

    with pytest.raises(FlagFailed, match="'mac'"):
        waiting.finish()


def test_with_any_one_success_is_enough(bus, bob):
    bus.fail("linux")
    waiting = awaiting(bob, "linux", "mac", any=True)

    bus.satisfy("mac")

    assert [met.flag for met in waiting.finish()] == ["mac"]


def test_with_any_all_must_fail(bus, bob):
    bus.fail("linux", note="red")
    waiting = awaiting(bob, "linux", "mac", any=True)

    bus.fail("mac")

    with pytest.raises(FlagFailed, match="'linux' and 'mac'"):
        waiting.finish()


def test_with_any_a_failed_flag_may_still_succeed(bus, bob):
    bus.fail("linux")
    waiting = awaiting(bob, "linux", "mac", any=True)

    bus.announce("linux")
    bus.fail("mac")
    bus.satisfy("linux")

    assert [met.flag for met in waiting.finish()] == ["linux"]


def test_fresh_ignores_a_failure_from_before(bus, bob):
    bus.fail("building")
    waiting = awaiting(bob, "building", fresh=True)

    bus.satisfy("building")

    assert [met.state for met in waiting.finish()] == ["satisfied"]


def test_fresh_fails_with_a_failure_from_now_on(bus, bob):
    bus.fail("building")
    waiting = awaiting(bob, "building", fresh=True)

    bus.fail("building", note="again")

    with pytest.raises(FlagFailed, match="again"):
        waiting.finish()


def test_failures_can_be_ignored(bus, bob):
    bus.fail("building")
    waiting = awaiting(bob, "building", ignore_failures=True)

    bus.fail("building")
    bus.satisfy("building")

    assert [met.state for met in waiting.finish()] == ["satisfied"]


def test_until_free_and_until_announced_ignore_failures(bus, bob):
    bus.fail("building")

    assert [met.state for met in bob.await_("building", until="free", timeout=1)] == ["free"]
    with pytest.raises(TimedOut):
        bob.await_("building", until="announced", timeout=0.1)


def test_until_free_wakes_when_the_hold_fails(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", until="free")

    bus.fail("building")
    bus.announce("building")

    assert [met.state for met in waiting.finish()] == ["free"]


def test_delete_consumes_the_failure(bus, bob):
    bus.fail("ticket")

    with pytest.raises(FlagFailed):
        bob.await_("ticket", delete=True, timeout=1)

    assert state(bus, "ticket") == "free"


def test_a_failure_is_consumed_by_one_of_several_awaiters(bus, bob, eve):
    first, second = (awaiting(agent, "ticket", delete=True, timeout=2) for agent in (bob, eve))

    bus.fail("ticket")

    with pytest.raises(FlagFailed):
        first.finish()
    with pytest.raises(TimedOut):
        second.finish()


def test_delete_with_any_consumes_all_failures(bus, bob):
    bus.fail("linux")
    bus.fail("mac")

    with pytest.raises(FlagFailed):
        bob.await_("linux", "mac", any=True, delete=True, timeout=1)

    assert bus.flags() == []


# -- hold --


class Broken(Exception):
    pass


def test_a_block_that_raises_fails_the_flag_with_the_error(bus):
    with pytest.raises(Broken), bus.hold("deploy"):
        raise Broken("no disk\0 left")

    (found,) = bus.flags()
    assert (found.state, found.note) == ("failed", "Broken: no disk  left")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_fails_the_flag(bus, error):
    with pytest.raises(error), bus.hold("deploy"):
        raise error

    (found,) = bus.flags()
    assert (found.state, found.note) == ("failed", error.__name__)


def test_a_block_that_raises_releases_the_flag_if_so_wished(bus):
    with pytest.raises(Broken), bus.hold("deploy", on_failure="release"):
        raise Broken

    assert state(bus, "deploy") == "free"


def test_a_wrong_on_failure_is_refused_before_the_flag_is_taken(bus):
    with pytest.raises(UsageError, match="on_failure"):
        bus.hold("deploy", on_failure="ignore")


async def test_a_cancelled_block_fails_the_flag(abus):
    entered = asyncio.Event()

    async def work() -> None:
        async with abus.hold("deploy"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    (found,) = await abus.flags()
    assert (found.state, found.note) == ("failed", "CancelledError")


async def test_two_hundred_coroutines_that_await_a_flag_are_told_that_it_failed(abus):
    waiting = [asyncio.create_task(abus.await_("building", timeout=60)) for _ in range(200)]
    await abus.announce("building")
    await abus.fail("building", note="exit 2")

    ends = await asyncio.gather(*waiting, return_exceptions=True)

    assert {(type(end), end.note) for end in ends} == {(FlagFailed, "exit 2")}
