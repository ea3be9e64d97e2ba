"""Approvals: only a person decides, by a clear yes or no, on a terminal or in the browser."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

import agentbus
from agentbus import InvalidName, NotFound, TimedOut, UsageError
from agentbus.coordination import approval
from tests import inprocess
from tests.browsing import Browser
from tests.pausing import Blocked

HOOK = pathlib.Path(__file__).resolve().parent.parent / "docs/examples/approve/pre-push"
ASK = "deploy 1.2 to production?"


@pytest.fixture
def anna(connect) -> agentbus.Bus:
    bus: agentbus.Bus = connect("human:anna")
    return bus


def asked(person: agentbus.Bus) -> str:
    (message,) = person.inbox(peek=True)
    assert (message.text, message.topic, message.ask, message.urgent) == (
        ASK,
        "approval",
        True,
        True,
    )
    return message.id


@pytest.mark.parametrize(
    ("answer", "approved", "reason"),
    [
        ("yes", True, None),
        ("Yes, after lunch", True, "after lunch"),
        ("approved: go", True, "go"),
        ("no", False, None),
        ("No: not on a Friday", False, "not on a Friday"),
    ],
)
def test_the_answer_of_a_person_decides(bus, anna, answer, approved, reason):
    waiting = Blocked(bus, "approve", ASK, by=["human:anna"], timeout=300)
    known = asked(anna)

    anna.reply(known, answer)

    decided = waiting.finish()
    assert (decided.approved, decided.by, decided.reason) == (approved, "human:anna", reason)
    assert decided.id == known
    # The answer counts as read.
    assert [*bus.inbox()] == []


@pytest.mark.parametrize("answer", ["nope", "not yet", "yesterday", "?", "okay then"])
def test_an_answer_that_says_neither_is_refused_and_decides_nothing(bus, anna, answer):
    waiting = Blocked(bus, "approve", ASK, by=["human:anna"], timeout=300)
    known = asked(anna)

    with pytest.raises(UsageError, match="neither yes nor no"):
        anna.reply(known, answer)

    anna.reply(known, "yes")
    assert waiting.finish().approved


def test_the_first_of_several_people_decides(bus, anna, connect):
    ben = connect("human:ben")
    waiting = Blocked(bus, "approve", ASK, by=["human:anna", "human:ben"], timeout=300)

    ben.reply(asked(ben), "no")

    decided = waiting.finish()
    assert (decided.approved, decided.by) == (False, "human:ben")
    assert asked(anna)


def test_nobody_else_answers_for_a_person(bus, anna, connect):
    waiting = Blocked(bus, "approve", ASK, by=["human:anna"], timeout=300)
    known = asked(anna)

    for other in (connect("eve"), connect("human:ben")):
        with pytest.raises(NotFound, match="human:anna"):
            other.reply(known, "yes")
    connect("eve").tell("ada", "yes", thread=known)
    waiting.look_again()

    anna.reply(known, "no")
    assert not waiting.finish().approved


def test_only_a_person_is_asked(bus, connect):
    connect("eve").here()

    for name in ("eve", "human:", "Human:anna"):
        with pytest.raises(UsageError, match="not the name of a person"):
            bus.approve(ASK, by=[name], timeout=0.1)
    with pytest.raises(UsageError, match="no agent"):
        bus.approve(ASK, by=[])
    assert [*connect("eve").inbox()] == []


def test_without_an_answer_in_time_nothing_is_approved(bus):
    with pytest.raises(TimedOut, match=r"human:anna did not decide in 0\.1 s"):
        bus.approve(ASK, by=["human:anna"], timeout=0.1)


def test_a_plain_message_to_an_unknown_person_is_still_refused(bus):
    with pytest.raises(agentbus.NoSuchAgent):
        bus.tell("human:anna", "hello?")


@pytest.fixture
def run(url, project):
    def run(*words: str, agent: str = "ada") -> inprocess.Done:
        return inprocess.run("--url", url, "--project", project, "--agent", agent, *words)

    return run


@pytest.mark.parametrize(("answer", "code"), [("yes, go", 0), ("no, wait", 4)])
def test_the_command_says_who_may_answer_and_ends_with_the_decision(
    run, anna, monkeypatch, answer, code
):
    decision = approval.decision

    def answered(*args, **options):
        run("reply", asked(anna), answer, agent="human:anna")
        return decision(*args, **options)

    monkeypatch.setattr(approval, "decision", answered)
    done = run("approve", ASK, "--by", "human:anna", "--json")

    record = json.loads(done.out)
    assert [*record] == ["approved", "by", "reason", "id", "answer", "waited_ms"]
    assert (done.code, record["approved"]) == (code, code == 0)
    assert (record["by"], record["reason"]) == ("human:anna", answer.split()[1])
    assert f"agentbus reply {record['id']} yes --agent human:anna".encode() in done.err


def test_the_command_ends_with_3_without_an_answer_and_2_for_an_agent(run):
    late = run("approve", ASK, "--by", "human:anna", "--timeout", "0.1")

    assert (late.code, late.out) == (3, b"")
    assert b"human:anna may answer (never seen here): in agentbus web, or with" in late.err
    assert run("approve", ASK, "--by", "ada").code == 2
    assert run("approve", ASK).code == 2


def test_an_agent_does_not_approve(run, bus, anna, monkeypatch):
    waiting = Blocked(bus, "approve", ASK, by=["human:anna"], timeout=300)
    known = asked(anna)
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "s-1")

    done = run("reply", known, "yes", agent="human:anna")
    with pytest.raises(InvalidName):
        agentbus.connect(agent="human:anna")

    assert done.code == 2
    assert b"session of a coding agent" in done.err
    anna.reply(known, "no")
    assert not waiting.finish().approved


@pytest.mark.parametrize(("deed", "approved"), [("give", True), ("refuse", False)])
async def test_a_person_decides_in_the_browser(bus, writing, deed, approved):
    browser = Browser(writing)
    waiting = Blocked(bus, "approve", ASK, by=["human:eve"], timeout=300)

    page = (await browser.get("/direct?to=human:eve")).page
    answer = await browser.press(page, f"/act/approval.{deed}", reason="looked at it")
    after = (await browser.get("/direct?to=human:eve")).page

    assert answer.status == 303
    decided = waiting.finish()
    assert (decided.approved, decided.by, decided.reason) == (approved, "human:eve", "looked at it")
    assert after.all("form", action=f"/act/approval.{deed}") == []


async def test_the_browser_has_no_buttons_for_what_another_person_is_asked(bus, served, writing):
    Blocked(bus, "approve", ASK, by=["human:ben", "human:eve"], timeout=300)
    writer, reader = Browser(writing), Browser(served)

    other = (await writer.get("/direct?to=human:ben")).page
    own = (await writer.get("/direct?to=human:eve")).page
    reading = (await reader.get("/direct?to=human:eve")).page

    forms = [page.all("form", action="/act/approval.give") for page in (other, own, reading)]
    assert [len(found) for found in forms] == [0, 1, 0]
    # What another person is asked cannot be answered by a form that is made by hand either.
    token = own.all("input", name="csrf")[0]["value"]
    (asked_of_ben,) = (each.id for each in bus.awaited() if each.to == "human:ben")
    form = {"csrf": token, "back": "/direct", "id": asked_of_ben}
    await writer.post("/act/approval.give", form)
    assert "is a message to human:ben" in (await writer.get("/direct")).page.text


def test_the_hook_of_git_lets_a_push_through_only_if_the_person_approves(tmp_path):
    fake, log = tmp_path / "bin", tmp_path / "log"
    fake.mkdir()
    (fake / "agentbus").write_text('#!/bin/sh\necho "$@" >> "$LOG"\nexit "$CODE"\n')
    (fake / "agentbus").chmod(0o755)
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Fix it"], check=True)
    (repository / ".git/hooks/pre-push").symlink_to(HOOK)
    remote = tmp_path / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True)

    def push(branch: str, code: str) -> int:
        environment = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}", "LOG": str(log)}
        environment["CODE"] = code
        words = [*git, "push", "-q", str(remote), f"main:{branch}"]
        return subprocess.run(words, env=environment, capture_output=True, check=False).returncode

    assert push("main", "0") != 0  # nobody is named
    subprocess.run([*git, "config", "agentbus.approver", "human:anna"], check=True)
    assert push("side", "4") == 0
    assert not log.exists()
    assert push("main", "4") != 0
    assert push("main", "0") == 0
    assert "Fix it --by human:anna --timeout 10m" in log.read_text()
