"""How old something is goes by the server's clock: those of hosts differ by hours."""

from __future__ import annotations

import pathlib
import threading
import time

import pytest

import agentbus
from agentbus.store.scope import Scope
from tests import inprocess
from tests.servers import ask

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(params=[-7200, 7200], ids=["behind", "ahead"])
def agentbus_of(request, monkeypatch, real_url, project, tmp_path: pathlib.Path):
    """Run verbs as agents of a host whose clock is two hours off."""
    monkeypatch.setitem(Scope.__init__.__kwdefaults__, "now", lambda: time.time() + request.param)
    environment = {
        "AGENTBUS_URL": real_url,
        "AGENTBUS_PROJECT": project,
        "XDG_STATE_HOME": str(tmp_path),
    }

    def run(agent: str, *argv: str) -> str:
        with inprocess.environment(environment):
            done = inprocess.run(*argv, "--agent", agent)
        assert done.code == 0, (argv, done.err)
        return done.out.decode()

    return run


def test_the_age_of_what_is_sent_and_read_is_that_of_the_server(agentbus_of):
    agentbus_of("bob", "speak", "here I am")

    told = agentbus_of("ada", "tell", "bob", "may I?")
    known = told.split()[0]
    unread = agentbus_of("ada", "receipts", known)
    read = agentbus_of("bob", "inbox", "--all")
    replied = agentbus_of("bob", "reply", known, "yes")
    answered = agentbus_of("ada", "receipts", known)
    waited = agentbus_of("ada", "receipts", known, "--wait", "60")
    spoken = agentbus_of("ada", "receipts", agentbus_of("ada", "speak", "done").strip())
    heard = agentbus_of("eve", "inbox", "--all")

    for text in (told, unread, read, replied, answered, waited, spoken, heard):
        assert "ago" in text or "just now" in text
        assert "h ago" not in text


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_messages_since_a_duration_are_those_by_the_servers_clock(agentbus_of, connect, project):
    bus: agentbus.Bus = connect()
    hour_ago = round((time.time() - 3600) * 1000)
    old = ("agent_id", "bob", "message", "an hour old")
    ask(bus, "XADD", f"{project}:ch:main", f"{hour_ago}-0", *old)
    bus.speak("new")

    shown = agentbus_of("ada", "overhear", "--since", "30m")
    both = agentbus_of("ada", "overhear", "--since", "1h30m")

    assert ("an hour old" in shown, "new" in shown) == (False, True)
    assert ("an hour old" in both, "new" in both) == (True, True)


# -- tasks: the server and the publisher agree, the worker's host does not --


@pytest.fixture(params=[-7200, 7200], ids=["behind", "ahead"])
def worker_bus(request, monkeypatch, connect):
    """Connect as an agent of a host whose clock is two hours off."""
    bus: agentbus.Bus = connect("worker")
    monkeypatch.setattr(bus.scope, "now", lambda: time.time() + request.param)
    return bus


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"batch": True}])
def test_a_task_that_expires_is_run_while_the_servers_clock_allows_it(
    bus, worker_bus, project, options
):
    queue, got = bus.queue("mail"), []
    queue.publish(agentbus.Task("in time", expires=60))
    old = f"{round((time.time() - 3600) * 1000)}-0"
    ask(
        bus, "XADD", f"{project}:q:mail:high", old, *("payload", '"late"', "meta", '{"expires":60}')
    )

    def handler(delivered):
        for delivery in delivered if isinstance(delivered, list) else [delivered]:
            assert not delivery.expired
            got.append(delivery.payload)

    worker_bus.subscribe("mail", handler, drain=True, **options).run()

    assert got == ["in time"]
    assert [letter.payload for letter in queue.dead_letters()] == ["late"]


def test_a_task_that_expires_is_fetched_and_retried_while_the_servers_clock_allows_it(
    bus, worker_bus
):
    bus.queue("mail").publish(agentbus.Task("in time", expires=60))

    (delivery,) = worker_bus.queue("mail").fetch()
    delivery.retry(0)
    task = worker_bus.take("mail")
    settled = worker_bus.settle(task.id, task.token, "retry", after=0)

    assert settled.state == "retrying"


def test_a_delayed_task_does_not_expire_by_its_publishers_clock(bus, worker_bus):
    publisher = worker_bus
    publisher.queue("mail").publish(agentbus.Task("delayed", expires=60), delay=0.01)
    first = bus.queue("mail").publish("first")
    publisher.queue("mail").publish(agentbus.Task("after", expires=60), after=[first])
    got = []

    while len(got) + len([*bus.queue("mail").dead_letters()]) < 3:
        bus.subscribe("mail", lambda d: got.append((d.payload, d.expires_at)), drain=True).run()

    assert {payload for payload, _ in got} == {"delayed", "first", "after"}
    assert all(at is None or abs(at - time.time() - 60) < 30 for _, at in got)


def test_the_record_of_a_wait_is_dated_by_the_servers_clock(bus, worker_bus):
    thread = threading.Thread(target=worker_bus.await_, args=("done",), kwargs={"timeout": 20})
    thread.start()
    while not (waiters := bus.waiters()):
        assert thread.is_alive()
    bus.satisfy("done")
    thread.join()

    assert abs(waiters[0].since - time.time()) < 60
