"""Two subagents of one session: the real client runs both at once, and one file has one of them.

Gemini CLI's hooks do not name subagents, and so all that run at the same time count as one there.
"""

from __future__ import annotations

import pytest

from tests.clients.conftest import Desk, each
from tests.clients.forms import Answer, Request, Say
from tests.clients.model import Step
from tests.clients.real import Claude, Codex, Copilot, OpenCode

pytestmark = pytest.mark.slow

# The level at which a subagent reads its first line.
LEVELS = {"claude": "system", "codex": "developer", "copilot": "user"}
NAMES = ("agent-0", "agent-1")


def answered(step: Step, request: Request) -> Answer:
    return step(request) if callable(step) else step


@each([(make, "scripted") for make in (Claude, Codex, OpenCode, Copilot)])
def test_the_second_of_two_subagents_that_write_one_file_is_refused(desk: Desk):
    starts = desk.client.subagents(*(f"You are {name}: write the file" for name in NAMES))
    writing: set[str] = set()
    tried: dict[str, Request] = {}
    left: list[list[str]] = []

    def answer(request: Request) -> Answer:
        names = [name for name in NAMES if f"You are {name}" in request.above]
        if names:
            (name,) = names
            if name not in writing:
                writing.add(name)
                return answered(desk.client.writes("src/new.py", f"{name}\n"), request)
            tried.setdefault(name, request)
            # The lease of the first ends with it: it goes on until the other has tried.
            both = len(tried) == 2
            return Say() if both else answered(desk.client.shell("sleep 1"), request)
        if starts:
            return answered(starts.pop(0), request)
        held = [str(lease.pattern) for lease in desk.reviewer.leases()]
        # The session goes on when both have ended: their leases have ended with them.
        if len(tried) < 2 or (held and len(left) < 20):
            left.append(held)
            return answered(desk.client.shell("sleep 1"), request)
        left.append(held)
        return Say()

    run = desk.run(*[answer] * 120)

    assert run.model.errors == []
    refused = [
        name
        for name, request in tried.items()
        if f"src/new.py is leased by {desk.agent}" in request.from_tools
    ]
    (other,) = {*NAMES} - {*refused}
    assert len(refused) == 1
    assert (desk.root / "src/new.py").read_text() == f"{other}\n"
    assert left[-1] == []
    if desk.client.name != "opencode":
        line = f") of {desk.agent}. Leased by this session: "
        assert all(line in request.at(LEVELS[desk.client.name]) for request in tried.values())
