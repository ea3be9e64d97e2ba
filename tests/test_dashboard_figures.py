"""The figures of a dashboard are true: at rest, under load, on a cluster, and to one who may only read."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus import acl
from agentbus.admin import health
from agentbus.commands._top_panes import PANES
from agentbus.commands._top_view import View
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, RowRange, Snapshot
from agentbus.store import functions
from tests.servers import Server, ask, free_port
from tests.terminals import Terminal

PASSWORD = "correct-horse-battery"
# What differs from reading to reading.
MOVING = {"timestamp", "took_ms", "health_age", "oldest_part", "age", "oldest", "oldest_pending"}
# The trend moves on every 20 seconds.
MOVING |= {"idle", "ttl", "seen", "pid", "messages", "host", "session", "points"}


def fill(bus: agentbus.Bus) -> None:
    """Leave something of everything that a dashboard shows."""
    mail = bus.queue("mail")
    mail.publish_many(range(8))
    mail.publish(8, priority="high")
    mail.publish(9, delay=3600.0)
    mail.publish(10, after=bus.queue("first").publish(1))
    done, aside, buried, _ = mail.fetch(count=4)
    done.ack()
    aside.retry(3600.0)
    buried.bury("broken")
    mail.fetch(group="audit", count=2)
    bus.queue("untouched").publish_many([1, 2], priority="low")
    bus.here(doing="the parser")
    bus.tell("ada", "hello")
    bus.speak("hello", topic="build")
    bus.announce("building", ttl=3600)
    bus.satisfy("tested")
    bus.lease("src/**", ttl=3600).__enter__()
    bus.pause(queue="first", why="disk full", wait=0)
    keys = Keys(bus.scope.keys.project)
    until = int(time.time() * 1000) + 3_600_000
    ask(bus, "ZADD", keys.waiting, until, "tested\nsatisfied\nbob\n1000\nx")
    worked = ("queue", "mail", "group", "default", "worker", "w", "processed", "30")
    ask(bus, "XADD", keys.metrics, "*", *worked, "ran", "[1,2]", "busy_ms", "5")
    events = ("kind", "events", "stream", "shop:orders", "role", "relay")
    ask(bus, "XADD", keys.metrics, "*", *events, "lag_ms", "10", "lag_events_count", "2")


def still(found: Any) -> Any:
    """Return a value of JSON without what moves."""
    if isinstance(found, dict):
        return {name: still(one) for name, one in found.items() if name not in MOVING}
    return [still(one) for one in found] if isinstance(found, list) else found


# -- at rest --


def test_at_rest_top_says_what_the_other_verbs_say(real_shell, real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        fill(bus)
        records = real_shell.records

        (frame,) = records("top", "--once")

        rows = {(one["stats"]["queue"], one["stats"]["group"]): one for one in frame["queues"]}
        stats = records("bus", "stats")
        assert len(stats) == len(rows) > 3
        for one in stats:
            row = rows[one["queue"], one["group"]]["stats"]
            shared = one.keys() & row.keys() - MOVING
            assert {"backlog", "pending", "retrying", "delayed", "blocked", "dead"} <= shared
            assert {name: row[name] for name in shared} == {name: one[name] for name in shared}
        totals = frame["totals"]
        assert totals["dead"] == len(records("dlq", "list", "mail")) == 1
        present = records("who")
        assert [one["agent"] for one in frame["agents"]] == [one["agent"] for one in present]
        assert totals["unread"] == sum(one["unread"] for one in present) == 1
        assert totals["agents"] == len(present)
        assert totals["known_agents"] == len(records("list", "--agents"))
        assert totals["workers"] == sum(one.get("alive", False) for one in records("agent", "list"))
        assert {one["flag"]: one["state"] for one in frame["flags"]} == {
            one["flag"]: one["state"] for one in records("list", "--flags")
        }
        assert [one["pattern"] for one in frame["leases"]] == [
            one["pattern"] for one in records("lease")
        ]
        said = real_shell.run("health", "--json").stdout.splitlines()
        found = [json.loads(one) for one in said if '"check"' in one]
        assert {(one["check"], one["subject"]) for one in frame["health"]["findings"]} == {
            (one["check"], one["subject"]) for one in found if "subject" in one
        }


# -- under load --

# Each turn: what only grows, each in a queue or a list of its own. The worker takes what is there already.
WORK = """
import itertools, sys, time
import agentbus
kind, url, project = sys.argv[1:]
with agentbus.connect(url, project=project, agent=kind) as bus:
    print("begun", flush=True)
    if kind == "work":
        bus.subscribe("drains", lambda delivery: time.sleep(0.002)).run()
    buries = bus.queue(f"buries-{kind}")
    for number in itertools.count():
        bus.queue("grows").publish(number)
        bus.queue("later").publish(number, delay=3600.0)
        buries.publish(number)
        for delivery in buries.fetch():
            delivery.bury("broken")
        bus.announce(f"{kind}-{number}", ttl=3600)
        bus.speak(str(number))
        # Two agents may not exchange many messages in a minute.
        if number % 20 == 0 and number < 200:
            bus.tell("reader", str(number))
        time.sleep(0.01)
