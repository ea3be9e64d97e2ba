"""The two readers of command lines: what the small one takes, click reads the same way."""

from __future__ import annotations

import re
import shlex
from unittest import mock

import pytest
from hypothesis import example, given, strategies as st

from agentbus.commands import _click, _declare, _main
from agentbus.commands._declare import GLOBAL, VERBS, Param, module
from agentbus.commands._parser import parse
from tests import inprocess
from tests.profiles import times

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

WORDS = [
    *("hi", "build", "", "-", "--", "@x", "@", "a b", "=", "a=b", "-5", "-0.5", "0", "7", "1.5", "30m"),
    *("-h", "--help", "--version", "-x", "--json=1", "---", "--=x", "satisfied", "free", "a,b", ",", "é"),
    *("--flag", "--tag", "--until", "--top", "--force=", "--agen", "\n", "ms", "9" * 20, "²", "None"),
    *("--no-json", "-j", "--topic=", "--topic", "--json", "start", "bash", "--msg", "--ttl"),
]  # fmt: skip
# Imported here: hypothesis refuses the modules that seed a generator while it draws.
DECLARED = [module(name).VERB for name in VERBS]
words = st.sampled_from(WORDS) | st.sampled_from(VERBS) | st.text(max_size=4)


def values_of(param: Param) -> st.SearchStrategy[str]:
    if param.choices:
        return st.sampled_from([*param.choices, *param.choices, "other"])
    if param.convert is _declare.seconds:
        return st.sampled_from(["5", "1.5", "30m", "250ms", "-5", "x", ""])
    if param.convert is _declare.whole:
        return st.sampled_from(["0", "3", "-3", "x", "", "9" * 20])
    return words


@st.composite
def pieces(draw, params: tuple[Param, ...]) -> list[str]:
    """Draw an option with its value, a value alone, or noise."""
    param = draw(st.sampled_from(params))
    if not param.names:
        return [draw(values_of(param))]
    name = draw(st.sampled_from(param.names))
    shape = draw(st.sampled_from(["apart", "apart", "apart", "joined", "alone"]))
    if param.flag:
        return [name if shape != "joined" else f"{name}={draw(words)}"]
    if shape == "alone":
        return [name]
    value = draw(values_of(param))
    return [name, value] if shape == "apart" else [f"{name}={value}"]


@st.composite
def command_lines(draw) -> list[str]:
    verb = draw(st.sampled_from(DECLARED))
    before = draw(st.lists(pieces(GLOBAL), max_size=2))
    after = draw(st.lists(pieces((*verb.params, *verb.params, *GLOBAL)), max_size=5))
    line = [word for piece in before for word in piece] + [verb.name]
    line += [word for piece in after for word in piece]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        line.insert(draw(st.integers(0, len(line))), draw(words))
    return line


TALLY = {"lines": 0, "taken": 0}


@times(6)
@given(line=command_lines())
@example(line=["speak", "--", "--topic", "x"])
@example(line=["--json", "speak", "--json", "hi", "--agent", "a", "--agent", "b"])
@example(line=["--agent", "a", "speak", "hi", "--agent", "b"])
@example(line=["speak", "--msg", "", "hi"])
@example(line=["jot", "", ""])
@example(line=["await", "a", "--flag", "b", "c", "--until=free"])
@example(line=["hold", "x", "--", "make", "--json"])
@example(line=["overhear", "--topic=", "--topic", "a"])
def test_click_reads_whatever_the_small_reader_takes_as_it_does(line):
    TALLY["lines"] += 1
    taken = parse(line)
    if taken is None:
        return
    TALLY["taken"] += 1
    verb, values, loaded = taken

    found = _click.read(line, json=False)

    assert isinstance(found, tuple), found
    assert found[0] is verb
    assert found[1] == values
    assert {key: type(value) for key, value in found[1].items()} == {
        key: type(value) for key, value in values.items()
    }
    assert found[2] is loaded


@given(line=command_lines() | st.lists(words, max_size=6))
@example(line=[])
@example(line=["--help"])
@example(line=["speka"])
@example(line=["speak", "--help"])
def test_what_the_small_reader_declines_click_deals_with(line):
    if parse(line) is not None:
        return
    called = []
    with mock.patch.object(_main, "call", lambda *found: called.append(found) or 0):
        done = inprocess.run(*line)

    said = done.err.decode()
    assert "Traceback" not in said
    assert "unexpectedly" not in said
    if called:
        assert set(called[0][1]) >= {param.dest for param in (*GLOBAL, *called[0][0].params)}
    else:
        assert done.code in {0, 2}
        assert (done.code == 0) == (done.err == b"")
        assert (done.code == 0) == (done.out != b"")


