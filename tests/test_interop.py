"""Another program, which knows only the keys and plain Redis commands, takes part in the same bus."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.agents import prime
from agentbus.commands._tool_call import Links, ToolCall
from agentbus.commands._tools import PERFORM
from tests import inprocess
from tests.pausing import Blocked, awaiting
from tests.servers import Server

OUTCOMES = ("done", "failed")
RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


class Program:
    """Somebody else's agent: it follows the key patterns, and has no script and no library."""

    def __init__(self, server: Server, prefix: str, agent: str = "gopher") -> None:
        self.server = server
        self.prefix = prefix
        self.agent = agent

    def key(self, *parts: str) -> str:
        return ":".join((self.prefix, *parts))

    def speak(self, message: str, topic: str | None = None) -> str:
        about = () if topic is None else ("topic", topic)
        words = ("agent_id", self.agent, "message", message, *about)
        return self.server.ask("XADD", self.key("ch", "main"), "*", *words).decode()

    def overhear(self) -> list[dict[str, str]]:
        cursor = self.server.ask("GET", self.key("last", self.agent))
        start = "-" if cursor is None else f"({cursor.decode()}"
        entries = self.server.ask("XRANGE", self.key("ch", "main"), start, "+")
        if entries:
            self.server.ask("SET", self.key("last", self.agent), entries[-1][0])
        return [pairs(flat) for _, flat in entries]

    def announce(self, flag: str, *expiry: str) -> bool:
        value = f"{self.agent} @ 2024-01-20T15:30:00Z"
        return self.server.ask("SET", self.key("flag", flag), value, "NX", *expiry) == b"OK"

    def announce_now(self, flag: str) -> None:
        # The clock of its host is ahead, as if some seconds had passed.
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
        self.server.ask("SET", self.key("flag", flag), f"{self.agent} @ {at}")

    def satisfy(self, flag: str) -> bool:
        return self.server.ask("DEL", self.key("flag", flag)) == 1

    def is_announced(self, flag: str) -> bool:
        return self.server.ask("EXISTS", self.key("flag", flag)) == 1

    def jot(self, title: str, value: str, *tags: str, at: int = 1642694400) -> None:
        fields = ("value", value, "author", self.agent, "timestamp", at, "tags", ",".join(tags))
        self.server.ask("HSET", self.key("jot", title), *fields)
        for tag in tags:
            self.server.ask("ZADD", self.key("jots_by_tag", tag), at, title)


