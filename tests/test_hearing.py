"""Hearing: cursors move only forward and only past what was heard, and what was missed is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import agentbus
from agentbus import EpochMismatch, UsageError
from agentbus.coordination import overhear
from agentbus.core.clock import rfc3339
from agentbus.store.steps import Command
from tests.servers import Server


@pytest.fixture
def bob(connect):
    return connect("bob")


def heard(bus, *topics, **options):
    return [message.text for message in bus.overhear(topics, **options)]


def position_of(bus, topic):
    return bus.runner.link.execute(Command("GET", bus.scope.keys.cursor(bus.agent, topic))).decode()


def say(bus, *texts, topic=None):
    return [bus.speak(text, topic=topic) for text in texts]


# -- what does not move the cursor --


@pytest.mark.parametrize("options", [{"peek": True}, {"last": 2}, {"since": "0"}, {"since": "1h"}])
def test_a_look_back_moves_no_cursor(bus, options):
    say(bus, "one", "two")

    assert heard(bus, **options) == ["one", "two"]
    assert heard(bus) == ["one", "two"]


def test_peek_shows_only_what_was_not_heard(bus):
    say(bus, "one")
    heard(bus)
    say(bus, "two")

    assert heard(bus, peek=True) == ["two"]


def test_peek_of_topics_shows_only_what_was_not_heard_behind_the_first_entries_it_examines(
    bus, monkeypatch
):
    monkeypatch.setattr(overhear, "_EXAMINED_AT_ONCE", 2)
    say(bus, "one", "two", "three", "four", topic="build")
    heard(bus, "build")
    say(bus, "five", topic="deploy")

    assert heard(bus, "build", "deploy", peek=True) == ["five"]
    assert heard(bus, "build", "deploy", since="0", start="newest")[0] == "one"


def test_last_takes_the_newest_oldest_first(bus):
    say(bus, "one", "two", "three")

    assert heard(bus, last=2) == ["two", "three"]
    assert heard(bus, last=0) == []


def test_last_of_a_topic_looks_behind_the_other_topics(bus):
    say(bus, "wanted", topic="build")
    say(bus, *("noise" for _ in range(5)), topic="deploy")

    assert heard(bus, "build", last=1) == ["wanted"]


def test_since_an_id_starts_after_it_as_a_cursor_does(bus):
    first, _, last = say(bus, "one", "two", "three")

    assert heard(bus, since=first.id) == ["two", "three"]
    assert heard(bus, since=last.id) == []


def test_since_a_time_starts_there(bus):
    (one,) = say(bus, "one")

    assert heard(bus, since=rfc3339(one.timestamp - 60)) == ["one"]
    assert heard(bus, since=rfc3339(one.timestamp + 60)) == []


def test_since_reads_what_was_heard_before(bus):
    say(bus, "one")
    heard(bus)

    assert heard(bus, since="1h") == ["one"]


@pytest.mark.parametrize(
    "since", ["", "yesterday", "1-2-3", "2024-13-01", "-5m", "99999999999999999999"]
)
def test_a_point_that_is_none_is_refused(bus, since):
    with pytest.raises(UsageError):
        heard(bus, since=since)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": -1},
        {"last": -1},
        {"last": 1, "since": "1h"},
        {"last": 1, "follow": True},
        {"timeout": 1},
    ],
)
def test_options_that_contradict_are_refused(bus, options):
    with pytest.raises(UsageError):
        heard(bus, **options)


# -- how far the cursor moves --


def test_a_limit_leaves_the_rest_for_the_next_time(bus):
    say(bus, "one", "two", "three")

    assert heard(bus, limit=2) == ["one", "two"]
    assert heard(bus, limit=2) == ["three"]


def test_the_default_limit_is_a_hundred(bus):
    say(bus, *(f"{number}" for number in range(101)))

    assert len(heard(bus)) == 100
    assert heard(bus) == ["100"]


def test_no_limit_takes_everything(bus):
    say(bus, *(f"{number}" for number in range(101)))

    assert len(heard(bus, limit=None)) == 101


def test_the_cursor_of_a_topic_moves_past_what_it_skips(bus, bob):
    say(bus, "wanted", topic="build")
    last = say(bus, *("noise" for _ in range(3)), topic="deploy")[-1]

    assert heard(bob, "build") == ["wanted"]

    # Reading on from there examines nothing twice, however much others talk.
    assert position_of(bob, "build") == last.id


def test_a_reader_that_stops_hears_the_message_in_hand_again(bus):
    say(bus, "one", "two", "three")

    reading = bus.overhear()
    assert [next(reading).text, next(reading).text] == ["one", "two"]
    reading.close()

    assert heard(bus) == ["two", "three"]


def test_a_reader_that_fails_hears_the_message_in_hand_again(bus):
    say(bus, "one", "two", "three")

    def fail_at_two():
        for message in bus.overhear():
            if message.text == "two":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_two()

    assert heard(bus) == ["two", "three"]


def test_two_readers_of_one_agent_never_rewind_its_cursor(bus, connect):
    say(bus, "one", "two", "three")
    slow = bus.overhear()
    next(slow), next(slow)

    assert heard(connect()) == ["one", "two", "three"]
    slow.close()

    assert heard(connect()) == []


def test_each_agent_and_each_topic_has_a_cursor_of_its_own(bus, bob):
    say(bus, "compiled", topic="build")

    assert heard(bob, "build") == ["compiled"]
    assert heard(bob) == ["compiled"]
    assert heard(bus) == ["compiled"]


@pytest.mark.parametrize(
    ("first", "second"),
    [(("a:b", None), ("a", "b")), (("a", "b:c"), ("a:b", "c")), (("a%3Ab", None), ("a:b", None))],
)
def test_agents_and_topics_with_colons_share_no_cursor(bus, connect, first, second):
    for _, topic in (first, second):
        say(bus, "hi", topic=topic)
    wanted = [() if topic is None else (topic,) for _, topic in (first, second)]

    heard(connect(first[0]), *wanted[0])

    assert "hi" in heard(connect(second[0]), *wanted[1])


def test_an_agent_hears_itself_unless_it_asks_for_others(bus, bob):
    say(bus, "mine")
    say(bob, "yours")

    assert heard(bus, others=True, peek=True) == ["yours"]
    assert heard(bus) == ["mine", "yours"]


def test_others_moves_the_cursor_past_ones_own_words(bus):
    say(bus, "mine")

    assert heard(bus, others=True) == []
    assert heard(bus) == []


def test_reset_starts_at_the_oldest(bus):
    say(bus, "one", "two")
    heard(bus)

    assert heard(bus, reset=True) == ["one", "two"]
    assert heard(bus) == []


# -- follow --


def test_follow_begins_with_the_backlog_and_goes_on(bus, bob):
    say(bus, "before")
    following = bob.overhear(follow=True)

    assert next(following).text == "before"
    say(bus, "after")
    assert next(following).text == "after"
    following.close()
    assert heard(bob) == ["after"]


def test_follow_ends_in_time_without_an_error(bus):
    say(bus, "one")

    assert heard(bus, follow=True, timeout=0.05) == ["one"]


def test_follow_has_no_limit_of_its_own(bus):
    say(bus, *(f"{number}" for number in range(101)))

    assert len(heard(bus, follow=True, timeout=0.05)) == 101


def test_follow_ends_at_a_limit_that_is_that_of_a_read(bus):
    say(bus, *(f"{number}" for number in range(101)))

    assert len(heard(bus, follow=True, limit=100, timeout=30)) == 100


def test_follow_of_a_topic_is_not_woken_for_the_others(bus, bob):
    following = bob.overhear("build", follow=True, timeout=30)
    say(bus, *(f"{number}" for number in range(20)), topic="deploy")
    say(bus, "compiled", topic="build")

    assert next(following).text == "compiled"
    following.close()


def test_follow_since_a_point_moves_no_cursor(bus):
    say(bus, "one")

    assert heard(bus, since="1h", follow=True, timeout=0.05) == ["one"]
    assert heard(bus) == ["one"]


# -- what was missed --


@pytest.fixture
def channel(valkey: Server, project: str) -> tuple[Server, str]:
    return valkey, f"{project}:ch:main"


@pytest.fixture
def real(valkey: Server, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(valkey.url, project=project, agent="ada") as opened:
        yield opened


def gaps(messages):
    return [message.details["missed"] for message in messages if message.event == "gap"]


def test_messages_that_were_trimmed_away_unheard_are_counted(real, channel):
    server, key = channel
    say(real, "zero")
    heard(real)
    say(real, *(f"{number}" for number in range(5)))
    server.ask("XTRIM", key, "MAXLEN", "2")

    first, *rest = real.overhear()

    assert (first.event, first.details) == ("gap", {"missed": "3"})
    assert [message.text for message in rest] == ["3", "4"]
    assert gaps(real.overhear()) == []


def test_a_gap_is_told_to_a_follower_without_a_cursor(real, channel):
    server, key = channel
    say(real, "zero")
    following = real.overhear(since="0-0", follow=True, timeout=60.0)
    assert next(following).text == "zero"
    say(real, *(f"{number}" for number in range(5)))
    server.ask("XTRIM", key, "MAXLEN", "2")

    messages = [next(following) for _ in range(3)]

    assert gaps(messages) == ["3"]
    assert [message.text for message in messages[1:]] == ["3", "4"]


def test_what_was_trimmed_after_it_was_heard_is_no_gap(real, channel):
    server, key = channel
    say(real, "one", "two")
    heard(real)
    say(real, "three")
    server.ask("XTRIM", key, "MAXLEN", "1")

    assert heard(real) == ["three"]


def test_an_agent_that_comes_late_has_missed_nothing(real, channel):
    server, key = channel
    say(real, "one", "two", "three")
    server.ask("XTRIM", key, "MAXLEN", "1")

    assert heard(real) == ["three"]


def test_a_gap_is_told_to_a_reader_that_was_stopped_before(real, channel):
    server, key = channel
    say(real, "one", "two", "three")
    reading = real.overhear()
    next(reading), next(reading)
    reading.close()
    say(real, "four")
    server.ask("XTRIM", key, "MAXLEN", "1")

    first, *rest = real.overhear()

    assert (first.event, first.details) == ("gap", {"missed": "2"})
    assert [message.text for message in rest] == ["four"]


def test_a_gap_is_told_to_a_reader_with_a_limit(real, channel):
    server, key = channel
    say(real, "one", "two", "three", "four")
    heard(real, limit=1)
    server.ask("XTRIM", key, "MAXLEN", "1")

    first, *rest = real.overhear(limit=1)

    assert (first.event, first.details) == ("gap", {"missed": "2"})
    assert [message.text for message in rest] == ["four"]


def test_a_gap_is_told_when_nothing_is_left_behind_it(real, channel):
    server, key = channel
    say(real, "one")
    heard(real)
    say(real, "two", "three")
    server.ask("XTRIM", key, "MAXLEN", "0")

    assert gaps(real.overhear()) == ["2"]
    assert gaps(real.overhear()) == []


def test_a_gap_is_told_to_the_reader_of_a_topic(real, channel):
    server, key = channel
    say(real, "one", topic="build")
    heard(real, "build")
    say(real, "two", "three", topic="build")
    server.ask("XTRIM", key, "MAXLEN", "1")

    assert gaps(real.overhear("build")) == ["1"]


# -- a server that went back in time --


def test_a_cursor_beyond_the_channels_end_is_an_error_that_says_what_to_do(real, valkey, project):
    say(real, "one")
    valkey.ask("SET", f"{project}:last:ada", "99999999999999-0")

    with pytest.raises(EpochMismatch, match="reset=True") as error:
        heard(real)

    assert error.value.exit_code == 1
    assert heard(real, since="0") == ["one"]


def test_reset_starts_anew_on_a_server_that_went_back_in_time(real, valkey, project):
    say(real, "one")
    valkey.ask("SET", f"{project}:last:ada", "99999999999999-0")

    assert heard(real, reset=True) == ["one"]
    say(real, "two")
    assert heard(real) == ["two"]


def test_a_channel_that_is_gone_under_a_cursor_is_an_error(real, channel):
    server, key = channel
    say(real, "one")
    heard(real)
    server.ask("DEL", key)

    with pytest.raises(EpochMismatch):
        heard(real)


def test_a_cursor_that_is_no_id_is_refused_with_a_way_out(real, valkey, project):
    say(real, "one")
    valkey.ask("SET", f"{project}:last:ada", "rubbish")

    with pytest.raises(UsageError, match="reset"):
        heard(real)
    assert heard(real, reset=True) == ["one"]


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("99999999999999-0", EpochMismatch, "went back in time"),
        ("rubbish", UsageError, "which is not a stream id"),
    ],
)
def test_a_reader_does_not_catch_up_from_a_cursor_that_cannot_be_one(
    real, valkey, project, value, error, said
):
    say(real, "one")
    valkey.ask("SET", f"{project}:last:ada", value)

    with pytest.raises(error, match=said):
        list(real.runner.iterate(overhear.catch_up(real.scope), verb="overhear"))
    with pytest.raises(error, match=said):
        real.runner.run(overhear.unheard(real.scope, ["build"]))
    valkey.ask("SET", f"{project}:last:ada:build", "0-0")
    assert real.runner.run(overhear.unheard(real.scope, ["build"])) == 0


# -- who heard what --


def test_agents_tells_how_much_each_has_not_heard(bus, bob):
    say(bus, "one", "two", "three")
    heard(bob, limit=1)

    found = {seen.agent_id: seen for seen in bus.agents()}

    assert (found["bob"].unheard, found["ada"].heard, found["ada"].unheard) == (2, None, None)


def test_topics_are_listed_the_latest_first(bus):
    say(bus, "x", topic="build")
    say(bus, "y", topic="deploy")

    assert {topic.topic for topic in bus.topics()} == {"build", "deploy"}
