"""Receipts: how far a message got, by the cursors of its reader, and the reader wakes who waits."""

from __future__ import annotations

import pytest

from agentbus import NotFound, TimedOut, UsageError
from agentbus.coordination import inbox as inboxes
from agentbus.store import driver
from tests.pausing import Blocked
from tests.servers import ask


@pytest.fixture
def bob(connect):
    """An agent that has looked into its inbox, so that it is known."""
    made = connect("bob")
    assert list(made.inbox()) == []
    return made


def notify(bus, message_id):
    driver.run(bus.runner.link, inboxes.mark(bus.scope, [message_id], "notified"))


def test_a_message_is_sent_then_notified_then_read_then_answered(bus, bob):
    sent = bus.tell("bob", "ready?")
    states = [bus.receipts(sent.id)]
    notify(bob, sent.id)
    states.append(bus.receipts(sent.id))
    list(bob.inbox())
    states.append(bus.receipts(sent.id))
    answer = bob.reply(sent.id, "yes")
    states.append(bus.receipts(sent.id))

    assert [found.state for found in states] == ["sent", "notified", "read", "answered"]
    assert [found.answered for found in states] == [None, None, None, answer.id]
    first, _, _, last = states
    assert (first.to, first.notified, first.read) == ("bob", None, None)
    assert first.sent == inboxes.id_time(sent.id)
    assert last.notified is not None
    assert last.read is not None
    assert first.sent <= last.notified <= last.read


def test_a_receipt_says_when_each_message_was_read(bus, bob):
    first, second = bus.tell("bob", "one"), bus.tell("bob", "two")
    keys = bus.scope.keys
    list(bob.inbox())
    ask(bus, "HSET", keys.inbox_at("bob"), "at:heard", "3000")
    past = f"{first.id.partition('@')[0]} 1000 {second.id.partition('@')[0]} 2000"
    ask(bus, "HSET", keys.inbox_at("bob"), "past", past)

    assert [bus.receipts(one.id).read for one in (first, second)] == [1.0, 2.0]


def test_a_message_that_was_read_before_older_ones_is_read(bus, bob):
    first, second = bus.tell("bob", "one"), bus.tell("bob", "two", topic="db")
    list(bob.inbox("db"))
    read = bus.receipts(second.id).read

    assert [bus.receipts(one.id).state for one in (first, second)] == ["sent", "read"]
    assert read is not None
    list(bob.inbox())
    assert bus.receipts(second.id).read == read


def test_an_unknown_message_has_no_receipt(bus, bob):
    with pytest.raises(NotFound, match="there is no message '1-1@bob'"):
        bus.receipts("1-1@bob")


@pytest.mark.parametrize("wrong", ["1-1", "nonsense", "@", "1-x@bob"])
def test_what_is_not_an_id_has_no_receipt(bus, wrong):
    with pytest.raises(UsageError):
        bus.receipts(wrong)


@pytest.mark.parametrize("options", [{"wait": -1}, {"wait": 1, "until": "heard"}])
def test_a_wrong_wait_is_refused_before_anything_is_sent(bus, bob, options):
    with pytest.raises(UsageError):
        bus.tell("bob", "hi", **options)

    assert list(bob.inbox()) == []


def test_a_wait_ends_when_the_message_is_read(bus, bob):
    sent = bus.tell("bob", "hi")
    waiting = Blocked(bus, "receipts", sent.id, wait=60, until="read")

    list(bob.inbox())

    assert waiting.finish().state == "read"


def test_a_wait_ends_when_a_message_is_read_before_older_ones(bus, bob):
    bus.tell("bob", "hi")
    sent = bus.tell("bob", "hi", topic="db")
    waiting = Blocked(bus, "receipts", sent.id, wait=60, until="read")

    list(bob.inbox("db"))

    assert waiting.finish().state == "read"


def test_a_wait_for_the_answer_goes_on_after_the_message_is_read(bus, bob):
    sent = bus.tell("bob", "hi?")
    waiting = Blocked(bus, "receipts", sent.id, wait=60)

    list(bob.inbox())
    waiting.look_again()
    bob.reply(sent.id, "yes")

    assert waiting.finish().state == "answered"


def test_tell_returns_the_answer_that_it_waited_for_and_marks_it_as_read(bus, bob):
    waiting = Blocked(bus, "tell", "bob", "ready", wait=60)
    (asked,) = bob.inbox()
    bob.reply(asked.id, "yes")

    sent = waiting.finish()

    assert asked.ask
    assert (sent.id, sent.answer.text) == (asked.id, "yes")
    assert list(bus.inbox()) == []


def test_a_wait_that_times_out_says_how_far_the_message_got(bus, bob):
    with pytest.raises(TimedOut, match=r"no answer in 0\.01 s: bob has not read it yet"):
        bus.tell("bob", "ready", wait=0.01)
    (asked,) = bob.inbox()
    with pytest.raises(TimedOut, match="no answer in 0 s: bob has read it"):
        bus.receipts(asked.id, wait=0)
    notified = bus.tell("bob", "hi")
    notify(bob, notified.id)
    with pytest.raises(TimedOut, match="not read in 0 s: bob was notified of it"):
        bus.receipts(notified.id, wait=0, until="read")


def test_reading_the_channel_leaves_receipts_of_those_that_are_present(bus, bob, connect):
    eve, zoe, old = connect("eve"), connect("zoe"), connect("old")
    for one in (eve, zoe, old):
        one.speak("here")
    ask(bus, "ZADD", bus.scope.keys.agents, "1000", "old")
    zoe.here(state="gone")
    said = bus.speak("freeze", topic="plan")
    list(eve.overhear("plan"))

    found = {one.to: one.state for one in bus.heard_by(said.id)}

    assert found == {"eve": "read", "bob": "sent"}
    list(bob.overhear())
    assert {one.state for one in bus.heard_by(said.id)} == {"read"}


def test_a_message_that_the_channel_lacks_was_heard_by_nobody(bus):
    with pytest.raises(NotFound, match="the channel has no message 1-1"):
        bus.heard_by("1-1")
    with pytest.raises(UsageError):
        bus.heard_by("x")
