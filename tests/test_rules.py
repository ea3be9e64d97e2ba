"""Rules of routing: where a task goes, why, and what is said of a file that is wrong."""

from __future__ import annotations

import fnmatch
import json
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentbus.routing import Agent, Choice, Glob, Rules, Target, check, parse
from agentbus.routing.glob import fold
from tests import profiles  # noqa: F401 (loads the profile)

TEAM = """\
agents: [alice, bob, carol, dan]
rules:
  - match: "*deploy*"
    to: alice
  - work_type: build
    to: bob
  - work_type: [docs, review]
    to: [bob, carol]
    by: round_robin
  - match: {task: "*ios*", work_item.repo: "infra-*"}
    to: carol
default: dan
"""


def routed(task: object, text: str = TEAM) -> Choice:
    return parse(text, "team.yaml").route(task)


def team(rest: str) -> str:
    return f"agents: [alice, bob]\n{rest}"


# -- where a task goes --


def test_an_agent_id_decides_before_all_else():
    choice = routed({"agent_id": "dan", "type": "build", "task": "deploy"})

    assert (choice.agents, choice.how, choice.rule) == (("dan",), "agent_id", None)
    assert choice.work_type == "build"
    assert choice.reason == "agent_id 'dan' is an agent of the rules"


@pytest.mark.parametrize("asked", ["eve", "ALICE", " alice", 7, True, ["alice"], {"a": 1}])
def test_an_agent_id_that_names_no_agent_goes_nowhere(asked):
    choice = routed({"agent_id": asked, "type": "build"})

    assert (choice.agents, choice.how) == ((), "none")
    assert "names no agent" in choice.reason


@pytest.mark.parametrize("asked", ["", None])
def test_an_agent_id_without_text_is_none(asked):
    assert routed({"agent_id": asked, "type": "build"}).agents == ("bob",)


def test_a_work_type_comes_before_patterns_whatever_their_order_in_the_file():
    choice = routed({"type": "build", "task": "deploy"})

    assert (choice.agents, choice.how, choice.work_type) == (("bob",), "work_type", "build")
    assert choice.rule is not None
    assert (choice.rule.number, choice.rule.line) == (2, 5)
    assert choice.reason == "work_type 'build' matches rule 2 (line 5)"


def test_several_agents_are_chosen_among_as_the_rule_says():
    choice = routed({"type": "review"})

    assert (choice.agents, choice.by) == (("bob", "carol"), "round_robin")
    assert routed({"type": "build"}).by == "backlog"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"type": "build", "work_type": "docs"}, "build"),
        ({"work_type": "docs"}, "docs"),
        ({"type": "", "work_type": "docs"}, "docs"),
        ({"type": None, "work_type": "docs"}, "docs"),
        ({"type": ["x"], "work_type": "docs"}, "docs"),
        ({"type": 5}, "5"),
        ({"type": False}, "false"),
        ({}, None),
        ("build", None),
        (["build"], None),
    ],
)
def test_the_work_type_is_the_type_or_else_the_work_type(task, expected):
    assert routed(task).work_type == expected


@pytest.mark.parametrize(
    "task", [{"task": "please DEPLOY\nit now"}, "Deploy!", {"task": "deploy", "type": "odd"}]
)
def test_a_pattern_is_held_against_the_whole_text_letter_case_aside(task):
    choice = routed(task)

    assert (choice.agents, choice.how) == (("alice",), "match")
    assert choice.reason == "task like '*deploy*' matches rule 1 (line 3)"


@pytest.mark.parametrize(
    ("work_item", "agent"),
    [
        ({"repo": "infra-x"}, "carol"),
        ('{"repo": "INFRA-x"}', "carol"),
        ({"repo": "app"}, "dan"),
        ("no json", "dan"),
        ("", "dan"),
        (None, "dan"),
        (7, "dan"),
    ],
)
def test_all_fields_of_a_match_must_fit_and_dots_go_into_objects(work_item, agent):
    assert routed({"task": "for iOS", "work_item": work_item}).agents == (agent,)


def test_what_no_program_can_take_apart_has_no_fields():
    deep, long = "[" * 100_000, f'{{"repo": {"1" * 5_000}}}'

    for work_item in (deep, long):
        assert routed({"task": "for iOS", "work_item": work_item}).agents == ("dan",)
    assert routed({"task": 10**5_000}).agents == ("dan",)


