"""Tokens of agents elsewhere: who gets one, for how long, and what the server keeps of it."""

from __future__ import annotations

import json

import pytest

from agentbus.agents import tokens
from agentbus.core.errors import InvalidName, NotFound, Refused, UsageError
from agentbus.store.steps import Command, one_step


def run(bus, op):
    return bus.runner.run(op, verb="token")


@pytest.fixture
def shell(real_shell):
    return real_shell


def test_a_token_is_printed_once_listed_without_itself_and_revoked(shell):
    secret = shell.ok("token", "create", "ci-cloud", "--scope", "work", "--ttl", "1h").strip()

    assert secret.startswith("agentbus_")
    assert len(secret) == 52
    listed = shell.ok("token", "list")
    assert listed.startswith("ci-cloud work until ")
    assert secret not in listed
    (record,) = shell.records("token", "list")
    assert record.keys() == {"agent", "scope", "since", "until"}
    assert shell.run("token", "create", "ci-cloud").returncode == 4
    assert shell.ok("token", "revoke", "ci-cloud") == "ci-cloud: token revoked\n"
    assert shell.run("token", "revoke", "ci-cloud").returncode == 5
    assert shell.ok("token", "list") == ""
    (created,) = shell.records("token", "create", "ci-cloud")
    assert created.keys() == {"agent", "scope", "since", "until", "token"}
    assert created["scope"] == "talk"
    log = shell.home / ".local/state/agentbus/agentbus.log"
    assert secret not in log.read_text()


@pytest.mark.parametrize(
    "words",
    [
        *(("create",), ("revoke",), ("list", "a"), ("list", "--ttl", "1h")),
        *(("revoke", "a", "--scope", "talk"), ("create", "a", "--scope", "all")),
        ("create", "a", "--ttl", "0"),
    ],
)
def test_a_wrong_call_is_a_sentence(shell, words):
    done = shell.run("token", *words)

    assert done.returncode == 2
    assert done.stderr.startswith("agentbus: ")


def test_the_server_keeps_a_digest_and_no_token(bus):
    token = run(bus, tokens.create(bus.scope, "cloud", "talk"))[0]

    kept = run(bus, one_step(Command("HGETALL", bus.scope.keys.tokens)))

    assert json.loads(kept[1])["agent"] == "cloud"
    assert token not in repr(kept)
    assert token.removeprefix("agentbus_") not in repr(kept)


def test_an_agent_has_one_token_at_a_time_until_it_is_revoked(bus):
    run(bus, tokens.create(bus.scope, "cloud", "talk"))
    with pytest.raises(Refused, match="has a token already"):
        run(bus, tokens.create(bus.scope, "cloud", "read"))
    (listed,) = run(bus, tokens.valid(bus.scope))
    assert (listed.agent, listed.scope) == ("cloud", "talk")
    assert round(listed.until - listed.since) == 43_200

    run(bus, tokens.revoke(bus.scope, "cloud"))

    assert run(bus, tokens.valid(bus.scope)) == []
    with pytest.raises(NotFound, match="has no token"):
        run(bus, tokens.revoke(bus.scope, "cloud"))
    run(bus, tokens.create(bus.scope, "cloud", "read"))


@pytest.mark.parametrize("name", ["human:eve", "Human:eve", "system", "agentbus", "", "a\nb"])
def test_a_name_that_is_not_for_an_agent_gets_no_token(bus, name):
    with pytest.raises(InvalidName):
        run(bus, tokens.create(bus.scope, name, "talk"))


@pytest.mark.parametrize("ttl", [0, -1, 0.5, 367 * 86_400, float("nan"), float("inf"), True])
def test_a_token_ends_within_a_year(bus, ttl):
    with pytest.raises(UsageError, match="ttl is"):
        run(bus, tokens.create(bus.scope, "cloud", "talk", ttl))
