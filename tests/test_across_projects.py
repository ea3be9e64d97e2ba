"""`NAME@project` is an address: messages, answers and receipts cross the border between projects."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator

import pytest

import agentbus
from agentbus import NoSuchAgent, NotFound, UsageError
from agentbus.coordination import approval, presence_wait
from agentbus.errors import InboxFull, InvalidName, TooManyMessages
from tests import inprocess
from tests.hooks import Session
from tests.pausing import Blocked
from tests.servers import ask

OTHER = f"other-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened(url, project) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def enter(url, project, opened):
    """Return a function that opens a bus for an agent in the other project, or in one of that name."""

    def entered(agent: str, where: str = f"{OTHER}") -> agentbus.Bus:
        made = agentbus.connect(url, project=f"{where}-{project}", agent=agent)
        opened.enter_context(made)
        assert list(made.inbox()) == []
        return made

    return entered


@pytest.fixture
def bob(enter) -> agentbus.Bus:
    """An agent of the other project."""
    return enter("bob")


@pytest.fixture
def there(project) -> str:
    """The address of that agent, as this project writes it."""
    return f"bob@{OTHER}-{project}"


def test_a_message_reaches_the_agent_of_that_name_in_the_other_project(bus, bob, there, project):
    sent = bus.tell(there, "look at api.py", topic="db")

    (message,) = bob.inbox()
    assert (message.agent_id, message.to, message.text) == (
        f"ada@{project}",
        "bob",
        "look at api.py",
    )
    assert (sent.to, sent.id) == (there, f"{message.id.partition('@')[0]}@{there}")
    assert sent.seen is not None
    assert message.thread == message.id == f"{message.id.partition('@')[0]}@bob"


def test_an_answer_goes_back_over_the_border_into_the_same_thread(bus, bob, there, project):
    sent = bus.tell(there, "ready?")
    (question,) = bob.inbox()
    answered = bob.reply(question.id, "yes")

    (answer,) = bus.inbox()
    assert (answer.agent_id, answer.text) == (there, "yes")
    assert (answer.reply_to, answer.thread) == (sent.id, sent.id)
    assert answered.to == f"ada@{project}"
    assert bus.receipts(sent.id).answered == answer.id
    assert [message.text for message in bus.inbox(thread=sent.id)] == ["yes"]
    assert bus.tell(there, "and now?", thread=answer.thread).to == there
    assert [message.thread for message in bob.inbox()] == [question.thread]


def test_a_second_answer_sends_nothing(bus, bob, there):
    bus.tell(there, "ready?")
    (question,) = bob.inbox()
    first, second = bob.reply(question.id, "yes"), bob.reply(question.id, "no")

    assert (second.id, second.repeated) == (first.id, True)
    assert [message.text for message in bus.inbox()] == ["yes"]


def test_a_receipt_of_the_other_project_says_sent_read_answered(bus, bob, there):
    sent = bus.tell(there, "ready?")
    states = [bus.receipts(sent.id).state]
    (question,) = bob.inbox()
    states.append(bus.receipts(sent.id).state)
    bob.reply(question.id, "yes")
    states.append(bus.receipts(sent.id).state)

    assert states == ["sent", "read", "answered"]
    assert bus.receipts(sent.id).to == there


def test_an_ask_over_the_border_is_open_until_it_is_answered(bus, bob, there):
    sent = bus.tell(there, "ready?")
    before = [receipt.id for receipt in bus.awaited()]
    (question,) = bob.inbox()
    bob.reply(question.id, "yes")

    assert (before, bus.awaited()) == ([sent.id], [])


def test_an_answer_is_awaited_over_the_border(real_url, project):
    with (
        agentbus.connect(real_url, project=project, agent="ada") as ada,
        agentbus.connect(real_url, project=f"{OTHER}-{project}", agent="bob") as bob,
    ):
        list(bob.inbox())
        sent = ada.tell(f"bob@{OTHER}-{project}", "ready?")
        (question,) = bob.inbox()
        bob.reply(question.id, "yes")

        assert ada.receipts(sent.id, wait=10).state == "answered"


async def test_an_address_reaches_the_agent_in_an_event_loop(abus, bob, there):
    sent = await abus.tell(there, "ready?")
    (question,) = bob.inbox()
    bob.reply(question.id, "yes")

    assert [message.agent_id async for message in abus.inbox()] == [there]
    assert (await abus.receipts(sent.id)).state == "answered"


def test_one_message_reaches_agents_of_both_projects_or_none(bus, bob, connect, there):
    carl = connect("carl")
    list(carl.inbox())
    with pytest.raises(NoSuchAgent):
        bus.tell_many(["carl", f"{there}x"], "hi")

    assert [sent.to for sent in bus.tell_many(["carl", there], "hi")] == ["carl", there]
    assert [message.agent_id for message in carl.inbox()] == ["ada"]
    assert len(list(bob.inbox())) == 1


def test_the_address_of_an_agent_of_the_own_project_is_its_name(bus, connect, project):
    carl = connect("carl")
    list(carl.inbox())

    (sent,) = bus.tell_many(["carl", f"carl@{project}"], "ready?")
    assert (sent.to, sent.id.partition("@")[2]) == ("carl", "carl")
    (question,) = carl.inbox()
    assert carl.reply(f"{question.id}@{project}", "yes").to == "ada"


def test_a_name_of_this_project_that_has_the_form_of_an_address_is_that_agent(
    bus, bob, connect, there
):
    namesake = connect(there)
    list(namesake.inbox())
    sent = bus.tell(there, "ready?")

    assert [message.text for message in namesake.inbox()] == ["ready?"]
    assert list(bob.inbox()) == []
    assert bus.receipts(sent.id).state == "read"


def test_a_sender_whose_name_has_an_at_sign_is_answered(connect, bob, there, project):
    runner = connect("ci@runner")
    sent = runner.tell(there, "ready?")
    (question,) = bob.inbox()
    assert question.agent_id == f"ci@runner@{project}"
    bob.reply(question.id, "yes")

    (answer,) = runner.inbox()
    assert (answer.text, answer.reply_to, answer.thread) == ("yes", sent.id, sent.id)
    again = runner.reply(answer.id, "thanks")
    assert [(message.id, message.reply_to) for message in bob.inbox()] == [
        (f"{again.id.partition('@')[0]}@bob", f"{answer.id}@{project}")
    ]


def test_an_agent_that_the_other_project_never_saw_is_named_with_the_nearest_there(
    bus, bob, there, project
):
    with pytest.raises(NoSuchAgent) as refused:
        bus.tell(f"bbob@{OTHER}-{project}", "hi")

    assert f"did you mean {there}?" in str(refused.value)
    with pytest.raises(NotFound):
        bus.receipts(f"1763622000123-0@{there}")


def test_a_full_inbox_of_the_other_project_refuses(bus, bob, there):
    for _ in range(1_000):
        ask(bob, "XADD", bob.scope.keys.inbox("bob"), "*", "agent_id", "x", "message", "hi")

    with pytest.raises(InboxFull, match=f"the inbox of {there} is full"):
        bus.tell(there, "hi")


def test_the_limit_on_exchanges_counts_over_the_border(bus, bob, there):
    bus.scope.exchange_limit = bob.scope.exchange_limit = 4
    for _ in range(2):
        bus.tell(there, "ready?")
    for question in list(bob.inbox()):
        bob.reply(question.id, "yes")

    with pytest.raises(TooManyMessages):
        bus.tell(there, "and now?")


def test_leases_are_not_given_over_the_border(bus, bob, there, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bus.lease("a.py")

    with pytest.raises(UsageError, match="leases are given to an agent of the project"):
        bus.tell(there, "yours", give=["a.py"])
    assert [lease.agent for lease in bus.leases()] == ["ada"]


def test_a_thread_has_the_agents_of_one_project_at_a_time(bus, bob, connect, there):
    list(connect("carl").inbox())
    sent = bus.tell(there, "ready?")

    with pytest.raises(UsageError, match="several projects"):
        bus.tell_many(["carl", there], "hi", thread=sent.id)


def test_a_sender_whose_address_is_too_long_to_be_answered_is_refused(connect, bob, there):
    with pytest.raises(InvalidName, match="use at most 256"):
        connect("a" * 250).tell(there, "hi")
    assert list(bob.inbox()) == []


def test_a_cluster_serves_no_address_of_another_project(url, project, bob, there):
    with (
        agentbus.connect(url, project=f"{{{project}}}", agent="ada") as ada,
        pytest.raises(UsageError, match="a Redis Cluster serves no request about two projects"),
    ):
        ada.tell(there, "hi")


def test_an_agent_of_the_other_project_is_awaited(bus, bob, there):
    bob.here(state="idle")

    (met,) = bus.await_agents(idle=[there], timeout=30)
    assert (met.agent, met.state) == (there, "idle")
    with pytest.raises(NoSuchAgent, match=f"did you mean {there}"):
        bus.await_agents(gone=[f"b{there}"], timeout=30)


def test_a_wait_ends_with_the_turn_of_an_agent_of_the_other_project(
    url, project, tmp_path, bus, monkeypatch
):
    # No check but the one that the hook wakes.
    monkeypatch.setattr(presence_wait, "_RECHECK", 600.0)
    session = Session(url, f"{OTHER}-{project}", tmp_path)
    session.context("SessionStart")
    session.context("UserPromptSubmit")
    address = f"{session.agent}@{OTHER}-{project}"
    waiting = Blocked(bus, "await_agents", idle=[address], timeout=300)
    session.stop()

    assert [each.agent for each in waiting.finish()] == [address]


def test_a_person_of_the_other_project_approves(bus, enter, project, monkeypatch):
    # No check but the one that the answer wakes.
    monkeypatch.setattr(approval, "_RECHECK", 600.0)
    anna = enter("human:anna")
    address = f"human:anna@{OTHER}-{project}"
    waiting = Blocked(bus, "approve", "deploy?", by=[address], timeout=300)
    (question,) = anna.inbox()
    anna.reply(question.id, "yes")

    decided = waiting.finish()
    assert (decided.approved, decided.by) == (True, address)


def test_a_person_whose_name_is_that_of_a_mailbox_is_asked_before_having_come(bus, connect):
    waiting = Blocked(bus, "approve", "deploy?", by=["human:anna@example.org"], timeout=300)
    anna = connect("human:anna@example.org")
    (question,) = anna.inbox()
    anna.reply(question.id, "no")

    assert waiting.finish().approved is False


def test_the_bell_and_the_inbox_show_the_address_of_the_sender(url, project, tmp_path, bob):
    session = Session(url, f"{OTHER}-{project}", tmp_path)
    with session.bus() as own:
        own.here(state="active")
        with agentbus.connect(url, project=project, agent="ada") as ada:
            ada.tell(f"{session.agent}@{OTHER}-{project}", "ready?")
        assert f"1 ask from ada@{project}" in session.context("PostToolUse")
        with inprocess.environment({**session.environment, "AGENTBUS_AGENT": session.agent}):
            shown = inprocess.run("inbox", "--from", f"ada@{project}").out.decode()

    assert f"ada@{project} asks, just now" in shown
    assert "| ready?\n" in shown


def test_the_verbs_take_addresses(real_url, project, tmp_path):
    here = {"AGENTBUS_URL": real_url, "XDG_STATE_HOME": str(tmp_path), "AGENTBUS_AGENT": "ada"}
    here["AGENTBUS_PROJECT"] = project
    there = {**here, "AGENTBUS_PROJECT": f"{OTHER}-{project}", "AGENTBUS_AGENT": "bob"}

    def run(environment: dict[str, str], *argv: str) -> list[dict[str, object]]:
        with inprocess.environment(environment):
            done = inprocess.run(*argv, "--json")
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    run(there, "inbox")
    (sent,) = run(here, "tell", f"bob@{OTHER}-{project}", "ready?")
    (question,) = run(there, "inbox")
    (answered,) = run(there, "reply", str(question["id"]), "yes")
    (receipt,) = run(here, "receipts", str(sent["id"]))
    (answer,) = run(here, "inbox")

    assert question["agent_id"] == answered["to"] == f"ada@{project}"
    assert (answer["agent_id"], answer["reply_to"]) == (sent["to"], sent["id"])
    assert (receipt["state"], receipt["answered"]) == ("answered", answer["id"])