def pairs(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.fixture(params=["plain", "agentbus:demo:{}"])
def prefix(request: pytest.FixtureRequest, project: str) -> str:
    """A project of one segment, and one of several, as the Go original's projects have."""
    return project if request.param == "plain" else request.param.format(project)


@pytest.fixture
def program(valkey: Server, prefix: str) -> Program:
    return Program(valkey, prefix)


@pytest.fixture
def bus(valkey: Server, prefix: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(valkey.url, project=prefix, agent="ada") as opened:
        yield opened


# -- talk --


def test_the_program_hears_what_we_say(bus, program):
    bus.speak("compiled", topic="build")
    bus.speak("hello")

    assert program.overhear() == [
        {"agent_id": "ada", "message": "compiled", "topic": "build"},
        {"agent_id": "ada", "message": "hello"},
    ]
    assert program.overhear() == []


def test_we_hear_what_the_program_says(bus, program):
    entry = program.speak("ready", "deploy")
    program.speak("no topic")

    heard = list(bus.overhear())

    assert [(m.agent_id, m.text, m.topic) for m in heard] == [
        ("gopher", "ready", "deploy"),
        ("gopher", "no topic", None),
    ]
    assert heard[0].id == entry


def test_our_events_are_plain_messages_to_the_program(bus, program):
    bus.announce("building")

    (said,) = program.overhear()

    assert (said["agent_id"], said["topic"]) == ("ada", "coordination")
    assert "building" in said["message"]


def test_an_entry_of_strange_fields_stops_nobody(bus, program):
    channel = program.key("ch", "main")
    program.server.ask("XADD", channel, "*", "agent_id", b"\xff\xfe", "message", b"\x80oops")
    program.server.ask("XADD", channel, "*", "other", "thing")
    program.speak("after")

    assert [m.text for m in bus.overhear()][-1] == "after"


# -- cursors --


def test_our_cursor_is_where_the_program_looks_for_it(bus, program):
    entry = program.speak("one")
    list(bus.overhear())

    assert program.server.ask("GET", program.key("last", "ada")).decode() == entry


def test_we_go_on_where_the_program_left_our_cursor(bus, program):
    program.speak("one")
    second = program.speak("two")
    program.speak("three")
    program.server.ask("SET", program.key("last", "ada"), second)

    assert [m.text for m in bus.overhear()] == ["three"]


def test_the_program_goes_on_where_we_left_the_cursor_of_its_agent(valkey, prefix, program):
    program.speak("one")
    with agentbus.connect(valkey.url, project=prefix, agent="gopher") as same_agent:
        list(same_agent.overhear())
    program.speak("two")

    assert [said["message"] for said in program.overhear()] == ["two"]


def test_a_cursor_of_the_program_without_a_second_part_is_understood(bus, program):
    first = program.speak("one")
    program.server.ask("SET", program.key("last", "ada"), f"{int(first.split('-')[0]) - 1}")

    assert [m.text for m in bus.overhear()] == ["one"]


def numbered(program: Program, count: int) -> list[str]:
    return [program.speak(f"{number}") for number in range(count)]


def trim(program: Program, oldest: str) -> None:
    program.server.ask("XTRIM", program.key("ch", "main"), "MINID", oldest)


def move(program: Program, cursor: str) -> None:
    program.server.ask("SET", program.key("last", "ada"), cursor)


def unheard(bus: agentbus.Bus) -> int | None:
    return next(seen.unheard for seen in bus.agents() if seen.agent_id == "ada")


def heard(bus: agentbus.Bus) -> list[str]:
    return [(message.event or message.text) for message in bus.overhear()]


def test_messages_that_may_be_lost_after_a_cursor_of_the_program_are_reported(bus, program):
    ids = numbered(program, 6)
    move(program, ids[1])
    trim(program, ids[4])

    gap, *rest = bus.overhear()

    assert (gap.event, gap.details) == ("gap", {"missed": ""})
    assert [message.text for message in rest] == ["4", "5"]
    assert heard(bus) == []
    program.speak("6")
    trim(program, program.speak("7"))
    assert [message.details for message in bus.overhear() if message.event] == [{"missed": "1"}]


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_number_of_lost_messages_is_null_where_nobody_counted(bus, program):
    ids = numbered(program, 3)
    words = ["overhear", f"--url={bus.settings.url}", f"--project={bus.project}", "--agent=ada"]
    move(program, ids[0])
    trim(program, ids[2])

    gap, _ = inprocess.run(*words, "--json").out.splitlines()

    assert (json.loads(gap)["event"], json.loads(gap)["missed"]) == ("gap", None)
    move(program, ids[0])
    assert inprocess.run(*words).err == (
        b"agentbus: messages may have been trimmed before ada read them; if so, they are gone for good\n"
    )


@pytest.mark.parametrize(("cursor", "left"), [(1, ["2", "3"]), (2, ["3"]), (3, [])])
def test_nothing_is_lost_after_a_cursor_of_the_program_among_the_messages(
    bus, program, cursor, left
):
    bus.jot("known", "ada is listed")
    ids = numbered(program, 4)
    move(program, ids[cursor])
    trim(program, ids[1])

    assert unheard(bus) == len(left)
    assert heard(bus) == left


def test_messages_that_the_program_deleted_may_be_lost(bus, program):
    ids = numbered(program, 4)
    assert len(heard(bus)) == 4
    ids = numbered(program, 3)
    program.server.ask("XDEL", program.key("ch", "main"), ids[1])

    assert unheard(bus) is None
    assert heard(bus) == ["gap", "0", "2"]
    assert (unheard(bus), heard(bus)) == (0, [])


def test_the_program_that_begins_at_zero_has_missed_nothing(bus, program):
    ids = numbered(program, 3)
    move(program, "0")
    trim(program, ids[1])

    assert heard(bus) == ["1", "2"]


def test_unheard_messages_are_unknown_where_some_may_be_lost(bus, program):
    bus.jot("known", "ada is listed")
    ids = numbered(program, 3)
    move(program, ids[0])
    trim(program, ids[2])

    assert unheard(bus) is None


def test_messages_are_not_taken_for_heard_if_the_program_replaces_the_channel(bus, program):
    numbered(program, 4)
    assert len(heard(bus)) == 4
    program.server.ask("DEL", program.key("ch", "main"))
    numbered(program, 2)

    assert unheard(bus) is None
    assert heard(bus) == ["gap", "0", "1"]
    assert unheard(bus) == 0


# -- notes --


def test_the_program_reads_our_note_and_its_tags(bus, program):
    bus.jot("docker-build", "docker build .", tags=["docker", "build"])

    fields = pairs(program.server.ask("HGETALL", program.key("jot", "docker-build")))

    assert fields.pop("timestamp").isdigit()
    assert fields == {"value": "docker build .", "author": "ada", "tags": "docker,build"}
    for tag in ("docker", "build"):
        kept = program.server.ask("ZRANGE", program.key("jots_by_tag", tag), 0, -1)
        assert kept == [b"docker-build"]


def test_we_read_the_programs_note_by_key_and_by_tag(bus, program):
    program.jot("gradle", "gradle build", "build")

    note = bus.recall("gradle")

    assert (note.value, note.author, note.timestamp, note.tags) == (
        "gradle build",
        "gopher",
        1642694400.0,
        ("build",),
    )
    assert [n.key for n in bus.notes(["build"])] == ["gradle"]


def test_we_list_the_programs_notes_among_ours_newest_first(bus, program):
    bus.jot("ours", "1")
    program.jot("older", "2", at=1642694400)
    program.jot("newest", "3", at=4102444800)

    assert [note.key for note in bus.list_()] == ["newest", "ours", "older"]


def test_we_replace_the_programs_note_and_its_tags(bus, program):
    program.jot("gradle", "gradle build", "build", "java")

    bus.jot("gradle", "mvn package", tags=["build", "maven"])

    assert program.server.ask("ZRANGE", program.key("jots_by_tag", "java"), 0, -1) == []
    assert [n.value for n in bus.notes(["build", "maven"], all=True)] == ["mvn package"]


def test_we_forget_the_programs_note(bus, program):
    program.jot("gradle", "gradle build", "build")

    bus.forget("gradle")

    assert program.server.ask("EXISTS", program.key("jot", "gradle")) == 0
    assert program.server.ask("EXISTS", program.key("jots_by_tag", "build")) == 0


def test_a_note_is_not_listed_under_a_tag_that_the_program_removed(bus, program):
    for number in range(3):
        bus.jot(f"kept-{number}", "v", tags=["docker", "x"])
    bus.jot("moved", "v", tags=["docker", "x"])
    program.jot("moved", "v", "x", at=4102444800)

    assert [note.key for note in bus.notes(["docker"], latest=2)] == ["kept-2", "kept-1"]
    assert [note.key for note in bus.notes(["docker", "x"], all=True, latest=2)] == [
        *("kept-2", "kept-1"),
    ]
    assert [note.key for note in bus.list_(tag=["docker"], latest=9)] == [
        *("kept-2", "kept-1", "kept-0"),
    ]
    assert bus.notes(["x"], latest=1)[0].key == "moved"


def test_the_programs_note_is_found_by_a_tag_behind_a_blank(bus, program):
    program.jot("gradle", "gradle build", "build", "java")
    program.server.ask("HSET", program.key("jot", "gradle"), "tags", "build, java")

    assert [note.key for note in bus.notes(["build", "java"], all=True)] == ["gradle"]


def test_a_decision_that_the_program_revoked_is_not_on_the_first_page(bus, program):
    for title in ("deleted", "revoked", "db-engine"):
        bus.jot(title, "v", tags=["decision"])
    program.jot("revoked", "v", "x")
    program.server.ask("DEL", program.key("jot", "deleted"))

    page = prime.page(bus.scope, bus.runner.run(prime.read(bus.scope)))

    assert "Decisions (1 newest): db-engine" in page
    assert "revoked" not in page
    assert "deleted" not in page


def test_notes_that_the_program_deleted_take_no_place_in_a_list(bus, program):
    for number in range(4):
        bus.jot(f"{number}", "v", tags=["docker"])
    program.server.ask("DEL", program.key("jot", "3"), program.key("jot", "2"))

    assert [note.key for note in bus.list_(latest=2)] == ["1", "0"]
    assert [note.key for note in bus.notes(["docker"], latest=2)] == ["1", "0"]


# -- flags --


def test_our_hold_is_what_the_program_expects(bus, program):
    bus.announce("building")

    value = program.server.ask("GET", program.key("flag", "building")).decode()

    assert re.fullmatch(rf"ada @ {RFC3339}", value)
    assert not program.announce("building")


def test_the_program_that_polls_sees_our_flag_come_and_go(bus, program):
    bus.announce("building")
    assert program.is_announced("building")

    bus.satisfy("building")

    assert not program.is_announced("building")
    assert program.announce("building")


def test_the_programs_hold_is_respected(bus, program):
    program.announce("building")

    with pytest.raises(agentbus.FlagHeld, match="held by gopher since 2024-01-20T15:30:00Z"):
        bus.announce("building")
    with pytest.raises(agentbus.NotHolder):
        bus.satisfy("building")


def test_the_programs_hold_can_be_taken_by_force(bus, program):
    program.announce("building")

    assert bus.announce("building", force=True).agent_id == "ada"


def test_a_value_that_names_only_an_agent_is_a_hold_too(bus, program):
    program.server.ask("SET", program.key("flag", "building"), "somebody")

    (found,) = bus.flags()

    assert (found.state, found.agent_id, found.timestamp) == ("held", "somebody", None)


def test_a_flag_that_the_program_deletes_is_satisfied(bus, program):
    program.announce("building")
    waiting = awaiting(bus, "building", timeout=30)

    program.satisfy("building")

    assert [(met.flag, met.state, met.by) for met in waiting.finish()] == [
        ("building", "satisfied", "gopher")
    ]


def test_a_flag_that_the_program_announces_and_deletes_while_we_wait_is_satisfied(bus, program):
    waiting = awaiting(bus, "building", timeout=30)
    program.announce("building")
    program.speak("announced building", "coordination")
    waiting.look_again()

    program.satisfy("building")
    program.speak("satisfied building", "coordination")

    assert [met.flag for met in waiting.finish()] == ["building"]


def test_the_programs_hold_that_expires_is_not_satisfied(bus, program):
    program.announce("building", "PX", "60")

    with pytest.raises(agentbus.TimedOut):
        awaiting(bus, "building", timeout=2.6).finish()


def test_the_programs_hold_that_expires_is_free(bus, program):
    program.announce("building", "PX", "60")

    (met,) = awaiting(bus, "building", until="free", timeout=30).finish()

    assert met.state == "free"


def test_a_flag_that_the_program_announces_wakes_who_awaits_that(bus, program):
    waiting = awaiting(bus, "building", until="announced", timeout=30)

    program.announce("building")

    assert [met.by for met in waiting.finish()] == ["gopher"]


def test_announce_waits_for_the_program_to_delete_its_flag(bus, program):
    program.announce("building")
    waiting = Blocked(bus, "announce", "building", wait=30)

    program.satisfy("building")

    assert waiting.finish().agent_id == "ada"


def test_our_completion_does_not_outlive_the_programs_next_announce(bus, program):
    bus.satisfy("building")
    program.announce("building")

    with pytest.raises(agentbus.TimedOut, match="held by gopher"):
        bus.await_("building", timeout=0.1)


@pytest.mark.parametrize("outcome", ["satisfy", "fail"])
def test_an_old_outcome_is_not_that_of_a_hold_of_the_program_that_expires(bus, program, outcome):
    getattr(bus, outcome)("building")
    program.announce("building", "PX", "60")

    with pytest.raises(agentbus.TimedOut):
        awaiting(bus, "building", timeout=0.3).finish()


@pytest.mark.parametrize("outcome", ["satisfy", "fail"])
def test_an_old_outcome_does_not_hide_that_the_program_deletes_its_flag(bus, program, outcome):
    getattr(bus, outcome)("building")
    old = {kind: program.server.ask("GET", program.key(kind, "building")) for kind in OUTCOMES}
    program.announce("building")
    waiting = awaiting(bus, "building", timeout=30)
    # A wait that may not write remembers the outcome itself.
    for kind, value in old.items():
        if value is not None:
            program.server.ask("SET", program.key(kind, "building"), value)

    program.satisfy("building")
    program.speak("satisfied building", "coordination")

    assert [(met.state, met.by) for met in waiting.finish()] == [("satisfied", "gopher")]


def awaited(bus: agentbus.Bus) -> None:
    with pytest.raises(agentbus.TimedOut):
        bus.await_("building", timeout=0.05)


def awaited_by_command(bus: agentbus.Bus) -> None:
    url, words = str(bus.settings.url), ["await", "building", "--timeout", "0.05"]
    assert inprocess.run(*words, f"--url={url}", f"--project={bus.project}").code == 3


def awaited_asynchronously(bus: agentbus.Bus) -> None:
    async def wait() -> None:
        async with agentbus.aio.connect(bus.settings.url, project=bus.project, agent="ada") as abus:
            await abus.await_("building", timeout=0.05)

    with pytest.raises(agentbus.TimedOut):
        asyncio.run(wait())


def awaited_by_tool(bus: agentbus.Bus) -> None:
    given = {"name": "building", "do": "wait", "wait": 0.05}
    with pytest.raises(agentbus.TimedOut):
        PERFORM["flag"](ToolCall(Links(bus.settings), given, wanted=lambda: True))


def refused(bus: agentbus.Bus) -> None:
    with pytest.raises(agentbus.FlagHeld):
        bus.announce("building")


def not_ended(bus: agentbus.Bus) -> None:
    with pytest.raises(agentbus.NotHolder):
        bus.satisfy("building")


def released_by_force(bus: agentbus.Bus) -> None:
    bus.release("building", force=True)


# Run inside this process, a verb leaves its connection to the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("outcome", ["satisfy", "fail"])
@pytest.mark.parametrize(
    "meet",
    [
        *(awaited, awaited_by_command, awaited_asynchronously, awaited_by_tool),
        *(refused, not_ended, released_by_force),
    ],
)
def test_whoever_meets_a_hold_of_the_program_ends_the_outcome_before_it(
    bus, program, outcome, meet
):
    getattr(bus, outcome)("building")
    program.announce("building")

    meet(bus)

    program.satisfy("building")
    awaited(bus)
    assert bus.flags() == []


def test_a_hold_of_the_program_has_no_token(bus, program):
    hold = bus.announce("building", ttl=60)
    program.satisfy("building")
    program.announce_now("building")

    assert [flag.token for flag in bus.flags()] == [None]
    with pytest.raises(agentbus.NotHolder):
        bus.announce("building", token=hold.token)
    with pytest.raises(agentbus.NotHolder):
        bus.satisfy("building", token=hold.token, force=True)
    assert program.server.ask("TTL", program.key("flag", "building")) == -1


def test_a_hold_is_not_renewed_once_the_program_took_the_flag_in_this_agents_name(bus, program):
    hold = bus.announce("building", ttl=60)
    program.satisfy("building")
    program.agent = "ada"
    program.announce_now("building")

    with pytest.raises(agentbus.NotHolder):
        hold.renew()
    assert bus.announce("building").token > hold.token


# -- the prefix --


def test_project_prefix_gives_the_keys_of_the_go_original(valkey, real_shell, project):
    program = Program(valkey, f"agentbus:{project}")
    shell = {"AGENTBUS_PROJECT": "", "PROJECT_PREFIX": f"agentbus:{project}"}

    real_shell.ok("speak", "hi", "--topic", "t", env=shell)
    real_shell.ok("announce", "building", env=shell)

    assert program.overhear()[0] == {"agent_id": "ada", "message": "hi", "topic": "t"}
    assert program.is_announced("building")
    program.speak("hello back")
    assert "gopher hello back" in real_shell.ok("overhear", "--last", "1", env=shell)
