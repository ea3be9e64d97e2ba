"""Whatever is typed, set, stored or sent: it is kept faithfully, or refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from hypothesis import example, given, strategies as st

from tests import inprocess
from tests.hostile import (
    World,
    bodies,
    check_told,
    hostile,
    is_agent,
    is_body,
    is_name,
    is_text,
    names,
    raw,
)
from tests.servers import program, scrubbed
from tests.tiers import nightly

# Run inside this process, a verb leaves its connection to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    made.renew()
    yield made
    made.close()


def records(done: inprocess.Done) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.out.splitlines()]


@given(agent=names, topic=st.none() | names, body=bodies)
@example(agent="ada", topic="a,b", body="x")
@example(agent="AGENTBUS", topic=None, body="x")
def test_a_message_is_stored_as_it_is_or_refused(agent, topic, body, world):
    world.renew()
    before = world.all()
    options = [f"--agent={agent}", f"--msg={body}"]
    options += [] if topic is None else [f"--topic={topic}"]

    done = world.run("speak", *options)

    world.check_neighbours()
    if is_agent(agent) and (topic is None or is_name(topic)) and is_body(body):
        assert done.code == 0, done.err
        ((entry_id, fields),) = world.client.xrange("app:ch:main")
        assert done.out == entry_id + b"\n"
        assert fields == {
            b"agent_id": agent.encode(),
            b"message": body.encode(),
            **({} if topic is None else {b"topic": topic.encode()}),
        }
        # A comma separates topics, and `all` is every one.
        listening = [f"--topic={topic}"] if topic and "," not in topic and topic != "all" else []
        (heard,) = records(world.run("overhear", "--json", "--agent=reader", *listening))
        assert (heard["agent_id"], heard["message"], heard["topic"]) == (agent, body, topic)
        assert world.run("overhear", "--json", "--agent=reader", *listening).out == b""
        world.check_neighbours()
    else:
        check_told(done, 2)
        assert world.all() == before


@given(data=raw)
@example(data=b"\xff")
@example(data=b"")
@example(data=b"a\r\nb\n")
def test_a_body_from_stdin_is_stored_but_for_its_last_newline_or_refused(data, world):
    world.renew()

    done = world.run("jot", "k", "-", stdin=data)

    if data.endswith(b"\n"):
        data = data[:-1].removesuffix(b"\r")
    body = data.decode("utf-8", "surrogateescape")
    if is_body(body):
        assert done.code == 0, done.err
        assert world.client.hget("app:jot:k", "value") == data
        assert world.run("recall", "k").out == data
    else:
        check_told(done, 2)
        assert not world.client.exists("app:jot:k")
    world.check_neighbours()


@given(agent=names, key=names, value=bodies, tags=st.lists(names, max_size=3))
def test_a_note_is_stored_as_it_is_or_refused(agent, key, value, tags, world):
    world.renew()
    before = world.all()
    # Commas separate tags, and blanks around them are no part of them.
    typed = ",".join(tags)
    wanted = list(dict.fromkeys(tag.strip() for tag in typed.split(",") if tag.strip()))

    done = world.run(
        *("jot", f"--agent={agent}", f"--key={key}", f"--value={value}", f"--tag={typed}")
    )

    world.check_neighbours()
    if is_agent(agent) and is_name(key) and is_body(value) and all(map(is_name, wanted)):
        assert done.code == 0, done.err
        assert world.run("recall", f"--key={key}").out == value.encode()
        (note,) = records(world.run("recall", f"--key={key}", "--json"))
        assert (note["key"], note["value"], note["agent_id"]) == (key, value, agent)
        assert note["tags"] == wanted
        for tag in wanted:
            (found,) = records(world.run("recall", f"--tag={tag}", "--json"))
            assert found["key"] == key
        (listed,) = records(world.run("list", "--json"))
        assert listed["key"] == key
        assert world.run("forget", "--", key).code == 0
        assert world.run("recall", f"--key={key}").code == 5
        world.check_neighbours()
    else:
        check_told(done, 2)
        assert world.all() == before


@given(agent=names, flag=names, note=st.none() | bodies)
def test_a_flag_is_held_as_it_is_named_or_refused(agent, flag, note, world):
    world.renew()
    before = world.all()
    me = f"--agent={agent}"

    done = world.run("announce", me, f"--flag={flag}", "--json")

    if not (is_agent(agent) and is_name(flag)):
        check_told(done, 2)
        assert world.all() == before
        return
    (hold,) = records(done)
    assert (hold["flag"], hold["agent_id"]) == (flag, agent)
    if agent != "rival":
        check_told(world.run("announce", "--agent=rival", f"--flag={flag}"), 4)
        check_told(world.run("satisfy", "--agent=rival", f"--flag={flag}"), 4)
    assert world.run("announce", me, f"--flag={flag}").code == 0
    (state,) = records(world.run("list", "--flags", "--json"))
    assert (state["flag"], state["state"], state["agent_id"]) == (flag, "held", agent)

    remark = [] if note is None else [f"--note={note}"]
    done = world.run("satisfy", me, f"--flag={flag}", *remark, "--json")

    if note is None or is_body(note):
        (ended,) = records(done)
        assert (ended["flag"], ended["agent_id"], ended["note"]) == (flag, agent, note)
        (met,) = records(world.run("await", f"--flag={flag}", "--json", "--timeout", "5"))
        assert (met["flag"], met["agent_id"], met.get("note")) == (flag, agent, note)
    else:
        check_told(done, 2)
        assert world.client.exists(f"app:flag:{flag}")
    world.check_neighbours()


@given(url=hostile | hostile.map("redis://".__add__) | hostile.map("unix:///".__add__))
def test_a_url_is_read_or_refused(url):
    done = inprocess.run("whoami", f"--url={url}", "--json")

    if done.code == 0:
        assert records(done)
        assert done.err == b""
    else:
        check_refusal_as_json(done)


def check_refusal_as_json(done: inprocess.Done) -> None:
    assert done.code == 2, done
    assert done.out == b""
    told = json.loads(done.err)
    assert set(told) == {"error", "code", "hint"}
    assert told["code"] == 2
    assert "unexpectedly" not in told["error"]


VARIABLES = [
    *("AGENTBUS_AGENT", "AGENT_ID", "AGENTBUS_PROJECT", "PROJECT_PREFIX", "AGENTBUS_URL"),
    *("REDIS_URL", "AGENTBUS_JSON", "AGENTBUS_LOG_LEVEL", "AGENTBUS_LOG", "AGENTBUS_CONFIG"),
    *("AGENTBUS_DEADLINE", "AGENTBUS_SERVER", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME", "USER"),
]


def variable(text: str) -> str:
    """Return what of a text an environment can hold."""
    return (
        text.replace("\0", "").encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    )


values = hostile.filter(lambda text: is_text(text) or set(text) <= set("\udcff\udc80"))


@given(changes=st.dictionaries(st.sampled_from(VARIABLES), values, min_size=1, max_size=3))
def test_the_environment_is_understood_or_refused(changes, tmp_path_factory):
    home = str(tmp_path_factory.getbasetemp() / "env-home")
    # Logs and configs under a hostile relative path would land in the current directory.
    kept = {
        name: variable(value)
        if not name.startswith(("XDG", "HOME"))
        else f"/dev/null/{variable(value)}"
        for name, value in changes.items()
        if name != "AGENTBUS_LOG"
    }
    if "AGENTBUS_LOG" in changes:
        kept["AGENTBUS_LOG"] = f"/dev/null/{variable(changes['AGENTBUS_LOG'])}"
    with inprocess.environment({"HOME": home, "AGENTBUS_LOG_LEVEL": "off", **kept}):
        done = inprocess.run("whoami")

    said = done.err.decode()
    assert "Traceback" not in said
    assert "unexpectedly" not in said
    assert done.code in {0, 2}, said
    if done.code == 0:
        assert done.err == b""
        if "AGENTBUS_AGENT" in kept and "AGENTBUS_JSON" not in kept and kept["AGENTBUS_AGENT"]:
            assert is_name(kept["AGENTBUS_AGENT"])


@given(value=raw | st.from_regex(rb"[0-9]{1,25}(-[0-9]{1,25})?", fullmatch=True))
@example(value=b"18446744073709551616-0")
@example(value=b"0-99999999999999999999")
@example(value=b"00000000000000000000000001-0")
@example(value=b"0-18446744073709551615")
@example(value=b"-1")
@example(value=b"1-1\x00")
@example(value=b"1-1\n")
def test_a_foreign_cursor_is_understood_or_refused(value, world):
    world.renew()
    world.run("speak", "hi")
    world.client.set("app:last:ada", value)

    done = world.run("overhear", "--agent=ada")

    if done.code == 0:
        assert done.out in {b"", done.out if done.out.endswith(b" hi\n") else b"hi"}
        assert done.err == b""
    else:
        check_told(done, 1, 2)
        assert b"--reset" in done.err
        assert world.client.get("app:last:ada") == value
        again = world.run("overhear", "--agent=ada", "--reset")
        assert again.code == 0
        assert again.out.endswith(b" hi\n")
    world.check_neighbours()


@given(data=raw)
def test_a_config_file_is_read_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_bytes(data)

    done = inprocess.run("whoami", "--config", str(path), "--json")

    if done.code:
        check_refusal_as_json(done)


# -- what other programs may have left in the project's own keys --

FOREIGN = {
    "string": ("SET", "{}", b"\xff garbage"),
    "empty": ("SET", "{}", ""),
    "number": ("SET", "{}", "17"),
    "huge": ("SET", "{}", "9" * 40),
    "odd digit": ("SET", "{}", "²"),
    "list": ("RPUSH", "{}", "a"),
    "hash": ("HSET", "{}", "value", b"\xff", "timestamp", "inf", "tags", ",,\x1b[2J,"),
    "nan hash": ("HSET", "{}", "value", "v", "timestamp", "nan", "ada", "17-0 1e20"),
    "late hash": ("HSET", "{}", "value", "v", "timestamp", "1e30", "ada", "² ²"),
    "set": ("SADD", "{}", "a"),
    "zset": ("ZADD", "{}", "inf", "how", "-inf", b"\xff", "1e300", "x"),
    "stream": ("XADD", "{}", "*", b"\xff", b"\xff", "token", "²", "event", "x", "missed", "9" * 15),
    "early stream": ("XADD", "{}", "0-1", "message", "m", "topic", "t"),
    "late stream": ("XADD", "{}", f"{2**64 - 1}-{2**64 - 2}", "message", "m", "topic", "t"),
    "flag events": ("XADD", "{}", "*", "event", "satisfied", "flag", "building", "token", "²"),
}
PLACES = [
    *("ch:main", "last:ada", "heard", "agents", "topics", "jot:how", "jots", "jots_by_tag:a"),
    *("flag:building", "done:building", "fence:building", "q:mail", "q:", "jot:", "flag:"),
]
READING = [
    ["overhear", "--peek"],
    ["overhear", "--peek", "--json"],
    ["overhear", "--topic", "t", "--others", "--peek"],
    ["overhear", "--last", "5", "--json"],
    ["overhear", "--since", "0-0", "--json"],
    ["recall", "how"],
    ["recall", "how", "--json"],
    ["recall", "--tag", "a", "--json"],
    ["recall", "--tag", "a,b", "--all"],
    ["list"],
    ["list", "--json"],
    ["list", "--flags", "--json"],
    ["list", "--agents", "--json"],
    ["list", "--topics", "--json"],
    ["list", "--queues"],
    ["await", "building", "--until", "announced", "--timeout", "0.01"],
    ["await", "building", "--until", "free", "--timeout", "0.01"],
    ["await", "building", "--timeout", "0.01", "--json"],
    ["clear", "--dry-run"],
]
CHANGING = [
    ["overhear"],
    ["overhear", "--topic", "t", "--reset"],
    ["speak", "hi", "--topic", "t"],
    ["jot", "how", "make", "--tag", "a,b"],
    ["forget", "how"],
    ["announce", "building", "--ttl", "5"],
    ["await", "building", "--timeout", "0.01", "--delete"],
    ["satisfy", "building"],
    ["release", "building", "--force"],
    ["satisfy", "building", "--force"],
    ["clear", "--force"],
]


# In shifting pairs, so that each change tries each kind of value, and each place.
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (place, kind) if (row + column) % 6 == 0 else nightly(place, kind)
        for row, place in enumerate(PLACES)
        for column, kind in enumerate(FOREIGN)
    ],
)
def test_a_spoilt_key_never_looks_like_a_defect(place, kind, world):
    command, *rest = FOREIGN[kind]
    mistakes = []
    for verbs in (READING, *([verb] for verb in CHANGING)):
        world.renew()
        world.client.execute_command(command, *(f"app:{place}" if r == "{}" else r for r in rest))
        for verb in verbs:
            done = world.run(*verb, "--agent=ada")

            said = done.err.decode()
            if "unexpectedly" in said or "Traceback" in said or done.code not in range(8):
                mistakes.append((" ".join(verb), done.code, said))
            elif done.code:
                check_told(done._replace(out=b""), done.code)
        world.check_neighbours()

    assert mistakes == []


@pytest.mark.parametrize(
    "arguments",
    [
        *([b"speak", b"\xff\xfe"], [b"speak", b"hi", b"--topic", b"\xff"]),
        *([b"\xff"], [b"--\xff", b"speak"], [b"speak", b"@\xff"], [b"speak", b"@"]),
        *([b"speak", b"hi", b"--agent=\x1b[31m"], [b"speak", b"hi", b"--url", b"\xff"]),
        *([b"speak", b"@/nowhere"], [b"speak", b"@/"]),
        *([b"speak", b""], [b"speak"], [b"jot", b"k"], [b"recall", b"a\nb"]),
        *([b"speak", b"hi", b"--config", b"\xff"], [b"overhear", b"--since", b"\x1b[2J"]),
        *([b"await"], [b"hold", b"x"], [b"hold", b"x", b"--"], [b"list", b"--flags", b"--agents"]),
        *([b"announce", b"x", b"--ttl", b"0"], [b"announce", b"x", b"--ttl", b"9999999999d"]),
        *([b"overhear", b"--last", b"1", b"--follow"], [b"overhear", b"--max", b"9" * 20]),
    ],
)  # fmt: skip
def test_bytes_that_are_no_text_are_refused_by_the_real_command(arguments, real_shell):
    done = subprocess.run(
        [program().encode(), *arguments],
        env=real_shell.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )

    check_told(inprocess.Done(done.returncode, done.stdout, done.stderr), 2)


def test_the_users_own_environment_is_not_what_these_tests_run_in():
    assert scrubbed(dict(os.environ)) == dict(os.environ)
