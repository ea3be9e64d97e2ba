"""A client that was killed is gone for everybody on its host, and its leases are free at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from agentbus.commands._tool_call import Links, ToolCall
from agentbus.commands._tools import PERFORM
from agentbus.coordination import leases
from agentbus.core import client_session
from agentbus.errors import LeaseHeld
from tests import inprocess
from tests.hooks import Session
from tests.servers import ask


@pytest.fixture
def session(url, project, tmp_path) -> Session:
    return Session(url, project, tmp_path)


@pytest.fixture
def client(monkeypatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that hooks and commands take for their client."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(client_session, "client_process", lambda: process.pid)
        yield process
        process.kill()


def reused(pid: int, process: str) -> str:
    """Return the name of an earlier process that had the same id."""
    return process.rpartition(" ")[0] + " 1"


@pytest.mark.parametrize("how", ["killed", "not waited for", "id reused"])
def test_a_killed_client_is_gone_for_all_and_its_lease_is_free(
    session, client, monkeypatch, tmp_path, how
):
    named = client_session.process_name
    if how == "id reused":
        monkeypatch.setattr(client_session, "process_name", lambda pid: reused(pid, named(pid)))
    session.context("SessionStart")
    assert session.edit("src/db.py") == ""
    if how == "id reused":
        monkeypatch.undo()
        client_session.remove(client_session.folder_in(str(session.state)), session.id)
    else:
        client.kill()
        if how == "killed":
            client.wait()
    with session.bus("bob") as bob:
        assert [agent.agent for agent in bob.present()] == []
        (gone,) = [one for one in bob.present(all=True) if one.agent == session.agent]
        assert (gone.state, gone.leases) == ("gone", ())
        assert bob.tell(session.agent, "are you there?").state == "gone"
        assert bob.leases() == []
        monkeypatch.chdir(session.root)
        assert bob.holder_of("src/db.py") is None
        other = Session(session.url, session.project, tmp_path, "another-session")
        assert session.agent not in other.context("SessionStart")
        with bob.lease("src/db.py"):
            assert [lease.agent for lease in bob.leases()] == ["bob"]


def test_an_edit_of_another_session_takes_the_lease_of_a_killed_client(session, client, tmp_path):
    session.context("SessionStart")
    assert session.edit("src/db.py") == ""
    other = Session(session.url, session.project, tmp_path, "another-session")
    assert "is leased by" in other.edit("src/db.py")

    client.kill()
    client.wait()

    assert other.edit("src/db.py") == ""


@pytest.mark.parametrize(
    "unknown", ["another host", "another boot", "another namespace", "no start"]
)
def test_a_client_whose_process_cannot_be_read_keeps_its_lease(
    session, client, monkeypatch, unknown
):
    named = client_session.process_name(client.pid)
    host, boot, space, pid, began = named.split(" ")
    process = {
        "another host": f"far {boot} {space} {pid} {began}",
        "another boot": f"{host} x {space} {pid} {began}",
        "another namespace": f"{host} {boot} x {pid} {began}",
        "no start": "",
    }[unknown]
    monkeypatch.setattr(client_session, "process_name", lambda _pid: process)
    assert session.edit("src/db.py") == ""
    client.kill()
    client.wait()

    monkeypatch.chdir(session.root)
    with session.bus("bob") as bob, pytest.raises(LeaseHeld):
        bob.lease("src/db.py")


def test_a_lease_that_a_killed_client_took_by_a_command_is_free(session, client, monkeypatch):
    of = client_session.ClientSession("claude", session.id, session.agent, "", client.pid)
    monkeypatch.chdir(session.root)
    with session.bus() as own, session.bus("bob") as bob:
        with monkeypatch.context() as inside:
            inside.setattr(leases, "client_session", lambda: of)
            own.lease("src/db.py")
        with pytest.raises(LeaseHeld):
            bob.lease("src/db.py")
        client.kill()
        client.wait()

        bob.lease("src/db.py", wait=1)


def test_a_lease_of_a_plain_shell_stays_when_the_shell_ends(session, client, monkeypatch):
    session.context("SessionStart")
    monkeypatch.chdir(session.root)
    with session.bus() as own:
        own.lease("src/db.py")
    client.kill()
    client.wait()
    with session.bus("bob") as bob, pytest.raises(LeaseHeld):
        bob.lease("src/db.py")
    assert b"process" not in ask(own, "HVALS", own.scope.keys.leases)[0]


def clear(session: Session) -> tuple[Session, str]:
    """Return the session with which a client goes on after `/clear`, and its first page."""
    session.answer("SessionEnd", reason="clear")
    after = Session(session.url, session.project, session.root.parent, f"{session.id}-cleared")
    return after, after.context("SessionStart", source="clear")


def test_a_cleared_session_keeps_its_name_mail_presence_and_leases(session, client, monkeypatch):
    session.context("SessionStart")
    session.edit("src/db.py")
    with session.bus("bob") as bob:
        bob.tell(session.agent, "does it build?")

        after, page = clear(clear(session)[0])

        assert f"You are {session.agent} " in page
        assert "1 ask from bob" in page
        assert (session.agent, "active") in [(one.agent, one.state) for one in bob.present()]
        assert bob.tell(session.agent, "again").state == "active"
        assert [lease.agent for lease in bob.leases()] == [session.agent]
    assert after.edit("src/db.py") == ""
    assert "1 message" in after.context("PostToolUse", tool_name="Bash")
    folder = client_session.folder_in(str(session.state))
    in_shell = client_session.find({"CLAUDE_CODE_SESSION_ID": after.id}, folder)
    assert in_shell is not None
    assert in_shell.agent == session.agent


def test_a_cleared_session_that_is_resumed_in_another_client_has_the_same_name(
    session, client, monkeypatch
):
    session.context("SessionStart")
    after, _ = clear(session)
    after.answer("SessionEnd", reason="exit")
    with subprocess.Popen(["sleep", "600"]) as other:
        monkeypatch.setattr(client_session, "client_process", lambda: other.pid)

        page = after.context("SessionStart", source="resume")
        other.kill()

    assert f"You are {session.agent} " in page
    assert "Another session" not in page


def test_a_session_of_another_client_process_does_not_get_the_name(session, monkeypatch):
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as second:
        monkeypatch.setattr(client_session, "client_process", lambda: first.pid)
        session.context("SessionStart")
        monkeypatch.setattr(client_session, "client_process", lambda: second.pid)

        _, page = clear(session)
        first.kill()
        second.kill()

    assert session.agent not in page.partition("Here:")[0]


UNGUARDED = "No hook has run in this session"


def test_a_session_in_which_no_hook_runs_is_unguarded_until_one_does(session):
    def said(*words: str) -> str:
        with inprocess.environment({**session.environment, "CLAUDE_CODE_SESSION_ID": session.id}):
            done = inprocess.run(*words)
        assert done.code == 0, done.err
        return done.out.decode()

    said("speak", "hello")
    assert f"{session.agent} seen" in said("who")
    assert "unguarded" in said("who")
    assert UNGUARDED in said("prime")
    assert "unguarded" in said("whoami")
    said("who", "--doing", "the parser")
    assert '"unguarded": true' in said("who", "--json")

    assert session.context("SessionStart").count(UNGUARDED) == 0

    assert "unguarded" not in said("who")
    assert UNGUARDED not in said("prime")
    assert "unguarded" not in said("whoami")


def test_the_tool_that_catches_up_says_that_no_hook_has_run(session):
    with session.bus() as own:
        for guarded in (False, True):
            if guarded:
                session.context("SessionStart")
            call = ToolCall(Links(own.settings), {}, wanted=lambda: True)

            PERFORM["catch_up"](call)

            assert any(UNGUARDED in line for line in call.captured.lines) is not guarded
            call.finish(taken=True)