"""


class Reading:
    """Figures as the other verbs of the library say them, at one moment or the next."""

    def __init__(self, bus: agentbus.Bus) -> None:
        stats = {one.queue: one for one in bus.stats()}
        self.grows = stats["grows"].backlog
        self.later = stats["later"].delayed
        self.left = stats["drains"].lag
        self.processed = stats["drains"].worked.get("processed", 0)
        self.published = stats["grows"].counters.get("published", 0)
        self.rate = stats["drains"].rate
        self.dead = sum(one.dead for one in stats.values())
        self.unread = sum(one.unread for one in bus.present(limit=None))
        self.flags = sum(one.state == "held" for one in bus.flags())
        self.known = len(bus.agents())
        self.letters = len(bus.queue("buries-one").dead_letters(limit=10_000))


def shown(found: Snapshot) -> dict[str, float]:
    """Return the figures of a snapshot by their names in a reading."""
    rows = {one.stats.queue: one.stats for one in found.queues}
    return {
        "grows": rows["grows"].backlog,
        "later": rows["later"].delayed,
        "left": rows["drains"].lag,
        "processed": rows["drains"].worked.get("processed", 0),
        "published": rows["grows"].counters.get("published", 0),
        "rate": rows["drains"].rate,
        "dead": found.totals.dead,
        "unread": found.totals.unread,
        "flags": found.totals.flags,
        "known": found.totals.known_agents,
        "letters": rows["buries-one"].dead,
    }


@pytest.mark.parametrize(
    ("publishers", "rounds"), [(1, 5), pytest.param(3, 60, marks=pytest.mark.slow)]
)
def test_under_load_each_figure_lies_between_two_readings(
    real_url, project, publishers, rounds, tmp_path
):
    kinds = ["work", *("one", "two", "three")[:publishers]]
    with agentbus.connect(real_url, project=project, agent="reader") as bus:
        bus.here()
        bus.queue("drains").publish_many(range(9_000))
        bus.queue("drains").fetch()[0].ack()
        dashboard, ids, missed = Dashboard(bus), [], 0
        dashboard.snapshot()
        programs = [
            subprocess.Popen(
                [sys.executable, "-c", WORK, kind, real_url, project], stdout=subprocess.PIPE
            )
            for kind in kinds
        ]
        try:
            for one in programs:
                assert one.stdout is not None
                assert one.stdout.readline() == b"begun\n"
            wait_for(lambda: "buries-one" in bus.queues())
            wait_for(lambda: bus.stats("drains")[0].worked.get("processed", 0) > 1)
            first = Reading(bus)
            for turn in itertools.count(1):
                before, began = Reading(bus), time.monotonic()
                # Until nothing in it is older than the reading.
                while True:
                    found = dashboard.snapshot(queues=RowRange(limit=100))
                    ids += [one.id for one in found.messages]
                    missed += found.missed
                    if found.oldest_part < time.monotonic() - began - found.took:
                        break
                after, figures = Reading(bus), shown(found)
                wrong = {
                    name: (getattr(before, name), figure, getattr(after, name))
                    for name, figure in figures.items()
                    if figure != sorted((figure, *(getattr(r, name) for r in (before, after))))[1]
                }
                assert wrong == {}
                assert [one.poll() for one in programs] == [None] * len(programs)
                if turn >= rounds and after.grows > first.grows:
                    break
        finally:
            for one in programs:
                one.kill()
                one.communicate()
        last = dashboard.snapshot()
        ids += [one.id for one in last.messages]
        assert len(set(ids)) == len(ids)
        info = ask(bus, "XINFO", "STREAM", Keys(project).channel)
        assert len(ids) + missed + last.missed == info[info.index(b"entries-added") + 1]


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


# -- elsewhere --


def test_on_a_cluster_a_dashboard_shows_everything(tmp_path, shell):
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with Server(tmp_path / "cluster", *options) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_for(lambda: b"cluster_state:ok" in node.ask("CLUSTER", "INFO"))
        url = f"redis+cluster://127.0.0.1:{node.port}"
        with agentbus.connect(url, project="shop", agent="ada") as bus:
            fill(bus)
            check_everything(Dashboard(bus).snapshot(), bus)
            draw_everything(bus)
        shell.environment |= {"AGENTBUS_URL": url, "AGENTBUS_PROJECT": "shop"}
        (frame,) = shell.records("top", "--once")
        assert frame["totals"]["backlog"] == sum(one.backlog for one in bus_stats(url))


def bus_stats(url: str) -> list[Any]:
    with agentbus.connect(url, project="shop", agent="ada") as bus:
        return bus.stats()


@pytest.fixture
def reader_url(own_server: Server) -> str:
    """The URL of a user who may only read the project `shop`."""
    rule = acl.rule("shop", user="reader", read_only=True, password=PASSWORD)
    assert own_server.ask("ACL", "SETUSER", rule.user, *rule.words) == b"OK"
    with agentbus.connect(own_server.url, project="shop") as bus:
        bus.runner.run(functions.load(), verb="server")
    return f"unix://reader:{PASSWORD}@{own_server.socket}?functions=true"


def test_an_account_that_may_only_read_is_shown_everything(own_server, reader_url, shell):
    with agentbus.connect(own_server.url, project="shop", agent="ada") as owner:
        fill(owner)
        check_everything(Dashboard(owner).snapshot(), owner)
    shell.environment |= {"AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "ada"}

    (mine,) = shell.records("top", "--once", env={"AGENTBUS_URL": reader_url})

    (theirs,) = shell.records("top", "--once", env={"AGENTBUS_URL": own_server.url})
    assert still(mine) == still(theirs)
    with agentbus.connect(reader_url, project="shop", agent="ada") as bus:
        draw_everything(bus)


def test_an_account_that_may_only_read_uses_top_on_a_terminal(own_server, reader_url, shell):
    with agentbus.connect(own_server.url, project="shop", agent="ada") as owner:
        fill(owner)
    shell.environment |= {"AGENTBUS_PROJECT": "shop", "AGENTBUS_URL": reader_url}
    terminal = Terminal(shell, "top", "--every", "0.2", columns=120)
    try:
        terminal.read_until("BACKLOG")
        for key, shows in (("1", "the parser"), ("2", "[build] hello"), ("4", "src/**")):
            terminal.press(key)
            terminal.read_until(shows)
        assert "BLIND" not in terminal.shown
    finally:
        terminal.close()


def check_everything(found: Snapshot, bus: agentbus.Bus) -> None:
    """Check that each list of a snapshot has what `fill` left."""
    stats = bus.stats()
    totals = found.totals
    assert sorted(
        repr((s.queue, s.group, s.backlog, s.pending, s.retrying, s.dead)) for s in stats
    ) == (
        sorted(
            repr((s.queue, s.group, s.backlog, s.pending, s.retrying, s.dead))
            for s in (one.stats for one in found.queues)
        )
    )
    assert (totals.delayed, totals.blocked, totals.dead, totals.rate) == (1, 1, 1, 0.5)
    assert [one.agent for one in found.agents] == ["ada"]
    assert (totals.unread, totals.flags, totals.leases, totals.waiters) == (1, 1, 1, 1)
    assert {one.stats.queue: one.paused for one in found.queues}["first"] == "by ada: disk full"
    assert [one.text for one in found.messages if one.event is None] == ["hello"]
    assert [one.stream for one in found.events] == ["shop:orders"]
    findings = bus.runner.run(health.examine(bus.scope, bus.settings)).findings
    assert [one.check for one in found.health.findings] == [one.check for one in findings]


def draw_everything(bus: agentbus.Bus) -> None:
    """Open each row of each pane, and what these open."""
    dashboard, view, opened = Dashboard(bus), View(1.0), 0
    view.wanted(40)
    view.frame(dashboard.snapshot(), None, [])
    for number, pane in enumerate(PANES, 1):
        view.press(str(number))
        for row in range(len(view.draw(120, 40, 0.0))):
            view.press("home")
            for _ in range(row):
                view.press("down")
            for keys in (("enter",), ("left",), ("end", "enter")):
                for key in keys:
                    view.press(key)
                if view.stack:
                    lines = view.stack[-1].read(bus, dashboard)
                    view.frame(dashboard.snapshot(), view.stack[-1], lines)
                    opened += bool(lines)
            while view.stack:
                view.press("esc")
        assert pane == view.pane
    assert opened > 20
