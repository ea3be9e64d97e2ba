"""The pages of a dashboard about talk: the channel backwards, messages to agents, and threads."""

from __future__ import annotations

import pytest

from agentbus.core.keys import Keys
from agentbus.dashboard import Pages
from agentbus.errors import NotFound, UsageError
from tests.servers import ask


def texts(messages):
    return [one.text for one in messages]


def test_the_channel_is_read_backwards_in_pages(bus):
    for number in range(25):
        bus.speak(str(number))
    pages = Pages(bus)

    first = pages.channel(limit=10)
    second = pages.channel(limit=10, before=first.older)
    third = pages.channel(limit=10, before=second.older)

    assert texts(first.messages) == [str(n) for n in range(24, 14, -1)]
    assert texts(second.messages + third.messages) == [str(n) for n in range(14, -1, -1)]
    assert third.older is None


def test_the_channel_is_filtered_by_topic_and_agent(bus, connect):
    for number in range(300):
        bus.speak(f"noise {number}")
    connect("bob").speak("one", topic="db")
    bus.speak("two", topic="db")
    connect("bob").speak("three")
    bus.announce("building")
    pages = Pages(bus)

    assert texts(pages.channel(topic="db").messages) == ["two", "one"]
    assert texts(pages.channel(agent="bob").messages) == ["three", "one"]
    assert texts(pages.channel(topic="db", agent="bob").messages) == ["one"]
    assert pages.channel(topic="nothing").messages == ()
    assert pages.channel(limit=1, notices=False).messages[0].text == "three"
    assert pages.channel(limit=1).messages[0].event == "announced"


def test_a_filtered_page_says_where_to_go_on(bus):
    for number in range(2500):
        ask(bus, "XADD", Keys(bus.project).channel, "*", "agent_id", "x", "message", str(number))
    pages, found, before = Pages(bus), [], None
    while True:
        page = pages.channel(agent="x", limit=1000, before=before)
        found += texts(page.messages)
        before = page.older
        if before is None:
            break

    assert found == [str(number) for number in range(2499, -1, -1)]


def test_a_long_text_is_cut_and_whole_on_request(bus):
    sent = bus.speak("é" * 5000)
    pages = Pages(bus)

    (found,) = pages.channel().messages

    assert found.text == "é" * 1999
    assert pages.channel().cut == {sent.id: 10_000}
    assert pages.message(sent.id) == sent


@pytest.mark.parametrize("known", ["1-1", "x", "1763622000123-0@bob", "*"])
def test_an_unknown_message_is_not_found(bus, known):
    bus.speak("hello")
    with pytest.raises(NotFound):
        Pages(bus).message(known)


def test_a_place_that_is_not_an_id_is_refused(bus):
    with pytest.raises(UsageError, match="is not the id of a message"):
        Pages(bus).channel(before="+ COUNT 1")


def test_a_gap_that_a_program_claims_is_a_claim(bus):
    ask(bus, "XADD", Keys(bus.project).channel, "*", "agent_id", "x", "event", "gap")

    (found,) = Pages(bus).channel().messages

    assert (found.event, found.details) == (None, {"claimed_event": "gap"})


def test_messages_to_agents_are_found_in_all_inboxes(bus, connect):
    others = [connect(f"agent-{number}") for number in range(5)]
    for other in others:
        other.here()
    # The ids of two inboxes may be of the same millisecond.
    for number, sender in enumerate(["ada"] * 5 + ["agent-0"]):
        key = Keys(bus.project).inbox("agent-1" if number == 5 else f"agent-{number}")
        body = "from another" if number == 5 else f"to {number}"
        ask(bus, "XADD", key, f"17{number}-0", "agent_id", sender, "message", body)
    pages = Pages(bus)

    assert texts(one.message for one in pages.direct()) == [
        "from another",
        *(f"to {number}" for number in range(4, -1, -1)),
    ]
    assert texts(one.message for one in pages.direct(sender="agent-0")) == ["from another"]
    assert texts(one.message for one in pages.direct(to="agent-1")) == ["from another", "to 1"]
    assert texts(one.message for one in pages.direct(limit=2)) == ["from another", "to 4"]


