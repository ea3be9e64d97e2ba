"""Errors of the server name what the caller asked for, not a step of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.commands import mcp
from agentbus.commands._declare import VERBS, Args, Call
from tests import inprocess

ACTIONS = (
    *("dlq ", "agent ", "bus ", "task ", "schedule ", "limit ", "shards ", "flow ", "quarantine "),
    "token ",
)
# Each verb, and each action of one, that asks the server.
LINES = [
    *("speak hi", "overhear", "overhear --last 1", "overhear --follow --timeout 1", "monitor"),
    *("tell bob hi", "reply 1-1@ada hi", "inbox", "inbox --all", "receipts 1-1@ada", "who"),
    *("who --doing x", "jot k v", "recall k", "recall --tag a", "list", "list --flags"),
    *("list --agents", "list --topics", "list --queues", "list --tag a", "forget k"),
    *("announce f", "await f", "satisfy f", "fail f", "release f", "hold f -- true"),
    *("lease src", "lease", "lease --check src", "lease --drop src"),
    *("publish q 1", "publish q 1 --delay 9", "work q --drain -- true", "result 1-1@q"),
    *("ask q 1", "dlq list q", "dlq show q 1-1", "dlq replay q 1-1", "dlq purge q 1-1"),
    *("pause q", "pause", "halt", "resume", "resume q", "agent list", "agent get a"),
    *("agent pause a", "agent resume a", "agent delete a", "bus list", "bus inspect q"),
    *("bus groups q", "bus stats", "bus stats q", "bus delete q", "metrics", "metrics --raw"),
    *("rerun q --from 1-1", "tidy", "task show 1-1@q", "task cancel 1-1@q"),
    *("task take q", "schedule add s q 1 --every 9", "schedule list", "schedule show s"),
    *("schedule pause s", "schedule resume s", "schedule remove s", "schedule trigger s"),
    *("schedule run", "limit set q --at-once 1", "limit list", "limit show q"),
    *("limit remove q", "flow list", "flow show f", "flow cancel f", "flow replay f"),
    *("token create a", "token list", "token revoke a", "wake a"),
    "approve why --by human:anna --timeout 0.01",
    *(
        "top --once",
        "prime",
        "quarantine list",
        "quarantine release c",
        "health",
        "projects",
        "shards list",
    ),
    *("clear", "clear --force"),
]


# Verbs that name their operations elsewhere, need a database or Spark first, or ask no server.
OTHERS = {
    *("route", "web", "mcp", "hook", "install", "uninstall", "archive", "replay", "report"),
    *("spark", "events", "outbox", "consume", "supervise", "whoami", "doctor", "acl", "server"),
    *("help", "version", "completion"),
}


def test_every_verb_is_among_these():
    assert {line.split()[0] for line in LINES} | OTHERS == {*VERBS}


# Run inside this process, a verb leaves its connection to the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("line", LINES)
def test_an_error_names_the_verb_that_was_typed(line):
    verb, *words = line.split()
    where = ["--url=redis://127.0.0.1:1", "--project=p", "--agent=ada", "--deadline=0.05"]

    done = inprocess.run(verb, *where, *words)

    said = done.err.decode()
    (name,) = re.findall(r"did not serve '([^']+)'", said)
    assert (done.code, line.startswith(name), name.split()[0]) == (1, True, verb), said
    assert (" " in name) == line.startswith(ACTIONS), said


METHODS: list[tuple[str, Callable[[Any], object]]] = [
    ("speak", lambda bus: bus.speak("hi")),
    ("overhear", lambda bus: list(bus.overhear())),
    ("list_", lambda bus: bus.list_()),
    ("fail", lambda bus: bus.fail("f")),
    ("await_", lambda bus: bus.await_("f")),
    ("publish", lambda bus: bus.queue("q").publish(1)),
    ("publish_many", lambda bus: bus.queue("q").publish_many([1])),
    ("dead_letters", lambda bus: list(bus.queue("q").dead_letters())),
    ("work", lambda bus: bus.subscribe("q", print).run()),
]


@pytest.mark.parametrize(("name", "call"), METHODS)
def test_an_error_names_the_method_that_was_called(name, call):
    with (
        agentbus.connect("redis://127.0.0.1:1", project="p", agent="ada", deadline=0.05) as bus,
        pytest.raises(agentbus.BackendUnavailable, match=f"did not serve '{name}' within"),
    ):
        call(bus)


async def test_an_error_of_the_asynchronous_bus_names_the_method():
    async with agentbus.aio.connect(
        "redis://127.0.0.1:1", project="p", agent="ada", deadline=0.05
    ) as bus:
        with pytest.raises(agentbus.BackendUnavailable, match="'publish_many'"):
            await bus.queue("q").publish_many([1])
        with pytest.raises(agentbus.BackendUnavailable, match="'overhear'"):
            async for _ in bus.overhear():
                pass


def test_a_refusal_names_the_method_that_was_called(own_server):
    own_server.ask("ACL", "SETUSER", "nobody", "on", ">secret", "~*", "+ping")
    url = own_server.url.replace("unix://", "unix://nobody:secret@")

    with (
        agentbus.connect(url, project="p", agent="ada") as bus,
        pytest.raises(agentbus.ConfigError, match="refused 'flags'"),
    ):
        bus.flags()


def test_an_error_of_a_tool_names_the_tool():
    with agentbus.connect("redis://127.0.0.1:1", project="p", agent="ada", deadline=0.05) as bus:
        tools: Any = mcp._Tools(Call(Args(), bus.settings))

        result = tools.perform("catch_up", {}, {}, lambda: True)

    assert "did not serve 'catch_up'" in result.text
