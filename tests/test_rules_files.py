"""Files of rules: what they say, what stays the text that was written, and what is told of mistakes."""

from __future__ import annotations

import os
import pathlib

import pytest
from hypothesis import given, strategies as st

from agentbus.errors import ConfigError
from agentbus.routing import Agent, Limit, check, load, parse
from tests import profiles  # noqa: F401 (loads the profile)
from tests.test_rules import TEAM

# What YAML would take for something else than text.
SURPRISES = [
    *("NO", "on", "yes", "true", "1.10", "0x10", "0o17", "1_000", "1e3", ".inf", "2026-11-21"),
    *("12:30:45", "null", "~", "<<", "=", "0b11", "010"),
]


def told(text: str | bytes) -> list[tuple[int, str, str]]:
    return [(problem.line, problem.what, problem.remedy) for problem in check(text, "team.yaml")]


def team(rest: str) -> str:
    return f"agents: [alice, bob]\n{rest}"


# -- what a file says --


def test_a_file_is_read_whole():
    rules = parse(
        """\
incoming: work.in
team: blue
agents:
  alice:
  bob: {limit: 3/s}
  carol: {limit: off}
  dan: {limit: on}
  eve: ~
default: {to: [alice, bob, carol, dan, eve]}
limits: {agent: 20/h, type: {build: 30/min}}
loops: {depth: 3, window: 90}
dedup: 2h
""",
        "team.yaml",
    )

    assert (rules.path, rules.incoming, rules.team) == ("team.yaml", "work.in", "blue")
    assert rules.agents == {
        "alice": Agent("alice", "team.blue.alice", Limit(20, 3600)),
        "bob": Agent("bob", "team.blue.bob", Limit(3, 1)),
        "carol": Agent("carol", "team.blue.carol", None),
        "dan": Agent("dan", "team.blue.dan", Limit(10, 60)),
        "eve": Agent("eve", "team.blue.eve", Limit(20, 3600)),
    }
    assert rules.limits == {"build": Limit(30, 60)}
    assert (rules.depth, rules.window, rules.dedup) == (3, 90, 7200)
    assert rules.warnings == ()


def test_a_file_may_hold_only_agents():
    rules = parse("agents: [alice]", "team.yaml")

    assert (rules.incoming, rules.team, rules.rules, rules.default) == ("incoming", None, (), None)
    assert rules.agents == {"alice": Agent("alice", "agent.alice", None)}
    assert (rules.limits, rules.depth, rules.window, rules.dedup) == ({}, 5, 1800, 300)
    assert rules.warnings == (
        "team.yaml:1: there are neither rules nor a default: only tasks with an agent_id are routed",
    )


def test_limits_are_off_unless_given_and_on_is_ten_a_minute():
    assert parse("agents: [a]\nlimits: {agent: on}").agents["a"].limit == Limit(10, 60)
    assert parse("agents: [a]\nlimits: {agent: off, type: {x: off}}").limits == {}


def test_a_changed_text_has_another_digest():
    one, same, other = (
        parse(text).digest for text in ("agents: [a]", "agents: [a]", "agents: [b]")
    )

    assert one == same != other


@pytest.mark.parametrize("word", SURPRISES)
def test_a_name_stays_the_text_that_was_written(word):
    rules = parse(
        f"agents:\n  - {word}\nrules:\n  - work_type: {word}\n    to: {word}\n"
        f"  - match: {{task: {word}}}\n    to: {word}\nlimits: {{type: {{{word}: 1/s}}}}\n"
    )

    assert list(rules.agents) == list(rules.limits) == [word]
    assert rules.route({"type": word}).how == "work_type"
    assert rules.route({"task": word}).how == "match"
    assert rules.route({"agent_id": word}).agents == (word,)


@pytest.mark.parametrize("word", SURPRISES)
def test_a_key_among_the_agents_stays_the_text_that_was_written(word):
    assert list(parse(f"agents:\n  {word}:\n  x: null\n").agents) == [word, "x"]


