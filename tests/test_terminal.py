"""On a terminal, nothing is written that the terminal would obey, whoever wrote it."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import example, given, strategies as st

from tests import inprocess
from tests.hostile import World, hostile, is_body, is_name, raw

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ABOUT_WORK = (
    *("id", "agent_id", "host", "pid", "queue", "group", "state", "started", "doing", "worker"),
    *("by", "why", "at", "since", "reason", "stream", "error", "traceback", "attempts"),
    *("correlation_id", "causation_id", "reply_to", "key", "original_id", "took_ms"),
)
SPOILT = "a\x1b[2J\u202eb\x07\x9b31m\x7f\r\u2028"


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    yield made
    made.close()


def check(world: World, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command line on a terminal and check every character that it got."""
    done = inprocess.on_terminal(*argv, *world.where())
    shown = done.out.decode()
    assert done.code in codes, shown
    obeyed = [
        character
        for character in shown
        if character != "\n"
        and (unicodedata.category(character) in {"Cc", "Zl", "Zp"} or character in BIDI)
    ]
    assert obeyed == [], shown
    return shown


def names_of(text: str) -> str:
    """Return the part of a text that may be a name."""
    kept = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cs"})
    return kept[:60] or "x"


@given(name=hostile.map(names_of), body=hostile.filter(is_body))
@example(name="\u202ex", body="a\x1b[2Jb")
@example(name="\u2066", body="a\r\x1b[1Ab\n\n")
def test_what_was_stored_is_shown_harmlessly(name, body, world):
    world.renew()
    assert is_name(name)
    me = f"--agent={name}"
    check(world, "speak", me, f"--msg={body}", f"--topic={name}")
    check(world, "jot", me, f"--key={name}", f"--value={body}", f"--tag={name}")
    check(world, "announce", me, f"--flag={name}", "--ttl", "60")

    shown = check(world, "overhear", me)
    check(world, "overhear", me, "--last", "5", "--json")
    check(world, "recall", f"--key={name}")
    check(world, "recall", f"--key={name}", "--json")
    check(world, "recall", f"--tag={name}", codes=(0, 2))
    check(world, "list")
    for what in ("--flags", "--agents", "--topics"):
        check(world, "list", what)
        check(world, "list", what, "--json")
    check(world, "whoami", me)
    check(world, "announce", f"--flag={name}", "--agent=rival", codes=(4,))
    check(world, "await", f"--flag={name}", "--timeout", "0.01", codes=(3,))
    check(world, "satisfy", me, f"--flag={name}", f"--note={body}")
    check(world, "await", f"--flag={name}")
    check(world, "release", me, f"--flag={name}", codes=(4,))
    check(world, "list", "--flags")

    # One record a line: a message cannot pretend to be two.
    assert shown.count("\n") == 3


@given(parts=st.lists(raw, min_size=5, max_size=5))
@example(parts=[SPOILT.encode()] * 5)
@example(parts=[b"\xff\x1b"] * 5)
def test_what_other_programs_wrote_is_shown_harmlessly(parts, world):
    world.renew()
    agent, message, topic, event, title = parts
    client = world.client
    client.execute_command(
        *("XADD", "app:ch:main", "*", "agent_id", agent, "message", message),
        *("topic", topic, "event", event, title, message),
    )
    client.hset(
        b"app:jot:" + title,
        mapping={"value": message, "author": agent, "timestamp": topic, "tags": event},
    )
    client.set(b"app:flag:" + title, agent + b" @ " + topic)
    client.set(b"app:done:x" + title, agent + b" @ " + topic + b"\n1-1\n1\n" + message)
    client.zadd("app:agents", {agent: 1})
    client.zadd("app:topics", {topic: 1})
    client.set(b"app:q:" + title, "1")
    client.set("app:last:ada", message)

    check(world, "overhear", "--agent=bob")
    check(world, "overhear", "--agent=bob", "--last", "5", "--json")
    check(world, "overhear", "--agent=ada", codes=(0, 1, 2))
    for what in ((), ("--flags",), ("--agents",), ("--topics",), ("--queues",)):
        check(world, "list", *what)
        check(world, "list", *what, "--json")
    check(world, "clear", codes=(2,))


