"""How many bytes AgentBus adds to what Claude Code asks the model: at first, tools included, and later."""

from __future__ import annotations

import json

import pytest

from tests.clients.conftest import Desk, Make
from tests.clients.forms import Request, Say
from tests.clients.real import Claude, PlainClaude
from tests.servers import Server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("alone", "most"), [(False, 1_800), (True, 1_200)], ids=["claude-with-another", "claude-alone"]
)
def test_claude_code_first_asks_few_bytes_more_and_none_in_a_quiet_turn(
    made: Make, valkey: Server, alone: bool, most: int
):
    first, quiet = [], []
    for kind in (PlainClaude, Claude):
        desk = Desk(made(kind, "scripted"), valkey.url)
        if alone:
            # The reviewer is not in this project.
            desk.environment["AGENTBUS_PROJECT"] = desk.project[-8:]
        run = desk.run(desk.client.shell("true"), desk.client.shell("true"), Say())
        desk.reviewer.close()
        sizes = [_size(request) for request in run.requests]
        first.append(sizes[0])
        quiet.append(sizes[2] - sizes[1])
    without, with_it = first

    assert 0 < with_it - without <= most, first
    assert quiet[0] == quiet[1]


def _size(request: Request) -> int:
    parts = {part: request.body.get(part) for part in ("system", "messages", "tools")}
    return len(json.dumps(parts, ensure_ascii=False).encode())
