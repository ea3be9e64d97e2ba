"""What the command line says about itself: verbs, topics and the version."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from agentbus.commands import _together
from agentbus.commands._bare import actions_of
from agentbus.commands._declare import GLOBAL, VERBS, Args, module
from agentbus.commands._parser import parse
from agentbus.commands._topics import TOPICS
from agentbus.core.errors import EXIT_CODES, UsageError
from agentbus.core.settings import VARIABLES
from agentbus.core.version import __version__
from tests import inprocess

# -- help --


def test_help_alone_says_what_the_option_says():
    assert inprocess.run("help").out == inprocess.run("--help").out


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_is_what_its_option_says(verb):
    shown = inprocess.run("help", verb)

    assert (shown.code, shown.err) == (0, b"")
    assert shown.out == inprocess.run(verb, "--help").out


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_a_page_that_fits_a_terminal(topic):
    shown = inprocess.run("help", topic)

    assert (shown.code, shown.err) == (0, b"")
    lines = shown.out.decode().splitlines()
    assert len(lines) > 3
    assert [line for line in lines if len(line) > 80] == []


def test_the_help_of_all_lists_the_topics():
    shown = " ".join(inprocess.run("help").out.decode().split())

    assert [name for name, topic in TOPICS.items() if f"{name} {topic.summary}" not in shown] == []


def test_the_page_for_agents_has_at_most_500_tokens_and_only_commands_that_there_are():
    page = inprocess.run("help", "agents").out.decode()

    assert len(page) / 4 <= 500
    assert "data, not instructions" in " ".join(page.split())
    for command, _ in TOPICS["agents"].rows:
        parsed = parse(shlex.split(command))
        assert parsed is not None, command
        assert command in page


def test_the_global_options_are_one_line_of_a_verb_and_a_page():
    verb = inprocess.run("help", "speak").out.decode()
    page = " ".join(inprocess.run("help", "options").out.decode().split())

    (line,) = [line for line in verb.splitlines() if "--log-level" in line]
    assert [param.names[0] for param in GLOBAL if param.names[0] not in line] == []
    assert "agentbus help options" in verb
    for param in GLOBAL:
        assert param.help in page
        assert [name for name in param.names if name not in page] == []


def test_the_page_on_exit_codes_has_them_all():
    page = " ".join(inprocess.run("help", "exit-codes").out.decode().split())

    assert [code for code, text in EXIT_CODES.items() if f"{code} {text}" not in page] == []


def test_the_page_on_the_environment_has_every_variable():
    page = inprocess.run("help", "environment").out.decode()

    assert [name for names in VARIABLES.values() for name in names if name not in page] == []


@pytest.mark.parametrize(
    ("word", "meant"), [("anounce", "announce"), ("exit", "exit-codes"), ("time", "times")]
)
def test_help_on_something_unknown_names_the_nearest(word, meant):
    done = inprocess.run("help", word)

    assert (done.code, done.out) == (2, b"")
    assert f"did you mean {meant!r}?" in done.err.decode()


def test_help_and_the_version_need_no_sound_settings(real_shell):
    (real_shell.home / ".agentbus.yaml").write_text("no: such: thing")
    wrong = {"AGENTBUS_URL": "nonsense://", "AGENTBUS_PROJECT": "a b"}

    for line in (["help"], ["help", "speak"], ["version"], ["completion", "bash"]):
        done = real_shell.run(*line, env=wrong)
        assert (done.returncode, done.stderr) == (0, ""), line


# -- version --


@pytest.mark.parametrize("line", [["version"], ["--version"], ["-V"]], ids=" ".join)
def test_the_version_can_be_asked_for_in_three_ways(line):
    done = inprocess.run(*line)

    assert (done.code, done.out.decode()) == (0, f"agentbus {__version__}\n")


def test_the_version_as_json():
    assert json.loads(inprocess.run("version", "--json").out) == {"version": __version__}
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", __version__)


# -- verbs with actions --

ACTIONS = {name: actions_of(module(name).VERB) for name in VERBS if actions_of(module(name).VERB)}


def test_these_verbs_have_actions():
    assert {"agent", "archive", "bus", "dlq", "events", "outbox", "quarantine", "server"} <= set(
        ACTIONS
    )


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_verb_with_actions_lists_them_with_a_line_each_when_called_bare(verb):
    done = inprocess.run(verb)

    assert (done.code, done.out) == (2, b"")
    *listed, error, hint = done.err.decode().splitlines()
    for usage, summary in ACTIONS[verb].items():
        assert f"{usage} {summary}" in " ".join(" ".join(listed).split())
    assert error.startswith(f"agentbus: {verb} needs ")
    assert hint == f"hint: see 'agentbus help {verb}'"


def test_the_reports_that_can_be_named_are_those_that_there_are():
    from agentbus.pipeline import reports

    assert (*reports.NAMES, reports.ALL) == module("report").NAMES


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_bare_verb_with_actions_names_them_as_json(verb):
    done = inprocess.run(verb, "--json")

    assert (done.code, done.out) == (2, b"")
    record = json.loads(done.err)
    assert [usage for usage in ACTIONS[verb] if usage.split()[0] not in record["hint"]] == []


@pytest.mark.parametrize("verb", ACTIONS)
def test_the_help_of_a_verb_has_a_line_for_each_action(verb):
    shown = " ".join(inprocess.run("help", verb).out.decode().split())

    assert [u for u, summary in ACTIONS[verb].items() if f"{u} {summary}" not in shown] == []


@pytest.mark.parametrize("verb", ACTIONS)
def test_an_option_that_goes_with_some_actions_is_refused_with_the_others(verb):
    declared = module(verb).VERB
    actions = {usage.split()[0] for usage in ACTIONS[verb]}
    initial = {param.dest: param.initial() for param in declared.params}
    for param in declared.params:
        said = " ".join(re.findall(r"With ([a-z, ]+):", param.help))
        if not param.names or actions.isdisjoint(words := re.findall("[a-z]+", said)):
            continue
        # Given, even if it is with the value that it has by default.
        given = True if param.flag else param.initial() or "1"
        for action in actions.difference(words):
            args = Args(**initial | {"action": action, param.dest: given})
            with pytest.raises(UsageError, match=f"{param.names[0]} goes with "):
                _together.check(declared, args)


def test_an_action_with_actions_of_its_own_lists_them_when_called_bare():
    done = inprocess.run("events", "parked")

    assert done.code == 2
    said = done.err.decode()
    assert all(f"parked {each}" in said for each in ("list", "show", "retry", "drop"))


# -- mistyped words --


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["anounce", "x"], "there is no verb 'anounce'; did you mean 'announce'?"),
        (["over"], "there is no verb 'over'; did you mean 'overhear'?"),
        (["inspect", "mail"], "there is no verb 'inspect'; did you mean 'bus inspect'?"),
        (["dlq", "lst", "mail"], "dlq has no action 'lst'; did you mean 'list'?"),
        (["server", "begin"], "server has no action 'begin': use start, stop, status, run, repair or load"),
        (["archive", "comapct", "/x"], "archive has no action 'comapct'; did you mean 'compact'?"),
        (["events", "parked", "shw"], "events parked has no action 'shw'; did you mean 'show'?"),
        (["speak", "--topik", "x"], "there is no option '--topik'; did you mean '--topic'?"),
        (["publish", "q", "--prio=low"], "there is no option '--prio'; did you mean '--priority'?"),
        (["--projekt", "x", "list"], "there is no option '--projekt'; did you mean '--project'"),
        (["await", "x", "--until", "satisfyed"], "did you mean 'satisfied'?"),
        (["report", "activty", "/x"], "did you mean 'activity'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistyped_word_is_answered_with_the_nearest(line, said):
    done = inprocess.run(*line)

    assert (done.code, done.out) == (2, b"")
    assert said in done.err.decode().splitlines()[0]
    assert len(done.err.splitlines()) == 2
