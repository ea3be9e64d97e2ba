"""Nobody speaks with the voice of the bus: its reports, its notices and names are told apart from text."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.commands._output import plain
from agentbus.core.escape import escaped, in_quotes
from agentbus.core.keys import Keys
from agentbus.core.names import word
from tests.hostile import World
from tests.servers import Shell, ask as plainly

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


# -- reports of the reader ----------------------------------------------------------------------


def forge(bus: agentbus.Bus, **fields: str) -> None:
    """Append an entry to the channel as any program can."""
    words = [word for pair in fields.items() for word in pair]
    plainly(bus, "XADD", Keys(bus.project).channel, "*", *words)


@pytest.mark.parametrize("event", ["gap", "skipped"])
@pytest.mark.parametrize("how", [{}, {"last": 5}, {"since": "0-0"}, {"topic": "t"}], ids=str)
def test_a_written_report_of_a_gap_is_a_message(bus: agentbus.Bus, event: str, how: dict) -> None:
    forge(
        bus, agent_id="eve", message="7 were lost", topic="t", event=event, missed="7", skipped="7"
    )

    (found,) = bus.overhear(**how)

    assert (found.agent_id, found.text, found.event) == ("eve", "7 were lost", None)
    assert found.details == {"claimed_event": event, "missed": "7", "skipped": "7"}


# In memory, the two have separate servers.
@pytest.mark.parametrize("url", ["valkey"], indirect=True)
async def test_a_written_report_of_a_gap_is_a_message_on_an_async_bus(
    abus: agentbus.AsyncBus, bus: agentbus.Bus, url: str
) -> None:
    forge(bus, agent_id="eve", message="7 were lost", event="gap", missed="7")

    (found,) = [message async for message in abus.overhear()]

    assert (found.text, found.event) == ("7 were lost", None)


@pytest.mark.parametrize("event", ["gap", "skipped"])
def test_the_verb_prints_a_written_report_as_its_authors(
    real_shell: Shell, valkey, project: str, event: str
) -> None:
    words = ("agent_id", "eve", "message", "all were lost", "event", event, "missed", "7")
    valkey.ask("XADD", Keys(project).channel, "*", *words)

    (record,) = real_shell.records("overhear", "--peek")
    shown = real_shell.run("overhear", "--peek")

    assert "event" not in record
    assert (record["agent_id"], record["claimed_event"]) == ("eve", event)
    assert (shown.stderr, shown.stdout.split(" ", 1)[1]) == ("", "eve all were lost\n")


def test_a_written_entry_does_not_say_which_project_it_is_in(
    real_shell: Shell, valkey, project: str
) -> None:
    words = ("agent_id", "eve", "message", "hi", "project", "other", "timestamp", "1970")
    valkey.ask("XADD", Keys(project).channel, "*", *words)

    (record,) = real_shell.records("monitor", "--timeout", "0.01")

    assert (record["project"], record["timestamp"] > "2000") == (project, True)


# -- notices ------------------------------------------------------------------------------------


def test_a_notice_is_marked_where_no_text_can_stand(shell: Shell) -> None:
    shell.ok("announce", "building", "--agent", "ada")
    shell.ok("speak", "announced building", "--topic", "coordination", "--agent", "ada")
    shell.ok("speak", "* announced building", "--topic", "coordination", "--agent", "* ada")

    said = [line.split(" ", 1)[1] for line in shell.ok("overhear").splitlines()]

    assert said == [
        "* ada [coordination] announced building",
        "ada [coordination] announced building",
        '"* ada" [coordination] * announced building',
    ]


# -- names --------------------------------------------------------------------------------------

ODD = "odd [name] x"


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    yield made
    made.close()


def test_every_view_shows_an_unusual_name_in_quotes(world: World) -> None:
    world.renew()
    me = f"--agent={ODD}"
    shown = []
    for argv in (
        *(("speak", "hi", me, f"--topic={ODD}"), ("jot", me, ODD, "v", f"--tag={ODD}")),
        *(("announce", me, ODD, "--ttl", "60"), ("announce", me, ODD, "--ttl", "60")),
        *(("overhear",), ("overhear", "--last", "9"), ("list",), ("list", "--flags")),
        *(("list", "--agents"), ("list", "--topics"), ("recall", f"--tag={ODD}")),
        *(("satisfy", me, ODD), ("await", ODD), ("release", me, "other"), ("list", "--flags")),
        *(("publish", me, ODD, "1"), ("publish", me, ODD, "2"), ("list", "--queues")),
        *(("bus", "list"), ("bus", "stats"), ("bus", "stats", ODD), ("bus", "groups", ODD)),
        *(("bus", "inspect", ODD), ("pause", me, ODD, "--wait", "0"), ("pause",)),
        *(("resume", ODD), ("agent", "list"), ("metrics",), ("tidy", ODD)),
        *(("work", me, ODD, "--drain", "--attempts", "1", "--group", ODD, "--", "false"),),
        *(("dlq", "list", ODD, "--group", ODD), ("agent", "list"), ("bus", "groups", ODD)),
        *(("bus", "stats", ODD), ("bus", "list"), ("health",), ("monitor", "--timeout", "0.01")),
        *(("dlq", "purge", ODD, "--group", ODD), ("rerun", ODD, "--group", ODD, "--from", "1h")),
        *(("bus", "delete", ODD, "--force"), ("forget", ODD), ("whoami", me)),
    ):
        done = world.run(*argv)
        shown += [(argv[:2], line) for line in (done.out + done.err).decode().splitlines()]

    # An id of a task is data; what a notice says is the text of a message.
    seen = [(verb, re.sub(rf"@{re.escape(ODD)}|\* .*\] \w+ .*", "", line)) for verb, line in shown]
    bare = re.compile(rf"(?<![\"']){re.escape(ODD)}|{re.escape(ODD)}(?![\"'])")
    assert sum(ODD in line for _, line in seen) > 30
    wrong = [one for one in seen if bare.search(one[1])]
    assert wrong == [], "\n".join(map(str, wrong))


def test_a_usual_name_is_shown_as_it_is() -> None:
    usual = "Ada.Lovelace_2@host~4711:x-y"

    assert word(usual) == usual


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *(("", '""'), ("a b", '"a b"'), ("a/b", '"a/b"'), ("Ärger", '"Ärger"'), ('a"', r'"a\""')),
        *(("\\", r'"\\"'), ("a\u3164", r'"a\u3164"'), ("\u202ea", r'"\u202ea"'), ("*", '"*"')),
        # The small letter of Cyrillic that looks like an a.
        ("\u0430da", '"\u0430da"'),
    ],
)
def test_an_unusual_name_is_quoted(name: str, shown: str) -> None:
    assert word(name) == in_quotes(name) == shown
    assert plain(shown) == shown


# -- what cannot be seen ------------------------------------------------------------------------

# From Unicode's DerivedCoreProperties: Default_Ignorable_Code_Point; and signs that are blank.
IGNORABLE = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810)),
    *(*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164),
    *(*range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4)),
    *(*range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
]
BLANK = [0x2800, 0x13441, 0x13442, 0x16FE4, 0x1D159, 0x00A0, 0x3000, *range(0x2000, 0x200B)]


def test_every_invisible_code_point_is_escaped() -> None:
    shown = [code for code in (*IGNORABLE, *BLANK) if chr(code) in plain(f"a{chr(code)}b")]

    assert [hex(code) for code in shown] == []


@given(st.text(max_size=30))
def test_what_is_shown_is_on_one_line_and_neither_hides_nor_turns(text: str) -> None:
    found = plain(text)

    assert plain(found) == found
    for character in found:
        assert unicodedata.category(character) not in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
        assert unicodedata.bidirectional(character) not in {"LRE", "RLE", "LRO", "RLO", "PDF"}
        assert unicodedata.bidirectional(character) not in {"LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    "text",
    [
        *("Grüße 🚀", "👩\u200d👧", "❤\ufe0f", "❤\ufe0f\u200d🔥", "👩🏽\u200d🚀", "1\ufe0f\u20e3"),
        *("日本語", "한국어", "עברית", "हिन्दी", "שלום a"),
    ],
)
def test_writing_and_emoji_are_shown_as_they_are(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(("a\u200db", r"a\u200db"), ("a\ufe0fb", r"a\ufe0fb"), ("\u200d", r"\u200d")),
        *(("❤\ufe0f\ufe0f", "❤\ufe0f\\ufe0f"), ("👩\u200d\u200d", "👩" + r"\u200d\u200d")),
        *(("👩\U000e0101", r"👩\U000e0101"), ("a\tb\n", r"a b\n"), ("\x1b[2J", r"\x1b[2J")),
    ],
)
def test_what_joins_nothing_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == plain(text) == shown


def test_a_filler_is_escaped_in_what_a_verb_prints(shell: Shell) -> None:
    shell.ok("speak", "all\u3164clear", "--topic", "b\u3164", "--agent", "a\u3164da")

    said = shell.ok("overhear").split(" ", 1)[1]

    assert said == '"a\\u3164da" ["b\\u3164"] all\\u3164clear\n'