def test_what_other_programs_wrote_about_work_is_shown_harmlessly(world):
    world.renew()
    plant_work(world.client)

    for argv in (
        *(("bus", "list"), ("bus", "stats"), ("bus", "stats", "mail"), ("bus", "groups", "mail")),
        *(("bus", "inspect", "mail"), ("dlq", "list", "mail"), ("agent", "list", "--all")),
        *(("agent", "get", "w"), ("metrics",), ("metrics", "--raw"), ("quarantine", "list")),
        *(("pause",), ("list", "--queues"), ("clear", "--dry-run"), ("tidy",), ("doctor",)),
    ):
        check(world, *argv)
        check(world, *argv, "--json")
    check(world, "health", codes=(6,))
    check(world, "dlq", "replay", "mail")
    # A live view moves the cursor about, and that is all: nothing of theirs is among it.
    for argv in (("monitor",), ("top",), ("health", "--watch")):
        # Long enough for a first look on a machine that is busy.
        with inprocess.environment({"TERM": "xterm"}):
            done = inprocess.on_terminal(*argv, "--timeout", "2", *world.where())
        shown = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", done.out.decode())
        assert not set(shown) & (BIDI | set("\x1b\x07\x9b\x7f\u2028")), shown
        assert "31m" in shown


def plant_work(client) -> None:
    """Leave words that a terminal would obey wherever the verbs of work look."""
    bad, fields = SPOILT.encode(), dict.fromkeys(ABOUT_WORK, SPOILT)
    told, now = json.dumps(fields), int(client.time()[0]) * 1000
    for queue in (b"mail", bad):
        client.zadd("app:queues", {queue: now})
        client.xadd(b"app:q:" + queue, {**fields, "payload": told, "headers": told})
        client.xadd(b"app:q:" + queue, {bad: bad})
        client.xgroup_create(b"app:q:" + queue, bad, "0")
        client.xreadgroup(bad, bad, {b"app:q:" + queue: ">"}, 1)
        client.xadd(b"app:dlq:" + queue + b":default", {**fields, "payload": told})
        client.hset(b"app:stats:" + queue + b":default", mapping={bad: 1, "done": bad})
    for worker in (b"w", bad):
        client.zadd("app:beat", {worker: now})
        client.hset(b"app:beat:" + worker, mapping={**fields, "queue": "mail"})
    client.hset("app:paused", mapping={"all": told, b"queue:" + bad: told, bad: told})
    client.hset("app:quarantined", mapping={bad: told})
    for entry in ({**fields, "event": "failed"}, {"event": "done", "queue": "mail", "group": bad}):
        client.xadd("app:metrics", entry)
    client.xadd("app:ch:main", {"agent_id": bad, "message": bad, "topic": bad, "event": bad})


@given(words=st.lists(hostile, min_size=1, max_size=3))
def test_a_mistake_is_repeated_harmlessly(words, world):
    check(world, words[0].replace("\0", "") or "x", *words[1:], "--no-such-option", codes=(0, 2))


def test_the_warning_about_a_gap_is_harmless(world):
    agent = "\u202eeve"
    world.renew()
    world.run("speak", "one", f"--agent={agent}")
    world.run("overhear", f"--agent={agent}")
    for text in ("two", "three"):
        world.run("speak", text, f"--agent={agent}")
    world.client.xtrim("app:ch:main", maxlen=1, approximate=False)

    shown = check(world, "overhear", f"--agent={agent}")

    assert "trimmed" in shown
    assert shown.endswith(" three\n")


@pytest.mark.parametrize("verb", ["speak", "overhear", "recall", "announce", "satisfy"])
def test_hostile_settings_are_repeated_harmlessly(verb, world):
    for option in ("--agent", "--project", "--log-level", "--config", "--deadline"):
        done = inprocess.on_terminal(verb, "x", "--url", "memory://t", f"{option}={SPOILT}")
        shown = done.out.decode()
        assert done.code == 2
        assert all(line.isprintable() for line in shown.splitlines())


def test_a_pipe_gets_the_note_byte_for_byte(world):
    world.renew()
    world.run("jot", "k", f"--value={SPOILT}")

    assert world.run("recall", "k").out == SPOILT.encode()
    assert check(world, "recall", "k").endswith("\n")
