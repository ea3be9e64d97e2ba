"""Two subagents of one session: the real client runs both at once, and one file has one of them."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Desk, each
from tests.clients.forms import Answer, Call, Request, Say
from tests.clients.real import Claude

pytestmark = pytest.mark.slow

REFUSED = "src/new.py is leased by"


@each([(Claude, "scripted")])
def test_the_second_of_two_subagents_that_write_one_file_is_refused(desk: Desk):
    spawned: list[str] = []
    tried: dict[str, Request] = {}
    file = str(desk.root / "src/new.py")

    def answer(request: Request) -> Answer:
        if "change a in src/db.py" in request.above:
            if len(spawned) == 2:
                return desk.client.shell("sleep 1") if len(tried) < 2 else Say()  # type: ignore[return-value]
            spawned.append(name := f"agent-{len(spawned)}")
            given = {"description": name, "prompt": f"You are {name}: write the file"}
            kind = {"subagent_type": "general-purpose", "run_in_background": True}
            return Call("Agent", given | kind)
        name = "agent-0" if "You are agent-0" in request.above else "agent-1"
        if file not in request.everywhere:
            return Call("Write", {"file_path": file, "content": f"{name}\n"})
        tried.setdefault(name, request)
        # The lease of the first ends with it: it goes on until the other has tried.
        return (
            Say()
            if len(tried) == 2
            else Call("Bash", {"command": "sleep 1", "description": "Wait"})
        )

    run = desk.run(*[answer] * 60)

    assert run.model.errors == []
    refused = [name for name, request in tried.items() if REFUSED in request.from_tools]
    (other,) = {"agent-0", "agent-1"} - {*refused}
    assert len(refused) == 1
    assert (desk.root / "src/new.py").read_text() == f"{other}\n"
