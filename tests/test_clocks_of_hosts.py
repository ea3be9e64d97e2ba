"""How old something is goes by the server's clock: those of hosts differ by hours."""

from __future__ import annotations

import pathlib
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