@pytest.mark.parametrize(
    ("value", "pattern", "fits"),
    [
        (True, "true", True),
        (5, "5", True),
        (5, "5.0", False),
        (1.5, "1.5", True),
        (None, "*", False),
        ({}, "*", False),
        (["a"], "*", False),
        ("", "*", True),
        ("STRASSE", "straße", True),
        ("ΟΔΟΣ", "οδος", True),
        ("a.b", "a?b", True),
        ("axb", "a.b", False),
        ("[x]", "[x]", True),
        ("a\\*", "a\\*", True),
    ],
)
def test_fields_are_compared_as_text(value, pattern, fits):
    text = f"agents: [a]\nrules:\n  - match: {{x.y: {json.dumps(pattern)}}}\n    to: a\n"

    assert bool(routed({"x": {"y": value}}, text).agents) == fits


def test_what_no_rule_matches_goes_to_the_default():
    choice = routed({"type": "odd", "task": "sing"})

    assert (choice.agents, choice.how, choice.work_type) == (("dan",), "default", "odd")
    assert choice.reason == "no rule matches: the default"


@pytest.mark.parametrize("task", [{"task": "sing"}, {}, None, 5, [], "sing"])
def test_without_a_default_it_goes_nowhere(task):
    choice = routed(task, TEAM.replace("default: dan", ""))

    assert (choice.agents, choice.how, choice.rule) == ((), "none", None)
    assert choice.reason == "no rule matches, and there is no default"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bob", Target(("bob",))),
        ("[alice, bob]", Target(("alice", "bob"))),
        ("{to: [alice, bob], by: round_robin}", Target(("alice", "bob"), "round_robin")),
    ],
)
def test_a_default_may_be_one_of_several(given, expected):
    rules = parse(team(f"default: {given}\n"))

    assert rules.default == expected
    assert rules.route({}) == Choice(expected.agents, expected.by, "default")


def test_rules_can_be_made_without_a_file():
    rules = Rules(agents={"a": Agent("a", "agent.a")}, default=Target(("a",)))

    assert rules.route({"type": "x"}).agents == ("a",)


# -- the reference --


def reference(rules: list[dict[str, Any]], default: str | None, task: dict[str, str]) -> str | None:
    """Return the agent that a task goes to, in the five lines that the documentation says."""
    if asked := task.get("agent_id"):
        return asked if asked[0] == "a" else None
    typed = (rule["to"] for rule in rules if task.get("type") in rule.get("work_type", ()))
    fits = (
        r["to"] for r in rules if "match" in r and all(like(task, *m) for m in r["match"].items())
    )
    return next(typed, None) or next(fits, None) or default


def like(task: dict[str, str], field: str, pattern: str) -> bool:
    return field in task and fnmatch.fnmatchcase(task[field].lower(), pattern.lower())


def some(chance: random.Random, letters: str, most: int) -> str:
    return "".join(chance.choices(letters, k=chance.randint(1, most)))


def a_rule(chance: random.Random, number: int) -> dict[str, Any]:
    to = f"a{number}"
    if chance.random() < 0.5:
        kinds = {some(chance, "xyz", 3) for _ in range(chance.randint(1, 3))}
        return {"work_type": sorted(kinds), "to": to}
    fields = chance.sample(["task", "inbox_id", "priority"], k=chance.choice([1, 1, 2, 3]))
    return {"match": {field: some(chance, "ab*?B", 6) for field in fields}, "to": to}


def a_task(chance: random.Random) -> dict[str, str]:
    task = {
        field: some(chance, "abA", 5) for field in ("task", "inbox_id") if chance.random() < 0.9
    }
    if chance.random() < 0.6:
        task["type"] = some(chance, "xyzw", 3)
    if chance.random() < 0.1:
        task["agent_id"] = chance.choice(["a1", "a200", "zed"])
    return task


def written(rules: list[dict[str, Any]], default: str | None) -> str:
    """Return rules as a file, one in each line from the third."""
    lines = [f"agents: [{', '.join(f'a{n}' for n in range(201))}]", "rules:"]
    lines += [f"- {json.dumps(rule)}" for rule in rules]
    return "\n".join([*lines, f"default: {default}" if default else ""])


