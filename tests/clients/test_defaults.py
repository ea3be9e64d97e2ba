"""With no setting at all, all processes of a real client use one bus: that of the repository."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.clients.conftest import Desk, five
from tests.clients.forms import Answer, Request, Say
from tests.servers import program

pytestmark = pytest.mark.slow


@pytest.fixture
def ordinary(desk: Desk) -> Iterator[Desk]:
    """A desk of a user who has set nothing: hooks start the server of the user."""
    desk.environment.clear()
    yield desk
    agentbus(desk, "server", "stop")


def agentbus(desk: Desk, *words: str) -> str:
    """Run a command in the repository, as the client's user."""
    done = subprocess.run(
        [program(), *words],
        cwd=desk.root,
        env=desk.client.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@five
def test_without_settings_all_of_a_session_is_on_the_bus_of_its_repository(ordinary: Desk):
    seen: dict[str, str] = {}

    def told(request: Request) -> Answer:
        lines = agentbus(ordinary, "who", "--json", "--agent", "reviewer").splitlines()
        (agent,) = {json.loads(line)["agent"] for line in lines} - {"reviewer"}
        agentbus(ordinary, "tell", agent, "a text of another", "--agent", "reviewer")
        seen["agent"] = agent
        step = ordinary.client.shell("true")
        assert not callable(step)
        return step

    run = ordinary.run(told, *ordinary.client.tool("catch_up"), Say())

    about = json.loads(agentbus(ordinary, "whoami", "--json"))
    page = re.search(r"You are (\S+) on AgentBus, project ([^\s;]+)[;\s]", run.requests[0].above)
    assert page is not None
    assert page.groups() == (seen["agent"], about["project"])
    assert "AgentBus: 1 message. Read:" in run.requests[1].last
    assert "| a text of another" in run.requests[-1].last