def test_a_mistake_is_a_sentence_and_a_hint():
    done = inprocess.run("speak", "--topik", "x")

    assert done.code == 2
    first, second = done.err.decode().splitlines()
    assert first.startswith("agentbus: ")
    assert "--topik" in first
    assert second == "hint: see 'agentbus speak --help'"


def test_a_mistake_with_json_is_one_object():
    done = inprocess.run("speka", "--json")

    assert done.code == 2
    assert done.err.count(b"\n") == 1
    assert re.match(rb'\{"error": "there is no verb .speka.*", "code": 2, "hint": ', done.err)


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_has_examples_that_can_be_read(name):
    done = inprocess.run(name, "--help")
    verb = module(name).VERB

    assert done.code == 0
    shown = done.out.decode()
    assert "Examples:" in shown
    assert verb.summary in shown
    for param in verb.params:
        for spelling in param.names:
            assert spelling in shown
    assert verb.examples
    for text in verb.examples:
        assert text in shown
        line = arguments(text)
        read = _click.read(line, json=False)
        assert isinstance(read, tuple), text
        assert read[0] is verb
        taken = parse(line)
        assert taken is None or taken[1] == read[1]


def arguments(text: str) -> list[str]:
    """Return what the shell would hand to the `agentbus` in an example."""
    inner = re.search(r"\$\((agentbus [^)]*)\)", text)
    parts = shlex.split(inner.group(1) if inner else text, comments=True)
    start = parts.index("agentbus") + 1
    end = next(
        (
            i
            for i, part in enumerate(parts)
            if i > start and part in ("|", "&&", ";", "<", ">", ">>")
        ),
        len(parts),
    )
    return parts[start:end]


def test_the_help_names_every_verb_and_every_exit_code():
    shown = inprocess.run("--help").out.decode()

    for name in VERBS:
        assert re.search(rf"^  {re.escape(name)} ", shown, re.MULTILINE)
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 130):
        assert re.search(rf"^  {code} ", shown, re.MULTILINE)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("param", GLOBAL, ids=lambda param: param.dest)
def test_global_options_are_accepted_before_and_after_the_verb(param, before):
    value = [] if param.flag else [(*param.choices, "5")[0]]
    for spelling in param.names:
        option = [spelling, *value]
        line = [*option, "whoami"] if before else ["whoami", *option]

        taken = parse(line)
        read = _click.read(line, json=False)

        assert taken is not None
        assert isinstance(read, tuple)
        assert taken[1] == read[1]
        assert taken[1][param.dest] == (True if param.flag else param.read(*value))


def test_json_can_be_asked_for_as_a_format():
    as_format = ["--format", "json"]

    assert inprocess.run("whoami", *as_format) == inprocess.run("whoami", "--json")
    assert inprocess.run(*as_format, "whoami") == inprocess.run("whoami", "--json")


@pytest.mark.parametrize("line", [["speka", "--format", "json"], ["--format=json", "recall"]])
def test_a_mistake_with_the_format_json_is_one_object(line):
    assert inprocess.run(*line).err.startswith(b'{"error": ')


def test_the_format_text_overrides_the_environment(monkeypatch):
    monkeypatch.setenv("AGENTBUS_JSON", "1")

    assert inprocess.run("whoami", "--format", "text").out.startswith(b"agent ")
    assert inprocess.run("recall", "--format", "text").err.startswith(b"agentbus: ")


def test_the_hot_verbs_are_read_without_click():
    lines = [
        ["speak", "hi", "--topic", "build"],
        ["overhear", "--topic", "build", "--json"],
        ["announce", "building", "--ttl", "60"],
        ["satisfy", "building", "--note=done"],
        ["recall", "how"],
        ["jot", "how", "make", "--tag", "a,b"],
        ["await", "building", "--timeout", "0"],
    ]

    assert [line for line in lines if parse(line) is None] == []


def test_the_help_of_all_has_each_verb_with_its_summary():
    shown = " ".join(inprocess.run("--help").out.decode().split())

    assert [name for name in VERBS if f"{name} {module(name).VERB.summary}" not in shown] == []
