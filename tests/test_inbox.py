"""Inboxes: a message to one agent is kept until it was read, read once, and answered once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus import InboxFull, InvalidPayload, NoSuchAgent, NotFound, TimedOut, UsageError
from agentbus.coordination import inbox as inboxes, tell
from agentbus.errors import InvalidName, TooManyMessages
from tests.pausing import Blocked
from tests.servers import ask

agents = st.text(
    st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("@:%~ -0"),
    min_size=1,
    max_size=40,
)
numbers = st.integers(0, 2**64 - 1)


@pytest.fixture
def bob(connect):
    """An agent that has looked into its inbox, so that it is known."""
    made = connect("bob")
    assert list(made.inbox()) == []
    return made


def texts(bus, **options):
    return [message.text for message in bus.inbox(**options)]


def fill(bus, agent, number, **fields):
    """Append messages as another program does, which no limit on exchanges holds up."""
    words = [word for pair in {"agent_id": "carl", **fields}.items() for word in pair]
    for at in range(number):
        ask(bus, "XADD", bus.scope.keys.inbox(agent), "*", "message", str(at), *words)


# -- tell --


def test_a_message_waits_in_the_inbox_of_its_recipient(bus, bob):
    sent = bus.tell("bob", "look at db.py", topic="db")

    (message,) = bob.inbox()
    assert message.id == sent.id
    assert message.id.endswith("@bob")
    assert (message.agent_id, message.to, message.text) == ("ada", "bob", "look at db.py")
    assert (message.topic, message.thread, message.reply_to) == ("db", sent.id, None)
    assert (message.ask, message.urgent) == (False, False)


def test_a_message_to_one_agent_is_not_on_the_channel(bus, bob):
    bus.tell("bob", "only you")

    assert list(bus.overhear()) == list(bob.overhear()) == []


def test_tell_says_how_many_messages_the_recipient_has_not_read(bus, bob):
    assert [bus.tell("bob", "hi").unread for _ in range(3)] == [1, 2, 3]
    assert texts(bob, limit=2) == ["hi", "hi"]
    assert bus.tell("bob", "hi").unread == 2


def test_tell_says_when_the_recipient_was_seen(bus, bob):
    bob.speak("here")

    sent = bus.tell("bob", "hi")

    assert sent.state is None
    assert sent.seen is not None
    assert abs(sent.seen - inboxes.id_time(sent.id)) < 3600


def test_tell_says_the_presence_of_the_recipient(bus, bob):
    bob.here(state="idle")

    assert bus.tell("bob", "hi").state == "idle"


def test_an_agent_that_left_and_came_back_is_not_gone(bus, bob):
    bob.here(state="gone")
    assert bus.tell("bob", "hi").state == "gone"

    ask(bus, "HSET", bus.scope.keys.who("bob"), "seen", "1700000000000")
    bob.speak("back")

    assert bus.tell("bob", "hi").state is None


def test_an_agent_whose_presence_alone_is_known_can_be_sent_messages(bus):
    ask(bus, "HSET", bus.scope.keys.who("zoe"), "state", "active", "seen", "1700000000000")

    sent = bus.tell("zoe", "hi")

    assert (sent.state, sent.seen) == ("active", 1700000000.0)


def test_a_message_to_a_name_that_nobody_had_is_refused_with_the_nearest_names(bus, bob):
    with pytest.raises(NoSuchAgent, match=r"by the name of bobb; did you mean bob\?") as refused:
        bus.tell("bobb", "hi")

    assert refused.value.exit_code == 5
    assert ask(bus, "EXISTS", bus.scope.keys.inbox("bobb")) == 0


def test_a_message_where_nobody_else_was_ever_says_so(bus):
    with pytest.raises(NoSuchAgent, match="nobody else was ever here"):
        bus.tell("bob", "hi")


def test_a_message_to_several_reaches_all_or_none(bus, bob, connect):
    list(connect("eve").inbox())
    with pytest.raises(NoSuchAgent):
        bus.tell_many(["bob", "nobody", "eve"], "hi")
    assert texts(bob) == []

    sent = bus.tell_many(["bob", "eve", "bob"], "hi")

    assert [one.to for one in sent] == ["bob", "eve"]
    assert texts(bob) == texts(connect("eve")) == ["hi"]


@pytest.mark.parametrize(("text", "is_ask"), [("ready?", True), ("ready? \n", True), ("go", False)])
def test_a_message_that_ends_with_a_question_mark_asks(bus, bob, text, is_ask):
    bus.tell("bob", text)

    assert [message.ask for message in bob.inbox()] == [is_ask]


@pytest.mark.parametrize(
    ("to", "text", "error"),
    [("bob", "", InvalidPayload), ("", "hi", InvalidName), ("b\nob", "hi", InvalidName)],
)
def test_a_wrong_message_is_refused(bus, bob, to, text, error):
    with pytest.raises(error):
        bus.tell(to, text)


def test_a_message_may_continue_a_thread(bus, bob):
    first = bus.tell("bob", "one")

    bus.tell("bob", "two", thread=first.id)

    assert [message.thread for message in bob.inbox()] == [first.id, first.id]


def test_an_inbox_with_a_thousand_unread_messages_takes_no_more(bus, bob, connect):
    fill(bus, "bob", 999)
    bus.tell("bob", "last")
    list(connect("eve").inbox())

    with pytest.raises(InboxFull, match="the inbox of bob is full: 1000 messages are unread"):
        bus.tell_many(["eve", "bob"], "hi")

    assert texts(connect("eve")) == []
    assert len(texts(bob, limit=10)) == 10
    assert bus.tell("bob", "now").unread == 991


def test_two_agents_that_exchange_too_many_messages_are_slowed_down(bus, bob, connect):
    for _ in range(10):
        bus.tell("bob", "ping")
        bob.tell("ada", "pong")

    with pytest.raises(TooManyMessages, match="20 messages went between this agent and bob"):
        bus.tell("bob", "ping")

    list(connect("eve").inbox())
    bus.tell("eve", "hi")
    connect("eve").tell("bob", "hi")


def test_the_limit_of_an_exchange_is_a_setting(bus, bob, monkeypatch, connect):
    monkeypatch.setenv("AGENTBUS_EXCHANGE_LIMIT", "1")
    bus.tell("bob", "one")
    with pytest.raises(TooManyMessages):
        connect("ada").tell("bob", "two")

    monkeypatch.setenv("AGENTBUS_EXCHANGE_LIMIT", "0")
    for _ in range(25):
        connect("ada").tell("bob", "more")


def test_the_limit_of_an_exchange_holds_in_a_busy_inbox(bus, bob, monkeypatch, connect):
    monkeypatch.setenv("AGENTBUS_EXCHANGE_LIMIT", "0")
    eve = connect("eve")
    for _ in range(20):
        bus.tell("bob", "ping")
    for _ in range(120):
        eve.tell("bob", "more")

    with pytest.raises(TooManyMessages, match="20 messages went between this agent and bob"):
        bus.tell("bob", "ping")


@pytest.mark.parametrize(
    ("agent", "expires"),
    [("ada@host~4711", True), ("ada@host~x", False), ("ada~x", False), ("worker~1", False)],
)
def test_the_inbox_of_a_session_without_a_name_expires(bus, connect, agent, expires):
    list(connect(agent).inbox())
    bus.tell(agent, "hi")

    assert (ask(bus, "TTL", bus.scope.keys.inbox(agent)) > 6 * 86_400) == expires


# -- inbox --


def test_a_message_is_read_once(bus, bob):
    bus.tell("bob", "one")
    bus.tell("bob", "two")

    assert texts(bob) == ["one", "two"]
    assert texts(bob) == []


def test_peek_leaves_messages_unread(bus, bob):
    bus.tell("bob", "one")

    assert texts(bob, peek=True) == texts(bob, peek=True) == ["one"]
    assert texts(bob) == ["one"]


def test_a_loop_that_ends_early_leaves_the_rest_unread(bus, bob):
    fill(bus, "bob", 3)

    for message in bob.inbox():
        if message.text == "1":
            break

    assert texts(bob) == ["1", "2"]


def test_a_limit_leaves_the_rest_unread(bus, bob):
    fill(bus, "bob", 5)

    assert texts(bob, limit=2) == ["0", "1"]
    assert texts(bob, limit=0) == []
    assert texts(bob, limit=None) == ["2", "3", "4"]


def test_urgent_messages_come_first(bus, bob):
    bus.tell("bob", "one")
    bus.tell("bob", "two")
    bus.tell("bob", "now", urgent=True)

    assert texts(bob, limit=1) == ["now"]
    assert texts(bob) == ["one", "two"]


def test_what_was_read_out_of_order_stays_read(bus, bob):
    for topic in ("db", "ui", "db", "ui"):
        fill(bus, "bob", 1, topic=topic)

    assert texts(bob, topic="ui") == ["0", "0"]
    assert len(texts(bob, peek=True)) == 2
    assert bus.tell("bob", "new", topic="x").unread == 3
    assert [message.topic for message in bob.inbox()] == ["db", "db", "x"]
    assert bus.tell("bob", "new").unread == 1


def test_messages_are_chosen_by_their_sender(bus, bob, connect):
    fill(bus, "bob", 2, agent_id="eve")
    bus.tell("bob", "hi")

    assert texts(bob, from_="ada") == ["hi"]
    assert texts(bob, from_="eve") == ["0", "1"]


def test_a_thread_is_read_again_from_a_message_on(bus, bob):
    first = bus.tell("bob", "one")
    list(bob.inbox())
    bus.tell("bob", "other")
    second = bus.tell("bob", "two", thread=first.id)

    assert texts(bob, thread=first.id) == ["one", "two"]
    assert texts(bob, thread=second.id) == ["two"]
    assert texts(bob) == ["other"]


def test_a_peek_reads_page_after_page(bus, bob, monkeypatch):
    monkeypatch.setattr(inboxes, "_PAGE_BYTES", 30)
    fill(bus, "bob", 20)
    fill(bus, "bob", 3, urgent="1")
    ask(bus, "HSET", bus.scope.keys.inbox_at("bob"), "urgent", "99999999999999-0")

    assert texts(bob, peek=True) == ["0", "1", "2", *map(str, range(20))]
    assert texts(bob) == ["0", "1", "2", *map(str, range(20))]
    assert texts(bob) == []


def test_a_reader_that_waits_is_woken_by_a_message(bus, bob):
    waiting = Blocked(bob, "inbox", wait=60)

    bus.tell("bob", "hi")

    assert [message.text for message in waiting.emitted()] == ["hi"]


def test_a_wait_without_a_message_times_out(bob):
    with pytest.raises(TimedOut, match=r"no message for bob came in 0\.01 s"):
        list(bob.inbox(wait=0.01))


@pytest.mark.parametrize("options", [{"wait": -1}, {"limit": -1}, {"thread": "x"}])
def test_a_wrong_read_is_refused(bob, options):
    with pytest.raises(UsageError):
        list(bob.inbox(**options))


def test_what_was_read_is_trimmed_but_not_the_newest_200_nor_the_last_week(bus, bob):
    keys = bus.scope.keys
    for at in range(1, 251):
        ask(bus, "XADD", keys.inbox("bob"), f"{at}-0", "agent_id", "carl", "message", str(at))
        ask(bus, "HSET", keys.answers("bob"), f"{at}-0", "1-0@ada")
    bus.tell("bob", "new")

    assert len(texts(bob, limit=20)) == 20
    assert ask(bus, "XLEN", keys.inbox("bob")) == 231
    assert len(texts(bob, limit=None)) == 231
    assert ask(bus, "XLEN", keys.inbox("bob")) == ask(bus, "HLEN", keys.answers("bob")) + 1 == 200
    fill(bus, "bob", 20)
    assert len(texts(bob)) == 20
    assert ask(bus, "XLEN", keys.inbox("bob")) == 200
    fill(bus, "bob", 200)
    list(bob.inbox(limit=None))
    assert ask(bus, "XLEN", keys.inbox("bob")) == 221


def test_unread_messages_are_never_trimmed(bus, bob):
    keys = bus.scope.keys
    for at in range(1, 251):
        ask(bus, "XADD", keys.inbox("bob"), f"{at}-0", "agent_id", "carl", "message", str(at))
    ask(bus, "XADD", keys.inbox("bob"), "251-0", "agent_id", "eve", "message", "last")

    assert texts(bob, from_="eve") == ["last"]
    assert ask(bus, "XLEN", keys.inbox("bob")) == 251


def test_another_programs_values_in_the_record_of_a_reader_are_passed_over(bus, bob):
    keys = bus.scope.keys
    fill(bus, "bob", 2)
    ask(bus, "SET", keys.inbox_at("bob"), "nonsense")
    assert bus.tell("bob", "hi").unread == 3
    assert len(texts(bob)) == 3

    ask(bus, "HSET", keys.inbox_at("bob"), "heard", "x", "ordinal", "y", "urgent", "z", "past", "1")
    assert len(texts(bob)) == 3
    assert texts(bob) == []


@pytest.mark.parametrize("record", ["inbox_at", "answers", "inbox_bell", "asks", "who"])
def test_another_programs_record_beside_an_inbox_holds_up_no_message(bus, bob, record):
    sent = bus.tell("bob", "may I?")
    ask(bus, "DEL", key := getattr(bus.scope.keys, record)("bob"))
    ask(bus, "RPUSH", key, "nonsense")

    assert bus.tell("bob", "one").unread == 2
    assert bus.receipts(sent.id).state == "sent"
    bob.reply(sent.id, "yes")
    assert texts(bob) == ["one"]
    assert bus.receipts(sent.id).state == "answered"
    assert texts(bus) == ["yes"]


def test_the_inbox_goes_with_its_project(bus, bob):
    bus.tell("bob", "hi")
    list(bob.inbox())

    assert bus.clear()["inbox"] == 3
    assert ask(bus, "EXISTS", bus.scope.keys.inbox("bob")) == 0


READER = """
import os, sys, agentbus
bus = agentbus.connect({url!r}, project={project!r}, agent="bob")
for message in bus.inbox():
    print(message.text, flush=True)
    sys.stdin.read()
