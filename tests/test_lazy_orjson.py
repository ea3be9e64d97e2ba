"""What is encoded and decoded before `orjson` is imported is what `orjson` makes of it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from agentbus.core import lazy_orjson
from agentbus.core.json_text import Unsure, as_orjson
from tests import profiles  # noqa: F401 (loads the profile)


@dataclasses.dataclass
class Order:
    number: int


class Name(str):
    __slots__ = ()


def in_new_process(program: str) -> str:
    """Run a program that has not imported `orjson`, and return what it prints."""
    command = [
        sys.executable,
        "-c",
        f"import sys\nfrom agentbus.core import lazy_orjson\n{program}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_options_are_those_of_orjson():
    assert lazy_orjson.PLAIN == orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def test_the_first_small_values_do_without_orjson():
    said = in_new_process(
        "for n in range(100): assert lazy_orjson.loads(lazy_orjson.dumps({'a': [n, 'é', 1.5]}))\n"
        "print('orjson' in sys.modules)"
    )

    assert said == "False"


def test_a_process_that_goes_on_has_those_of_orjson():
    said = in_new_process(
        "for n in range(101): lazy_orjson.loads(lazy_orjson.dumps(n))\n"
        "import orjson\n"
        "print(lazy_orjson.dumps is orjson.dumps, lazy_orjson.loads is orjson.loads)"
    )

    assert said == "True True"


@pytest.mark.parametrize("option", [None, lazy_orjson.PLAIN, orjson.OPT_SORT_KEYS])
@pytest.mark.parametrize(
    "value",
    [Order(7), Name("ada"), {"b": 1, "a": [Name("x")]}, {1: 2}, 2**70, "\ud800", {"b": 1, "a": 2}],
    ids=repr,
)
def test_any_other_value_is_encoded_or_refused_as_by_orjson(monkeypatch, value, option):
    monkeypatch.delitem(sys.modules, "orjson")
    monkeypatch.setattr(lazy_orjson, "_encoded", 0)
    try:
        wanted: object = orjson.dumps(value, None, option)
    except TypeError as error:
        wanted = str(error)
    try:
        found: object = lazy_orjson._encode(value, None, option)
    except TypeError as error:
        found = str(error)

    assert found == wanted


def decoded(how: Any, text: bytes | str, *, shown: bool = True) -> str | None:
    """Return the value that is read, or the error; None if only `orjson` can tell."""
    try:
        return repr(how(text))
    except Unsure:
        return None
    except ValueError as error:
        return f"refused: {error if shown else ''}"


@given(
    st.text(alphabet='{}[]",:0123456789.eE+-ntrufalse \\\n\x7f\ud800é', max_size=60)
    | st.from_regex(r"\s?\[(-?[0-9]{1,18}(\.[0-9]{1,9})?([eE][0-9]{1,2})?,?)*\]\s?", fullmatch=True)
)
@example('{"a": -0, "a": -0.0, "b": 1e5, "c": 12345678901234567890}')
@example("[" * 1000 + "]" * 1000)
@example('"\\ud800"')
@example("")
def test_a_text_is_decoded_or_refused_as_by_orjson(text):
    found = decoded(as_orjson, text, shown=False)

    assert found in (None, decoded(orjson.loads, text, shown=False))


@pytest.mark.parametrize("data", [b"\xff", b"", b"{", "{'a'}", b"[1,]", b"nul"])
def test_a_malformed_text_raises_the_error_of_orjson(monkeypatch, data):
    monkeypatch.delitem(sys.modules, "orjson")
    monkeypatch.setattr(lazy_orjson, "_decoded", 0)

    assert decoded(lazy_orjson._decode, data) == decoded(orjson.loads, data)
