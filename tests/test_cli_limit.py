"""`limit`: the limits of queues, set and listed in a shell."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.tasks import Limits
from tests.servers import Shell


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="bob") as opened:
        yield opened


def test_limits_are_set_shown_listed_and_removed(shell, bus):
    said = shell.ok("limit", "set", "mail", "--at-once", "2", "--by", "tenant")
    shell.ok("limit", "set", "crawl", "--per-second", "0.5", "--burst", "4")

    assert said == "mail at most 2 at once, for each tenant\n"
    assert shell.ok("limit", "show", "crawl") == "crawl at most 0.5 a second after a burst of 4\n"
    assert [line.split() for line in shell.ok("limit", "list").splitlines()[1:]] == [
        ["crawl", "-", "0.5", "4", "-"],
        ["mail", "2", "-", "-", "tenant"],
    ]
    assert Limits(bus).get("mail").by == "tenant"

    assert shell.ok("limit", "remove", "mail") == "mail: limits removed\n"
    assert Limits(bus).list().keys() == {"crawl"}


def test_set_replaces_what_was_set_before(shell):
    shell.ok("limit", "set", "mail", "--at-once", "2", "--by", "tenant")

    shell.ok("limit", "set", "mail", "--per-second", "3")

    assert json.loads(shell.ok("limit", "show", "mail", "--json")) == {
        "queue": "mail",
        "at_once": None,
        "per_second": 3.0,
        "burst": None,
        "by": None,
    }


@pytest.mark.parametrize("action", ["show", "remove"])
def test_a_queue_without_limits_is_not_found(shell, action):
    done = shell.run("limit", action, "mail")

    assert done.returncode == 5
    assert "the queue 'mail' has no limits" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        *("", "set", "list mail", "show", "set mail", "set mail --by tenant"),
        *("set mail --burst 3", "set mail --at-once 0", "set mail --at-once x"),
        *("set mail --per-second x", "set mail --per-second nan", "set mail --per-second -1"),
        *("set mail --at-once 1 --by nothing", "show mail --at-once 1", "purge mail"),
        "set mail --at-once 1 --burst 2",
    ],
)
def test_wrong_usage_changes_nothing(shell, bus, words):
    assert shell.run("limit", *words.split()).returncode == 2
    assert Limits(bus).list() == {}


def test_names_that_look_like_patterns_are_names(shell, bus):
    for queue in ("a*", "[x]", "a:b", "limit:mail", "-q"):
        shell.ok("limit", "set", "--at-once", "1", "--", queue)

    shell.ok("limit", "remove", "a*")

    assert Limits(bus).list().keys() == {"[x]", "a:b", "limit:mail", "-q"}
