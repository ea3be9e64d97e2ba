"""Real clients that have the tools over HTTP, as agents elsewhere: by a token, which has a scope."""

from __future__ import annotations

import pytest

from agentbus.agents import tokens
from tests.clients.conftest import Desk, each
from tests.clients.forms import Request, Say
from tests.clients.real import HttpClaude, HttpCodex

pytestmark = pytest.mark.slow


@each([(HttpClaude, "scripted"), (HttpCodex, "scripted")])
def test_an_agent_elsewhere_has_the_tools_of_its_token_over_http(desk: Desk):
    reviewer = desk.reviewer
    op = tokens.create(reviewer.scope, "cloud", "talk")
    desk.environment["AGENTBUS_TOKEN"], _ = reviewer.runner.run(op, verb="token")

    run = desk.run(
        *desk.client.tool("tell", to=["reviewer"], text="the build is green"),
        *desk.client.tool("catch_up"),
        Say(),
    )

    (message,) = reviewer.inbox()
    assert (message.agent_id, message.text) == ("cloud", "the build is green")
    assert "@reviewer sent" in run.requests[-1].everywhere
    assert "Nothing new." in run.requests[-1].last
    assert not [name for request in run.requests for name in _offered(request) if "flag" in name]


def _offered(request: Request) -> list[str]:
    """Return the names of the tools of AgentBus that the model has been offered."""
    return [name for name in request.tools if "agentbus" in name]