@pytest.mark.parametrize(
    "text", ["\ufeffagents: [a]\r\ndefault: a\r\n", '{"agents": ["a"], "default": "a"}']
)
def test_a_file_may_come_from_another_system_or_be_json(text):
    assert parse(text.encode()).route({}).agents == ("a",)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            team("default: bob\n"),
            "team.yaml:1: no rule reaches the agent 'alice': only tasks with its name as agent_id do",
        ),
        (
            team(
                "default: [alice, bob]\nrules:\n- {work_type: x, to: bob}\n"
                "- {work_type: [x, y], to: alice}\n"
            ),
            "team.yaml:5: rule 2 has no effect on some: 'x' is taken by rule 1 (line 4)",
        ),
        (
            team("default: [alice, bob]\nrules:\n- {work_type: 'b*', to: bob}\n"),
            "team.yaml:4: the work type 'b*' is taken literally; for a pattern write match: {type: 'b*'}",
        ),
    ],
)
def test_what_is_odd_but_no_mistake_is_a_warning(text, warning):
    assert parse(text, "team.yaml").warnings == (warning,)


# -- what is wrong with a file --


@pytest.mark.parametrize(
    ("text", "line", "what", "remedy"),
    [
        ("", 1, "the file is empty", "name at least the agents"),
        ("# nothing\n", 1, "the file is empty", "name at least the agents"),
        ("- a\n", 1, "the file is a list", "give 'key: value' lines"),
        ("alice\n", 1, "the file is a text", "give 'key: value' lines"),
        ("default: a\n", 1, "'agents' is missing", "agents: [alice, bob]"),
        (b"agents:\n- \xff\n", 2, "the file is not UTF-8", "save it as UTF-8"),
        ("agents:\n\t- a\n", 2, "there is a tab", "indent with spaces"),
        ("agents:\n- a\x07\n", 2, "control character U+0007", "leave it out"),
        ("agents:\n- \ud800\n", 2, "the file is not UTF-8", "save it as UTF-8"),
        ("agents: [a\n", 2, "this is not YAML", "correct it"),
        ("agents: @a\n", 1, "begins with '@' is not in quotes", "put it in quotes"),
        ("agents: [a]\ndefault: a: b\n", 2, "': ' stands", "put text that holds ': ' in quotes"),
        ("agents: [a]\n---\nteam: b\n", 2, "a second document", "leave its '---' out"),
        ("x: " + "[" * 30, 1, "over 20 deep", "5 levels are enough"),
        ("x: " + "{a: " * 100_000, 1, "over 20 deep", "5 levels are enough"),
        ("? [a]\n: b\n", 1, "where a key belongs", "give a name"),
        ("agents: &all [a]\n", 1, "'&all' is an anchor", "write the value out"),
        ("agents: [a, *all]\n", 1, "'*all' is an alias", "in quotes"),
        ("agents: !!set {a}\n", 1, "tags are not allowed", "leave it out"),
        ("agents: !!python/object/apply:os.system [ls]\n", 1, "tags are not allowed", "leave"),
        (team("rules:\n- match: *a*\n  to: bob\n"), 3, "not in quotes", '"*deploy*"'),
        (team("team: a\nteam: b\n"), 3, "'team' is given twice, first in line 2", "keep one"),
        ("agents:\n  a:\n  a:\n", 3, "'a' is given twice, first in line 2", "keep one"),
        (team("incomming: x\n"), 2, "the key 'incomming' is unknown", "did you mean 'incoming'?"),
        (team("<<: {team: x}\n"), 2, "the key '<<' is unknown", "known: 'incoming'"),
        (team("incoming:\n"), 2, "the incoming is empty", "at least one character"),
        (team("incoming: agent.bob\n"), 1, "is the one at which tasks come in", "rename"),
        (team("team: [x]\n"), 2, "the team is a list", "give it as text"),
        ("agents: []\n", 1, "'agents' is an empty list", "a list of names"),
        ("agents:\n", 1, "'agents' is empty", "a list of names"),
        ("agents: alice\n", 1, "'agents' is 'alice'", "a list of names"),
        ("agents: [a, a]\n", 1, "the agent 'a' is named twice", "name it once"),
        ("agents: ['']\n", 1, "the agent is empty", "at least one character"),
        ('agents: ["a\\nb"]\n', 1, "holds the control character U+000A", "leave it out"),
        (f"agents: [{'a' * 257}]\n", 1, "has 257 bytes", "at most 256"),
        (f"agents: [{'a' * 253}]\n", 1, "the queue 'agent.aaa", "shorten its name"),
        ("agents:\n  a: 5\n", 2, "the agent 'a' is '5'", "{limit: 10/min}"),
        ("agents:\n  a: {limits: 5}\n", 2, "'limits' of the agent 'a' is unknown", "'limit'?"),
        ("agents:\n  a: {limit: 5}\n", 2, "is '5'", "N/min"),
        (team("rules:\n"), 2, "'rules' is empty", "give a list of rules"),
        (team("rules: []\n"), 2, "'rules' is an empty list", "give a list of rules"),
        (team("rules:\n- 5\n"), 3, "rule 1 is '5'", "give 'work_type: ...' and 'to: ...'"),
        (team("rules:\n- to: bob\n"), 3, "rule 1 has neither 'work_type' nor 'match'", "one of"),
        (
            team("rules:\n- {work_type: x, match: y, to: bob}\n"),
            *(3, "rule 1 has both 'work_type' and 'match'", "give one of the two"),
        ),
        (team("rules:\n- work_type: x\n"), 3, "rule 1 has no 'to'", "name the agent"),
        (
            team("rules:\n- {work_type: x, to: []}\n"),
            3,
            "'to' of rule 1 is an empty list",
            "one name",
        ),
        (
            team("rules:\n- {work_type: [], to: bob}\n"),
            3,
            "'work_type' of rule 1 is an",
            "one name",
        ),
        (
            team("rules:\n- {match: {}, to: bob}\n"),
            3,
            "'match' of rule 1 is an empty map",
            "pattern",
        ),
        (team("rules:\n- {match: [a], to: bob}\n"), 3, "'match' of rule 1 is a list", "pattern"),
        (team("rules:\n- {match: '', to: bob}\n"), 3, "the pattern is empty", "at least one"),
        (
            team("rules:\n- {match: {a..b: x}, to: bob}\n"),
            3,
            "'a..b' has an empty part",
            "work_item",
        ),
        (team("rules:\n- {match: {a: [x]}, to: bob}\n"), 3, "the pattern is a list", "as text"),
        (
            team("rules:\n- work_type: x\n  to: bbo\n"),
            4,
            "the agent 'bbo' is not under 'agents'",
            "'bob'?",
        ),
        (
            team("rules:\n- {work_type: x, to: [bob, bob]}\n"),
            3,
            "names the agent 'bob' twice",
            "once",
        ),
        (team("rules:\n- {work_type: [x, x], to: bob}\n"), 3, "work type 'x' twice", "once"),
        (team("rules:\n- {work_type: x, to: bob, by: luck}\n"), 3, "is 'luck'", "round_robin"),
        (team("rules:\n- {work_type: x, too: bob, to: bob}\n"), 3, "'too' of rule 1", "'to'?"),
        (
            team("rules:\n- {work_type: [x, y], to: bob}\n- {work_type: x, to: alice}\n"),
            *(4, "rule 2 is never reached: 'x' is taken by rule 1 (line 3)", "remove it"),
        ),
        (
            team("rules:\n- {match: '*a*', to: bob}\n- {match: {x: y, task: 'cab*'}, to: bob}\n"),
            *(4, "rule 2 is never reached: rule 1 (line 3) matches all", "put it before"),
        ),
        (
            team("rules:\n- {match: {a: x, b: y}, to: bob}\n- {match: {b: Y, a: X}, to: bob}\n"),
            *(4, "rule 2 is never reached: rule 1 (line 3) matches all", "put it before"),
        ),
        (team("default:\n"), 2, "'default' is empty", "leave it out"),
        (
            team("default: none\n"),
            2,
            "the agent 'none' is not under 'agents'",
            "add it under 'agents'",
        ),
        (team("default: {too: bob}\n"), 2, "the key 'too' of 'default' is unknown", "'to'?"),
        (team("limits: 5\n"), 2, "'limits' is '5'", "'agent', 'type'"),
        (team("limits: {agents: on}\n"), 2, "the key 'agents' of 'limits'", "'agent'?"),
        (team("limits: {agent: 0/min}\n"), 2, "is '0/min'", "'on' for 10/min"),
        (team("limits: {agent: 1_0/min}\n"), 2, "'1_0/min'", "N/min"),
        (team("limits: {agent: 10/day}\n"), 2, "'10/day'", "N/h"),
        (team("limits: {type: [x]}\n"), 2, "'limits.type' is a list", "a map of work types"),
        (team("limits: {type: {x: on}}\n"), 2, "'limit' of the work type 'x'", "'off'"),
        (team("loops: {depth: 0}\n"), 2, "'loops.depth' is '0'", "a whole number from 1 to 100"),
        (
            team("loops: {depth: 0x10}\n"),
            2,
            "'loops.depth' is '0x10'",
            "a whole number from 1 to 100",
        ),
        (team("loops: {window: 1_000}\n"), 2, "'loops.window' is '1_000'", "such as 30m"),
        (team("dedup: never\n"), 2, "'dedup' is 'never'", "such as 30m"),
        (team("dedup: 0\n"), 2, "'dedup' is '0'", "at least 1"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_a_remedy(text, line, what, remedy):
    found = told(text)

    assert any(at == line and what in said and remedy in do for at, said, do in found), found


def test_all_mistakes_are_told_at_once():
    text = team("teem: x\nrules:\n- work_type: x\n  to: bbo\n- match: y\ndedup: soon\n")

    with pytest.raises(ConfigError) as refusal:
        parse(text, "team.yaml")

    assert [line for line, _, _ in told(text)] == [2, 5, 6, 7]
    for line in (2, 5, 6, 7):
        assert f"team.yaml:{line}: " in refusal.value.message
    assert refusal.value.message.startswith("4 problems: team.yaml:2: the key 'teem'")
    assert "(did you mean 'team'?)" in refusal.value.message


def test_a_single_mistake_has_its_remedy_as_the_hint():
    with pytest.raises(ConfigError) as refusal:
        parse(team("teem: x\n"), "team.yaml")

    assert refusal.value.message == "team.yaml:2: the key 'teem' is unknown"
    assert refusal.value.hint == "did you mean 'team'?"
    assert refusal.value.exit_code == 2


def test_an_agent_that_could_not_be_read_is_not_told_once_more_as_unknown():
    assert len(told('agents: [a, "b\\n"]\ndefault: b\n')) == 1
    assert len(told("agnts: [b]\ndefault: b\n")) == 2


def test_aliases_that_grow_are_refused_before_they_do():
    laughs = "a: &a [x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
    )

    assert [(line, said) for line, said, _ in told(laughs)] == [
        (1, "'&a' is an anchor, and anchors are not allowed")
    ]


def test_a_text_that_is_too_large_is_refused():
    assert "over 1048576 bytes" in told("#" * (1024 * 1024 + 1))[0][1]


@given(text=st.one_of(st.text(max_size=60), st.binary(max_size=60)))
def test_whatever_is_no_file_of_rules_is_refused_in_a_sentence(text: str | bytes):
    with pytest.raises(ConfigError) as refusal:
        parse(text, "téam\n.yaml")

    assert str(refusal.value).isascii()
    assert str(refusal.value).isprintable()
    assert refusal.value.hint


parts = st.sampled_from(
    [
        *("agents", "rules", "default", "limits", "loops", "to", "by", "work_type", "match", "on"),
        *(
            ": ",
            "\n",
            "\n  ",
            "\n- ",
            "- ",
            "[a, b]",
            "{",
            "}",
            "a",
            "b",
            "'*a'",
            "10/min",
            "*",
            "&x ",
        ),
    ]
)


@given(text=st.lists(parts, max_size=25).map("".join))
def test_whatever_looks_like_rules_is_read_or_refused(text: str):
    try:
        rules = parse(f"agents: [a, b]\n{text}")
    except ConfigError:
        return
    rules.explain({"task": "a", "type": "a"})


# -- from a file --


def test_rules_are_loaded_from_a_file(tmp_path: pathlib.Path):
    path = tmp_path / "team.yaml"
    path.write_text(TEAM)

    rules = load(path)

    assert rules.path == str(path)
    assert rules.digest == parse(TEAM).digest
    assert rules.route({"type": "build"}).agents == ("bob",)


def test_a_mistake_in_a_file_is_told_with_its_path(tmp_path: pathlib.Path):
    path = tmp_path / "team.yaml"
    path.write_text(team("teem: x\n"))

    with pytest.raises(ConfigError, match=r"team\.yaml:2: the key 'teem' is unknown"):
        load(path)


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "large", "no path"])
def test_a_file_that_cannot_be_read_is_told(kind: str, tmp_path: pathlib.Path):
    path = tmp_path / "team.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"#" * (1024 * 1024 + 1))

    with pytest.raises(ConfigError, match=r"the rules file .*team\.yaml"):
        load("team.yaml\0" if kind == "no path" else path)
