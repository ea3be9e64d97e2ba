"""The projects on a server: the verb that lists them, and what views say of one that is not there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import IO

import pytest

import agentbus
import agentbus.aio
from agentbus.admin import projects
from agentbus.admin.projects import Project
from agentbus.store.scope import Scope
from tests import inprocess
from tests.servers import Server, Shell, ask


def named(bus: agentbus.Bus) -> dict[str, Project]:
    return {one.project: one for one in bus.projects().projects}


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def alone(own_server: Server, shell: Shell) -> Shell:
    """A shell on a server that nobody else uses, without a project."""
    shell.environment["AGENTBUS_URL"] = own_server.url
    return shell


# -- listing them --


@pytest.mark.parametrize("line", [("projects",), ("who",), ("top", "--once")])
def test_ages_are_by_the_servers_clock(line, real_url, project, monkeypatch):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bus.here(doing="the parser")

    def ahead() -> float:
        return time.time_ns() / 1e9 + 3 * 3600 + 60

    monkeypatch.setattr(time, "time", ahead)
    monkeypatch.setitem(Scope.__init__.__kwdefaults__, "now", ahead)

    done = inprocess.run(*line, "--url", real_url, "--project", project)

    assert (project if line == ("projects",) else "ada") in done.out.decode()
    assert not re.search(r"\b3 ?h", done.out.decode())


def test_each_project_is_listed_with_its_agents_and_queues(connect, url, project):
    before = time.time() - 60
    connect("ada").speak("hi")
    connect("bob").speak("hi")
    connect("bob").queue("mail").publish(1)
    with agentbus.connect(url, project=f"{project}:part", agent="ada") as other:
        other.queue("mail").publish(1)
        other.queue("post").publish(1)

        found = named(other)

    assert (found[project].agents, found[project].queues) == (2, 1)
    assert (found[f"{project}:part"].agents, found[f"{project}:part"].queues) == (0, 2)
    assert before < (found[project].last_activity or 0.0) < time.time() + 60


def test_a_project_of_programs_without_agentbus_is_listed_by_its_channel(bus, project):
    ask(bus, "XADD", f"{project}:ch:main", "1700000000000-0", "agent_id", "x", "message", "hi")

    assert named(bus)[project] == Project(project, 0, 0, 1_700_000_000.0)


def test_the_latest_of_all_activities_counts(bus, project):
    ask(bus, "ZADD", f"{project}:agents", "1700000001", "ada")
    assert named(bus)[project].last_activity == 1_700_000_001
    ask(bus, "ZADD", f"{project}:beat", "1700000002000", "worker")
    assert named(bus)[project].last_activity == 1_700_000_002
    ask(bus, "XADD", f"{project}:metrics", "1700000003000-0", "kind", "work")
    assert named(bus)[project].last_activity == 1_700_000_003
    ask(bus, "ZADD", f"{project}:agents", "+inf", "eve")
    ask(bus, "ZADD", f"{project}:agents", "1700000004", "ada")
    assert named(bus)[project].last_activity == 1_700_000_003


def test_the_most_recently_active_come_first(bus, project):
    for name, at in (("old", 1), ("new", 3), ("middle", 2)):
        ask(bus, "ZADD", f"{project}-{name}:agents", f"170000000{at}", "ada")
    ask(bus, "ZADD", f"{project}-never:queues", "1", "mail")

    found = [one for one in named(bus) if one.startswith(project)]

    assert [one.removeprefix(f"{project}-") for one in found] == ["new", "middle", "old", "never"]


def test_keys_of_other_programs_are_no_projects(bus, project):
    ask(bus, "SADD", f"{project}-rq:queues", "mail")
    ask(bus, "SET", f"{project}-app:metrics", "7")
    ask(bus, "ZADD", f"{project} x:agents", "1", "a")
    ask(bus, "ZADD", f"{project}:jot:x:agents", "1", "a")
    ask(bus, "ZADD", b"\xff" + project.encode() + b":agents", "1", "a")
    ask(bus, "SET", f"{project}-cache:agents:x", "7")

    assert [one for one in named(bus) if project in one] == []


def test_a_search_ends_on_a_server_with_many_keys_and_says_what_it_left_out(connect, monkeypatch):
    bus = connect("ada", url=f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr(projects, "_SCANNED", 10)
    for at in range(100):
        ask(bus, "ZADD", f"p{at}:agents", "1700000000", "ada")

    whole = bus._run("projects", projects.listed(bus.scope))
    part = bus._run("projects", projects.listed(bus.scope, most=30))

    assert (len(whole.projects), whole.left_out) == (100, 0)
    assert len(part.projects) < 100
    assert part.left_out == 70


async def test_an_asynchronous_bus_lists_them_as_well(abus, project):
    assert await abus.exists() is False
    await abus.speak("hi")

    assert project in {one.project for one in (await abus.projects()).projects}
    assert await abus.exists() is True


MAKING: dict[str, Callable[[agentbus.Bus], object]] = {
    "a message": lambda bus: bus.speak("hi"),
    "a note": lambda bus: bus.jot("key", "value"),
    "a flag": lambda bus: bus.announce("flag"),
    "a task": lambda bus: bus.queue("mail").publish(1),
    "a delayed task": lambda bus: bus.queue("mail").publish(1, delay=60),
    "an order": lambda bus: bus.halt(wait=0),
    "another program's flag": lambda bus: ask(bus, "SET", f"{bus.project}:flag:x", "a @ b"),
    "another program's task": lambda bus: ask(bus, "XADD", f"{bus.project}:q:x", "*", "a", "b"),
    "another program's note": lambda bus: ask(bus, "HSET", f"{bus.project}:jot:x", "value", "b"),
}


@pytest.mark.parametrize("what", MAKING)
def test_a_project_exists_once_it_has_a_key(what, bus):
    assert bus.exists() is False

    MAKING[what](bus)

    assert bus.exists() is True
    bus.clear()
    assert bus.exists() is False


def test_a_project_does_not_exist_for_a_longer_name(bus, url, project):
    with agentbus.connect(url, project=f"{project}:part", agent="ada") as longer:
        longer.speak("hi")

    assert bus.exists() is False


# -- the verb --


def test_the_verb_prints_a_line_for_each_project(alone, own_server):
    alone.ok("speak", "hi", "--project", "shop")
    alone.ok("publish", "mail", "1", "--project", "shop")
    own_server.ask("ZADD", "old:agents", "1700000000.5", "ada")

    head, shop, old = alone.ok("projects").splitlines()

    assert head.split() == ["PROJECT", "AGENTS", "QUEUES", "LAST", "ACTIVITY"]
    assert re.fullmatch(r"shop +1 +1 +\S+ ago", shop)
    assert re.fullmatch(r"old +1 +0 +\d+d\S* ago", old)
    first, last = alone.records("projects")
    assert (first["project"], first["agents"], first["queues"]) == ("shop", 1, 1)
    assert last["last_activity"] == "2023-11-14T22:13:20.500Z"


def test_the_verb_prints_nothing_where_there_is_nothing(alone):
    done = alone.run("projects")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_verb_says_what_it_left_out(connect, monkeypatch):
    url = f"memory://{uuid.uuid4().hex}"
    bus = connect("ada", url=url)
    for at in range(100):
        ask(bus, "ZADD", f"p{at}:agents", "1700000000", "ada")
    monkeypatch.setattr(projects, "_SCANNED", 10)
    monkeypatch.setattr(projects.listed, "__kwdefaults__", {"one_shard": False, "most": 30})

    done = inprocess.run("projects", "--json", "--url", url)

    assert done.code == 0
    assert b"about 70 keys were not examined" in done.err
    assert 0 < done.out.count(b"\n") < 100


# -- the views --

# Views that end, and what each is asked about a queue.
ONE_SHOT = [
    *(["health"], ["bus", "list"], ["bus", "stats"], ["metrics"], ["metrics", "--raw"]),
    *(["bus", "stats", "mail"], ["bus", "groups", "mail"], ["bus", "inspect", "mail"]),
    *(["metrics", "--queue", "mail"], ["metrics", "--raw", "--queue", "mail"]),
]


def worked(bus: agentbus.Bus) -> None:
    """Have a task done, and counted."""
    bus.queue("mail").publish(1)
    bus.subscribe("mail", lambda delivery: None, drain=True).run()


@pytest.fixture
def made(alone: Shell) -> Iterator[agentbus.Bus]:
    """The project `shop`, with a message and a task that was done, alone on its server."""
    alone.environment["AGENTBUS_PROJECT"] = "shop"
    url = alone.environment["AGENTBUS_URL"]
    with agentbus.connect(url, project="shop", agent="ada") as bus:
        bus.speak("hi")
        worked(bus)
        yield bus


@pytest.mark.parametrize("view", ONE_SHOT, ids=" ".join)
def test_a_view_names_its_project(view, alone, made):
    text, records = alone.ok(*view), alone.records(*view)

    assert records
    assert {record["project"] for record in records} == {"shop"}
    assert re.search(r'^project +shop\b|"project": "shop"', text, re.MULTILINE)


@pytest.mark.parametrize(
    "view", [*ONE_SHOT, ["dlq", "list", "mail"], ["agent", "list"]], ids=" ".join
)
def test_a_view_of_a_project_that_is_not_there_is_exit_5_and_names_the_nearest(view, alone, made):
    text = alone.run(*view, "--project", "shpo")
    json_ = alone.run(*view, "--project", "shpo", "--json")

    assert (text.returncode, text.stdout) == (5, "")
    message, hint = text.stderr.splitlines()
    assert message == "agentbus: there is no project 'shpo'"
    assert hint.startswith("hint: the nearest there: 'shop'; see 'agentbus projects'")
    assert (json_.returncode, json_.stdout) == (5, "")
    assert json.loads(json_.stderr)["code"] == 5


def test_a_view_on_an_empty_server_says_that_there_is_no_project(alone):
    done = alone.run("health")

    assert done.returncode == 5
    assert "hint: the server has no project; see 'agentbus projects'" in done.stderr


@pytest.mark.parametrize(
    "view",
    [*(view for view in ONE_SHOT if "mail" in view), ["dlq", "list", "mail"]],
    ids=" ".join,
)
def test_a_view_of_a_queue_that_is_not_there_is_exit_5_and_names_the_nearest(view, alone, made):
    made.queue("post").publish(1)

    done = alone.run(*(word.replace("mail", "mial") for word in view))

    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.splitlines() == [
        "agentbus: there is no queue 'mial'",
        "hint: the nearest there: 'mail', 'post'; see 'agentbus list --queues'",
    ]


def test_findings_about_the_server_count_more_than_a_missing_project(alone, own_server):
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    done = alone.run("health", "--project", "shop")

    assert done.returncode == 6
    assert "critical  eviction" in done.stdout
    assert "there is no project 'shop' yet" in done.stderr


def lines_of(pipe: IO[str] | None) -> Iterator[str]:
    assert pipe is not None
    return iter(pipe.readline, "")


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize(
    "view",
    [
        *(["monitor", "--json"], ["metrics", "--raw", "--follow"]),
        ["health", "--watch", "--every", "0.1", "--json"],
    ],
    ids=" ".join,
)
def test_a_view_that_goes_on_reports_an_empty_project_and_waits(view, alone, made):
    watching = alone.start(*view, "--project", "shpo")

    assert next(lines_of(watching.stderr)).startswith(
        "agentbus: there is no project 'shpo' yet, so nothing is shown so far; the nearest"
    )
    url = alone.environment["AGENTBUS_URL"]
    with agentbus.connect(url, project="shpo", agent="ada") as bus:
        bus.speak("hi")
        worked(bus)
        bus.queue("stuck").publish_many(range(501))
    found = json.loads(next(lines_of(watching.stdout)))

    assert found["project"] == "shpo"
    assert ended(watching) in (0, 6, 130)


def test_monitor_in_text_names_its_project_on_stderr(alone, made):
    done = alone.run("monitor", "--timeout", "0.01")

    assert done.stderr == "agentbus: messages of the project shop\n"
    assert done.stdout.endswith(" ada hi\n")
    assert len(done.stdout.splitlines()) == 1


def test_an_exporter_reports_an_empty_project_and_goes_on(alone, made):
    serving = alone.start("metrics", "--serve", "0", "--json", "--project", "shpo")

    found = json.loads(next(lines_of(serving.stdout)))
    assert next(lines_of(serving.stderr)).startswith("agentbus: there is no project 'shpo' yet")
    with urllib.request.urlopen(found["url"]) as answer:
        text = answer.read().decode()

    assert found["project"] == "shpo"
    assert 'agentbus_up{project="shpo"} 1.0' in text
    assert ended(serving) == 0


def test_an_exporter_starts_without_a_server(alone, own_server):
    own_server.kill()
    serving = alone.start("metrics", "--serve", "0", "--deadline", "0.3")

    assert next(lines_of(serving.stdout)).startswith("http://")
    assert next(lines_of(serving.stderr)).startswith("agentbus: figures of the project test-")
    assert ended(serving) == 0
