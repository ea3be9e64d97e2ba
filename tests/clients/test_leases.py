"""A path that another agent has leased: no real client edits it, and its model reads why."""

from __future__ import annotations

import threading

import pytest

import agentbus
from tests.clients.conftest import Desk, all_models, each, five
from tests.clients.forms import Answer, Call, Request, Say
from tests.clients.real import Codex

pytestmark = pytest.mark.slow


@all_models
def test_the_edit_of_a_path_that_another_agent_has_leased_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(desk.root)
    lease = desk.reviewer.lease("src/**", why="migration")
    edits = desk.client.edits("src/db.py", "a = 1", "a = 2")
    seen: list[str] = []

    def gives_up(request: Request) -> Answer:
        seen.append(desk.file.read_text())
        lease.drop()
        step = edits[0]
        assert not callable(step)
        return step

    run = desk.run(*edits, gives_up, *edits[1:], Say())

    assert seen == ["a = 1\n"]
    refused = run.requests[len(edits)]
    assert "src/db.py is leased by reviewer until" in refused.last
    assert '("migration", src/**)' in refused.last
    assert "is leased by reviewer" in refused.from_tools
    assert desk.file.read_text() == "a = 2\n"
    # The agent has leased what it edited, until it ended; none of it was said on the channel.
    assert desk.reviewer.leases() == []
    assert list(desk.reviewer.overhear(follow=False)) == []


@all_models
def test_an_edit_leases_its_path_for_the_agent(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(desk.root)
    held: list[tuple[str, str]] = []

    def looks(request: Request) -> Answer:
        held.extend((lease.pattern, lease.agent) for lease in desk.reviewer.leases())
        return Say()

    desk.run(*desk.client.edits("src/db.py", "a = 1", "a = 2"), looks)

    assert held == [("src/db.py", desk.agent)]
    assert desk.file.read_text() == "a = 2\n"


@five
def test_the_lease_of_a_client_that_was_killed_is_free_for_the_next_that_asks(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(desk.root)
    edited, killed = threading.Event(), threading.Event()

    def dies(request: Request) -> Answer:
        edited.set()
        killed.wait(60)
        return Say()

    with desk.start(*desk.client.edits("src/db.py", "a = 1", "a = 2"), dies) as run:
        assert edited.wait(60)
        with pytest.raises(agentbus.LeaseHeld):
            desk.reviewer.lease("src/db.py")
        run.kill()
        killed.set()

        desk.reviewer.lease("src/db.py")

    assert (desk.presence.state, desk.presence.leases) == ("gone", ())
    assert desk.reviewer.tell(desk.agent, "are you there?").state == "gone"


@each([(Codex, "scripted")])
def test_a_patch_in_another_directory_is_refused_by_its_whole_path(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(desk.root)
    desk.reviewer.lease("src/**")
    patch = "*** Begin Patch\n*** Update File: db.py\n@@\n-a = 1\n+a = 2\n*** End Patch\n"
    given = f"apply_patch <<'EOF'\n{patch}EOF\n"
    inside = Call("exec_command", {"cmd": given, "workdir": str(desk.root / "src")})

    run = desk.run(desk.client.shell(f"cd src && {given}"), inside, Say())

    for request in run.requests[1:]:
        assert "src/db.py is leased by reviewer" in request.last
    assert desk.file.read_text() == "a = 1\n"