"""


def test_a_reader_that_is_killed_before_it_is_done_reads_the_message_again(
    real_url, project, tmp_path
):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bob = agentbus.connect(real_url, project=project, agent="bob")
        list(bob.inbox())
        sent = bus.tell("bob", "hi")
        reader = subprocess.Popen(
            [sys.executable, "-c", READER.format(url=real_url, project=project)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "hi\n"
        os.kill(reader.pid, signal.SIGKILL)
        reader.communicate()

        assert bus.receipts(sent.id).state == "sent"
        assert texts(bob) == ["hi"]
        assert bus.receipts(sent.id).state == "read"
        bob.close()


# -- reply --


def test_a_reply_goes_to_the_sender_in_the_thread(bus, bob):
    asked = bus.tell("bob", "may I?", topic="merge")

    sent = bob.reply(asked.id, "yes")

    (answer,) = bus.inbox()
    assert (answer.id, answer.text, answer.agent_id) == (sent.id, "yes", "bob")
    assert (answer.thread, answer.reply_to, answer.topic) == (asked.id, asked.id, "merge")
    again = bus.reply(answer.id, "thanks")
    assert [message.thread for message in bob.inbox()] == [asked.id]
    assert again.to == "bob"


def test_a_second_reply_sends_nothing(bus, bob):
    asked = bus.tell("bob", "may I?")
    first = bob.reply(asked.id, "yes")

    second = bob.reply(asked.id, "yes")

    assert (second.id, second.repeated) == (first.id, True)
    assert texts(bus) == ["yes"]


def test_what_was_answered_is_read(bus, bob):
    bus.tell("bob", "one")
    asked = bus.tell("bob", "two?")

    bob.reply(asked.id, "yes")

    assert texts(bob) == ["one"]


@pytest.mark.parametrize("wrong", ["1-1@bob", "1-1@ada", "1-1@x@bob"])
def test_a_reply_to_a_message_that_is_not_there_is_refused(bob, wrong):
    with pytest.raises(NotFound):
        bob.reply(wrong, "yes")


@pytest.mark.parametrize("wrong", ["1-1", "@bob", "x-1@bob", "1@bob", "", f"{2**64}-0@bob", 5])
def test_what_is_not_an_id_is_a_usage_error(bob, wrong):
    with pytest.raises(UsageError, match="not the id of a message"):
        bob.reply(wrong, "yes")


@given(ms=numbers, seq=numbers, agent=agents)
def test_an_id_names_one_entry_of_one_agent(ms, seq, agent):
    entry_id = f"{ms}-{seq}"

    assert inboxes.split_id(inboxes.message_id(entry_id, agent)) == (entry_id, agent)


@given(text=st.text() | st.from_regex(r"\d{0,21}-?\d{0,21}@?\w{0,3}", fullmatch=True))
def test_any_text_is_an_id_or_a_usage_error(text):
    try:
        entry_id, agent = inboxes.split_id(text)
    except UsageError:
        return
    assert inboxes.message_id(entry_id, agent) == text
    assert all(int(part) < 2**64 for part in entry_id.split("-"))


# -- requests that are sent again --


def resent(bus, op):
    """Run an operation whose every answer is lost once, so that each request is sent twice."""
    try:
        step = next(op)
        while True:
            bus.runner.link.execute(step)
            step.sendings = 2
            step = op.send(bus.runner.link.execute(step))
    except StopIteration as end:
        return end.value


def test_a_message_whose_answer_is_lost_is_sent_once(bus, bob):
    (sent,) = resent(bus, tell.tell(bus.scope, ["bob"], "may I?"))
    reply = resent(bob, tell.reply(bob.scope, sent.id, "yes"))

    assert texts(bob, thread=sent.id) == ["may I?"]
    assert [message.id for message in bus.inbox()] == [reply.id]
    assert (sent.unread, reply.repeated) == (1, False)


def test_messages_that_are_marked_twice_are_read_once(bus, bob):
    fill(bus, "bob", 3)
    found = list(bob.inbox(peek=True))

    left = resent(bob, inboxes.mark(bob.scope, [found[0].id, found[2].id]))

    assert left == 1
    assert texts(bob) == ["1"]


# -- asynchronous --


async def test_the_asynchronous_bus_sends_and_reads_as_the_other_does(abus):
    sent = [message async for message in abus.inbox()]
    told = await abus.tell("ada", "note to self?")
    reply = await abus.reply(told.id, "yes")

    assert sent == []
    assert [message.text async for message in abus.inbox()] == ["yes"]
    assert (await abus.receipts(told.id)).answered == reply.id


# -- any order of sending and reading --

steps = st.lists(
    st.tuples(st.just("tell"), st.sampled_from(["db", "ui"]), st.booleans())
    | st.tuples(st.just("read"), st.sampled_from([None, "db", "ui"]), st.integers(0, 4))
    | st.tuples(st.just("peek"), st.none(), st.integers(0, 4))
    | st.tuples(st.just("stop"), st.none(), st.integers(1, 4)),
    max_size=40,
)


@given(steps=steps)
def test_each_message_is_read_once_in_any_order_of_sending_and_reading(steps):
    with agentbus.connect(f"memory://{uuid.uuid4().hex}", project="p", agent="bob") as bob:
        list(bob.inbox())
        unread: list[tuple[bool, int, str]] = []
        sent: dict[int, str] = {}
        for what, topic, number in steps:
            expected = [one for one in sorted(unread) if topic in (None, one[2])]
            if what == "tell":
                at = len(sent)
                # To oneself, which no limit on exchanges holds up.
                sent[at] = bob.tell("bob", str(at), topic=topic, urgent=bool(number)).id
                unread.append((not number, at, topic))
                continue
            read = []
            for message in bob.inbox(topic, limit=number, peek=what == "peek"):
                read.append(int(message.text))
                if what == "stop" and len(read) == number:
                    break
            assert read == [at for _, at, _ in expected[:number]]
            if what == "stop" and len(read) == number:
                read.pop()
            if what != "peek":
                unread = [one for one in unread if one[1] not in read]
        left = {at for _, at, _ in unread}
        states = {at: bob.receipts(known).state for at, known in sent.items()}
        assert states == {at: "sent" if at in left else "read" for at in sent}
        assert ask(bob, "HLEN", bob.scope.keys.inbox_at("bob")) <= 6 + len(sent)