def test_a_thread_has_the_ask_and_its_replies(bus, connect):
    bob = connect("bob")
    bob.here()
    ask_ = bus.tell("bob", "does it drop the column?")
    assert texts(bob.inbox()) == ["does it drop the column?"]
    reply = bob.reply(ask_.id, "no")
    assert texts(bus.inbox()) == ["no"]
    thanks = bus.reply(reply.id, "then go on")
    bus.tell("bob", "another matter")
    pages = Pages(bus)

    for known in (ask_.id, reply.id, thanks.id):
        assert texts(one.message for one in pages.thread(known)) == [
            "does it drop the column?",
            "no",
            "then go on",
        ]
    assert [one.receipt.state for one in pages.thread(ask_.id)] == ["answered", "answered", "sent"]


def test_a_thread_is_found_with_those_who_did_not_answer(bus, connect):
    for name in ("bob", "eve"):
        connect(name).here()
    first = bus.tell("bob", "look at this")
    bus.tell("eve", "and you", thread=first.id)

    found = Pages(bus).thread(first.id)

    assert [one.message.to for one in found] == ["bob", "eve"]


def test_a_thread_is_found_below_thousands_of_later_messages(bus, connect):
    bus.here()
    key = Keys(bus.project).inbox("ada")
    first = ask(bus, "XADD", key, "*", "agent_id", "x", "message", "first").decode() + "@ada"
    for word in ("second", "third"):
        ask(bus, "XADD", key, "*", "agent_id", "x", "message", word, "thread", first)
    for number in range(3_000):
        ask(bus, "XADD", key, "*", "agent_id", "x", "message", str(number))

    assert texts(one.message for one in Pages(bus).thread(first)) == ["first", "second", "third"]


@pytest.mark.parametrize("named", ["no id", "1-1@", "9-9@nobody", ""])
def test_a_thread_that_another_program_named_has_its_messages(bus, named):
    bus.here()
    key = Keys(bus.project).inbox("ada")
    fields = ("agent_id", "x", "message", "hello", "thread", named)
    entry = ask(bus, "XADD", key, "*", *fields).decode()

    assert texts(one.message for one in Pages(bus).thread(f"{entry}@ada")) == ["hello"]


def test_receipts_of_a_search_are_as_they_are_now(bus, connect):
    bob = connect("bob")
    bob.here()
    sent = bus.tell("bob", "hello")
    pages = Pages(bus)
    assert pages.direct()[0].receipt.state == "sent"
    # No search is due for an hour.
    pages._direct._sent._parts[None, 100]._next = float("inf")
    assert texts(bob.inbox()) == ["hello"]

    (found,) = pages.direct()

    assert found.receipt == bus.receipts(sent.id)
    assert found.receipt.state == "read"


def test_a_message_to_an_agent_is_whole_on_request(bus, connect):
    connect("bob").here()
    sent = bus.tell("bob", "x" * 9000)
    pages = Pages(bus)

    (found,) = pages.direct()

    assert (found.cut, found.size, len(found.message.text)) == (True, 9000, 4000)
    assert pages.direct_message(sent.id).text == "x" * 9000
    with pytest.raises(NotFound):
        pages.direct_message("1-1@bob")
    with pytest.raises(UsageError):
        pages.thread("1-1")


async def test_an_async_bus_has_the_same_talk(abus):
    await abus.here()
    sent = await abus.tell(abus.agent, "note to self")
    await abus.speak("hello")
    pages = Pages(abus)

    assert texts((await pages.channel()).messages) == ["hello"]
    assert [one.message.id for one in await pages.thread(sent.id)] == [sent.id]
