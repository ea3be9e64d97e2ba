"""Command lines as nobody should type them: of any verb, with any text in any place."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from agentbus.commands._declare import Param, Verb
from tests.hostile import hostile

# What would start a server of its own, or write where no test may, has its values chosen here.
CHOSEN: dict[tuple[str, str], list[str]] = {
    ("server", "action"): ["status", "stop", "repair", "", "nowhere"],
    ("metrics", "host"): ["127.0.0.1", "::1", "", "nowhere.invalid."],
    ("metrics", "serve"): ["0", "-1", "65536", "x", "0x10"],
    **{
        (verb, "database"): ["sqlite:///x.db", "sqlite://", "x", "://", "sqlite:///", "no:such"]
        for verb in ("events", "outbox", "consume", "supervise")
    },
    **{
        (verb, "module"): ["json", "nowhere", "a.b", "", ".", "é"]
        for verb in ("consume", "supervise")
    },
    ("work", "handler"): ["json:loads", "json:nowhere", "nowhere:x", ":", "json", ""],
    ("work", "command"): ["/bin/true", "/bin/false", "nowhere", "-", ""],
    ("hold", "command"): ["/bin/true", "/bin/false", "nowhere", "-", ""],
}
PLAUSIBLE = [
    *("mail", "building", "how", "default", "ada", "a,b", "k=v", "=", "json", "shop.x", "x.yaml"),
    *("0", "1", "-1", "0.01", "5", "1e3", "1e309", "-0", "nan", "inf", "1_0", "٣", "9" * 30, "9" * 400),
    *("0-0", "1-1", "1-1@mail", "d1@mail", f"{2**64}-0", "1-1@mail:low", "@", "@mail", "1-1@q:x:y"),
    *("30m", "5s", "1d", "2024-01-20T15:30:00Z", "2024-13-45", "now", "0001-01-01T00:00:00+23:59"),
    *("1", "{}", "[]", '{"a": 1}', "NaN", '"\\ud800"', "[" * 5000, "1" * 5000, '{"a":1,"a":2}'),
    *("-", "@f", "@", "@.", "@nowhere", "--", "-h", "--help", "-x", "--js", "--json", "--agent=x"),
]  # fmt: skip
# One may write where one stands, below which all is the test's, and nowhere else.
_texts = hostile.map(lambda text: text.replace("/", "./"))
_spelled = st.sampled_from(PLAUSIBLE) | _texts


def verb(name: str) -> Verb:
    """Return a verb's declaration."""
    module = import_module(
        f"agentbus.commands.{ {'list': 'list_', 'await': 'await_'}.get(name, name) }"
    )
    declared: Verb = module.VERB
    return declared


def _value(verb: str, param: Param) -> st.SearchStrategy[str]:
    if (verb, param.dest) in CHOSEN:
        return st.sampled_from(CHOSEN[verb, param.dest])
    if param.choices:
        return st.sampled_from(param.choices) | st.sampled_from(param.choices) | _spelled
    return _spelled


def _words(verb: str, param: Param) -> st.SearchStrategy[list[str]]:
    """Return what may be typed for one parameter."""
    value = _value(verb, param)
    if not param.names:
        return st.lists(value, max_size=2) if param.many else value.map(lambda text: [text])
    name = st.sampled_from(param.names)
    if param.flag:
        return name.map(lambda text: [text]) | st.tuples(name, value).map(
            lambda two: ["=".join(two)]
        )
    return st.tuples(name, value).flatmap(
        lambda two: st.sampled_from([["=".join(two)], [*two], [two[0][:-1], two[1]], [two[0]]])
    )


def lines(name: str) -> st.SearchStrategy[list[str]]:
    """Return what may be typed after a verb."""
    params = verb(name).params
    arguments = st.tuples(*(_words(name, one) for one in params if not one.names))
    options = [_words(name, one) for one in params if one.names]
    # Where values are chosen with care, no free text may come to stand in their place.
    careful = any((name, one.dest) in CHOSEN and not one.names for one in params)
    noise = st.sampled_from([["--json"], ["--"], ["--nowhere"], ["-"]])
    if not careful:
        noise |= _spelled.map(lambda text: [text])
    extra = (
        st.lists(st.one_of(*options, noise), max_size=3) if options else st.lists(noise, max_size=2)
    )
    return st.tuples(arguments, extra).flatmap(
        lambda two: st.permutations([*two[0], *two[1]]).map(
            lambda parts: [word for part in parts for word in part]
        )
    )


def shown(argv: list[str]) -> Any:
    """Return a command line as a message can show it."""
    return [word if len(word) < 80 else f"{word[:40]}… ({len(word)})" for word in argv]
