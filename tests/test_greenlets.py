"""Programs whose sockets a library has replaced: what waits is refused before it has any effect."""

from __future__ import annotations

import sys
import types

import pytest

import agentbus
from agentbus.errors import UsageError
from agentbus.tasks import Scheduler


@pytest.fixture(params=[("gevent", "gevent.monkey"), ("eventlet", "eventlet.patcher")], ids=str)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name, module = request.param
    patcher = types.ModuleType(module)
    question = "is_module_patched" if name == "gevent" else "is_monkey_patched"
    setattr(patcher, question, lambda what: what == "socket")
    monkeypatch.setitem(sys.modules, module, patcher)
    return str(name)


def test_a_wait_among_greenlets_is_refused(bus: agentbus.Bus, library: str) -> None:
    with pytest.raises(UsageError, match=rf"'await' would stop all greenlets, since {library}"):
        bus.await_("building", timeout=60)


def test_a_worker_among_greenlets_is_refused_before_it_takes_a_task(
    bus: agentbus.Bus, library: str
) -> None:
    bus.queue("mail").publish("hello")

    with pytest.raises(UsageError, match=f"a worker would stop all greenlets, since {library}"):
        bus.subscribe("mail", print, drain=True).run()

    assert all(group.pending == 0 for group in bus.queue("mail").groups())
    assert len(bus.queue("mail").peek()) == 1


def test_what_does_not_wait_works_among_greenlets(bus: agentbus.Bus, library: str) -> None:
    bus.speak("hello")

    assert [message.text for message in bus.overhear(peek=True)] == ["hello"]


def test_a_scheduler_among_greenlets_is_refused(bus: agentbus.Bus, library: str) -> None:
    with pytest.raises(UsageError, match=f"a scheduler would stop all greenlets, since {library}"):
        Scheduler(bus).run()
