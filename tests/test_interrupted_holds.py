"""A block that is interrupted while it takes a flag, a lease or a place of a semaphore leaves none held."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from typing import Any

import pytest

import agentbus
from agentbus.errors import Refused
from agentbus.store.steps import Step
from tests.repositories import make_repository
from tests.servers import ask

# An exchange takes several turns of the event loop: a cancellation hits before, during and after it.
TURNS = range(1, 13)


@pytest.fixture(autouse=True)
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository in which each test runs."""
    root = tmp_path / "shop"
    make_repository(root)
    monkeypatch.chdir(root)


class Interrupting:
    """A link on which Ctrl-C arrives at an exchange of a script: after it, or instead of it."""

    def __init__(self, link: Any, script: str, *, executed: bool) -> None:
        self._link, self._script, self._executed = link, script, executed
        self.name, self.close = link.name, link.close

    def execute(self, step: Step) -> Any:
        if step.label != self._script:
            return self._link.execute(step)
        self._script = ""
        if self._executed:
            self._link.execute(step)
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted(bus: agentbus.Bus, script: str, *, executed: bool) -> Any:
    own, bus.runner.link = bus.runner.link, Interrupting(bus.runner.link, script, executed=executed)
    with pytest.raises(KeyboardInterrupt):
        yield
    bus.runner.link = own


async def cancelled(block: Any, turns: int) -> None:
    """Enter a block in a task that is cancelled after so many turns of the loop."""

    async def enter() -> None:
        async with block:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(enter())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("executed", [True, False])
def test_an_interrupted_block_does_not_keep_its_flag(bus: agentbus.Bus, executed: bool) -> None:
    with interrupted(bus, "announce", executed=executed):
        with bus.hold("deploy"):
            pytest.fail("entered")

    assert bus.flags() == []
    with bus.hold("deploy"):
        assert bus.flags()[0].state == "held"


def test_a_request_that_comes_after_its_caller_was_interrupted_takes_nothing(
    bus: agentbus.Bus,
) -> None:
    late: list[Step] = []
    own = bus.runner.link
    with interrupted(bus, "announce", executed=False):
        execute = bus.runner.link.execute
        bus.runner.link.execute = lambda step: (late.append(step), execute(step))[1]
        with bus.hold("deploy"):
            pytest.fail("entered")
    assert late[0].label == "announce"
    own.execute(late[0])

    assert bus.flags() == []


def test_an_interrupted_block_leaves_the_hold_of_another_agent(
    bus: agentbus.Bus, connect: Any
) -> None:
    connect("bob").announce("deploy")

    with interrupted(bus, "announce", executed=True):
        with bus.hold("deploy", wait=60):
            pytest.fail("entered")

    assert [(flag.state, flag.agent_id) for flag in bus.flags()] == [("held", "bob")]


@pytest.mark.parametrize("executed", [True, False])
def test_an_interrupted_block_does_not_keep_its_place_of_a_semaphore(
    bus: agentbus.Bus, executed: bool
) -> None:
    gpu = bus.semaphore("gpu", 1)

    with interrupted(bus, "semaphore", executed=executed):
        with gpu.held():
            pytest.fail("entered")

    gpu.acquire()


@pytest.mark.parametrize("executed", [True, False])
def test_an_interrupted_block_keeps_only_the_leases_that_the_agent_had_before(
    bus: agentbus.Bus, executed: bool
) -> None:
    bus.lease("a")

    with interrupted(bus, "lease", executed=executed):
        with bus.lease("a", "b"):
            pytest.fail("entered")

    assert [lease.pattern for lease in bus.leases()] == ["a"]


def test_the_slot_of_an_interrupted_request_is_the_next_ones(bus: agentbus.Bus) -> None:
    for number in range(3):
        with bus.hold(f"flag-{number}"):
            pass
        bus.lease("a").drop()

    slots = ask(bus, "KEYS", f"{bus.project}:once:*")
    assert len(slots) <= 3


async def test_a_cancelled_block_does_not_keep_its_flag(abus: agentbus.AsyncBus) -> None:
    await abus.speak("connected")

    for turns in TURNS:
        await cancelled(abus.hold(f"deploy-{turns}", on_failure="release"), turns)

    assert await abus.flags() == []


async def test_a_cancelled_block_does_not_keep_its_place_of_a_semaphore(
    abus: agentbus.AsyncBus,
) -> None:
    await abus.speak("connected")

    for turns in TURNS:
        gpu = abus.semaphore(f"gpu-{turns}", 1)
        await cancelled(gpu.held(), turns)
        await gpu.acquire()


async def test_a_cancelled_block_does_not_keep_its_leases(abus: agentbus.AsyncBus) -> None:
    await abus.speak("connected")

    for turns in TURNS:
        await cancelled(abus.lease(f"a-{turns}"), turns)

    assert await abus.leases() == []


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
@pytest.mark.parametrize(
    "held",
    [
        lambda bus: bus.hold("deploy"),
        lambda bus: bus.lease("src/**"),
        lambda bus: bus.semaphore("db", 1).held(),
    ],
    ids=["flag", "lease", "semaphore"],
)
def test_a_forked_child_that_leaves_the_block_leaves_it_to_its_parent(connect, held):
    bus, block = connect("ada"), held(connect("bob"))
    block.__enter__()

    child = os.fork()
    if child == 0:
        try:
            block.__exit__(SystemExit, SystemExit(1), None)
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    with pytest.raises(Refused):
        held(bus).__enter__()
    block.__exit__(None, None, None)
    assert {flag.state for flag in bus.flags()} <= {"satisfied"}
