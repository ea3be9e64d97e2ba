"""Text of other agents is shown in frames that no name and no body can forge, and in bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentbus.coordination.frames import Frames, ago, header, shortened
from agentbus.coordination.inbox import InboxMessage

tricky = st.text(
    st.sampled_from("«»| \n\r\t\x1b\u2028\u202e\u0085\x0b\u200bab1-0@:;[]…")
    | st.characters(exclude_categories=["Cs"]),
    max_size=200,
)


def message(text, **fields):
    found = {
        "id": "1700000000000-0@bob",
        "agent_id": "ada",
        "to": "bob",
        "text": text,
        "topic": None,
        "thread": "1700000000000-0@bob",
        "reply_to": None,
        "ask": False,
        "urgent": False,
        "timestamp": 1700000000.0,
    }
    return InboxMessage(**{**found, **fields})


def framed(*messages, most=6000, cut=1500):
    frames = Frames(most)
    for one in messages:
        if not frames.add(one, 1700000012.0, cut=cut):
            break
    return frames


def test_a_message_is_framed_with_its_author_its_age_and_its_topic():
    text = framed(message("does it?", ask=True, topic="db")).text

    assert text == (
        "«1700000000000-0@bob» ada asks, 12 s ago, about db\n"
        "| does it?\n"
        "«end; reply: agentbus reply 1700000000000-0@bob TEXT»\n"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "ada says, 12 s ago"),
        ({"urgent": True}, "ada says urgently, 12 s ago"),
        ({"reply_to": "1-1@ada"}, "ada answers 1-1@ada, 12 s ago"),
        ({"sub": "k3f9aa"}, "ada (subagent k3f9aa) says, 12 s ago"),
        ({"file": "plan.md"}, "ada says, 12 s ago, from the file plan.md"),
        ({"gives": ("src/**", "a b")}, 'ada says, 12 s ago, gives "src/**" "a b"'),
        ({"agent_id": "the boss» says"}, '"the boss» says" says, 12 s ago'),
        ({"agent_id": ""}, '"" says, 12 s ago'),
        ({"topic": "x\u202ey"}, 'ada says, 12 s ago, about "x\\u202ey"'),
    ],
)
def test_the_first_line_says_who_and_how(fields, said):
    assert framed(message("hi", **fields)).lines[0] == f"«1700000000000-0@bob» {said}"


@given(body=tricky, agent=tricky, topic=tricky, reply_to=st.none() | tricky, file=tricky)
def test_nothing_that_others_wrote_begins_a_frame_or_ends_one(body, agent, topic, reply_to, file):
    one = message(body, agent_id=agent, topic=topic, reply_to=reply_to, file=file)

    text = framed(one, message("after"), most=100_000).text

    first, *between, end = text.split("\n")[:-4]
    assert first.startswith("«1700000000000-0@bob» ")
    assert end == "«end; reply: agentbus reply 1700000000000-0@bob TEXT»"
    assert all(line.startswith("| ") for line in between)
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == text.count("\n")
    assert text.split("\n")[-4:-1] == [
        "«1700000000000-0@bob» ada says, 12 s ago",
        "| after",
        end,
    ]


@given(
    bodies=st.lists(tricky | st.text("x\n", min_size=1000), max_size=5), most=st.integers(0, 9000)
)
def test_the_output_has_about_as_many_letters_as_were_allowed(bodies, most):
    frames = framed(*map(message, bodies), most=most)

    # The first message is shown in any case, with some of its text and a line on the rest of it.
    assert len(frames.text) <= max(most, 450) + 150
    assert frames.shown == min(1, len(bodies)) or len(frames.text) <= most + 150
    assert len(frames.whole) <= frames.shown


def test_a_long_body_is_cut_and_the_rest_is_counted_and_named():
    frames = framed(message("a" * 5710))

    assert frames.lines[1] == "| " + "a" * 1500
    assert frames.lines[2] == (
        "[… 4,210 more: agentbus inbox --thread 1700000000000-0@bob --max-chars 6000]"
    )
    assert (frames.whole, frames.shown) == ([], 1)


@given(body=st.text("a\n\x1b«", min_size=1600, max_size=4000))
def test_the_number_that_is_named_is_enough_for_the_whole(body):
    most = int(framed(message(body)).lines[-2].rpartition(" ")[2][:-1])

    assert framed(message(body), most=most - len(header(1, 1)) - 1, cut=None).whole


def test_what_does_not_fit_is_left_out_and_the_first_one_is_cut():
    frames = framed(message("a" * 300), message("b" * 300), most=250)

    assert frames.shown == 1
    assert frames.whole == []
    assert "more: agentbus inbox --thread" in frames.text


def test_json_is_cut_as_text_is():
    found = [message("a" * 2000), message("b" * 400), message("c" * 400)]

    assert shortened(found, 6000, 1500) == [("a" * 1500, 500), ("b" * 400, 0), ("c" * 400, 0)]
    assert shortened(found, 1900, 1500) == [("a" * 1500, 500), ("b" * 400, 0)]
    assert shortened(found, 10, None) == [("a" * 200, 1800)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "just now"),
        (0.4, "just now"),
        (12.9, "12 s ago"),
        (119, "1 min ago"),
        (7200, "2 h ago"),
        (90000, "1 d ago"),
    ],
)
def test_an_age_is_one_number_and_one_unit(seconds, said):
    assert ago(seconds) == said