@given(seed=st.integers(0, 2**32), size=st.integers(1, 200))
def test_the_rules_agree_with_a_reference_of_five_lines(seed: int, size: int):
    chance = random.Random(seed)
    rules = [a_rule(chance, number) for number in range(size)]
    default = chance.choice([None, "a200"])

    problems = check(written(rules, default))
    # What is told never to be reached is left out, and nothing may change by that.
    assert all("is never reached" in problem.what for problem in problems)
    idle = {problem.line - 3 for problem in problems}
    kept = [rule for number, rule in enumerate(rules) if number not in idle]
    loaded = parse(written(kept, default))

    for _ in range(40):
        task = a_task(chance)
        expected = reference(rules, default, task)
        choice = loaded.route(task)
        assert choice.agents == ((expected,) if expected else ()), task
        explained = loaded.explain(task)
        assert explained.choice == choice
        assert [s.matched for s in explained.steps[:-1]] == [False] * (len(explained.steps) - 1)
        last = explained.steps[-1]
        assert (last.rule, last.reason) == (choice.rule, choice.reason)
        assert last.matched == (choice.agents != () or choice.asked is not None)


def test_an_explanation_tells_each_rule_that_was_looked_at_and_why():
    found = parse(TEAM).explain({"type": "odd", "task": "for ios", "work_item": "{}"})

    assert [(step.how, step.matched, step.reason) for step in found.steps] == [
        ("agent_id", False, "the task has no agent_id"),
        ("work_type", False, "rule 2 (line 5) is for 'build'; the task has work_type 'odd'"),
        (
            "work_type",
            False,
            "rule 3 (line 7) is for 'docs', 'review'; the task has work_type 'odd'",
        ),
        ("match", False, "rule 1 (line 3): task is 'for ios', not like '*deploy*'"),
        ("match", False, "rule 4 (line 10): the task has no text at work_item.repo"),
        ("default", True, "no rule matches: the default"),
    ]


def test_an_explanation_ends_with_what_decided():
    steps = parse(TEAM).explain({"type": "docs"}).steps
    asked = parse(TEAM).explain({"agent_id": "eve", "type": "docs"}).steps

    assert [(step.how, step.matched) for step in steps] == [
        ("agent_id", False),
        ("work_type", False),
        ("work_type", True),
    ]
    assert [(s.how, s.reason) for s in asked] == [
        ("agent_id", "agent_id 'eve' names no agent of the rules")
    ]


def test_the_first_of_ten_thousand_rules_that_names_a_work_type_counts():
    lines = "".join(f"  - {{work_type: [t{n}, t{n + 1}], to: alice}}\n" for n in range(10_000))
    rules = parse(team(f"rules:\n{lines}"))

    found = [rules.route({"type": f"t{n}"}).rule for n in (0, 1, 9_999, 10_000)]

    assert [rule.number for rule in found if rule] == [1, 1, 9_999, 10_000]


# -- patterns --


globs = st.text("ab?*", max_size=8)
texts = st.text("abA\n", max_size=12)


@given(pattern=globs, text=texts)
def test_a_pattern_matches_as_a_shell_would(pattern: str, text: str):
    expected = fnmatch.fnmatchcase(text.lower(), pattern.lower())

    assert Glob(pattern).matches(fold(text)) == expected


@given(wide=globs, narrow=globs, text=texts)
def test_what_covers_a_pattern_matches_all_that_it_does(wide: str, narrow: str, text: str):
    if Glob(wide).covers(Glob(narrow)) and Glob(narrow).matches(fold(text)):
        assert Glob(wide).matches(fold(text))


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("*", "*deploy*", True),
        ("*a*", "x*cab*y", True),
        ("a?", "ab", True),
        ("a*", "a?", True),
        ("A*", "a?b*", True),
        ("a?", "a*", False),
        ("*ab*", "*a*", False),
        ("a", "?", False),
    ],
)
def test_a_wider_pattern_covers_a_narrower_one(wide, narrow, covered):
    assert Glob(wide).covers(Glob(narrow)) == covered


@pytest.mark.parametrize(
    "pattern", ["*a" * 40 + "*b", "*a" * 40 + "*b*", "*a?" * 40 + "*b*", "*" + "a?" * 100 + "b*"]
)
def test_no_pattern_takes_for_ever(pattern):
    # With steps that are tried again and again this would not end before the sun does.
    assert not Glob(pattern).matches("a" * 100_000)
