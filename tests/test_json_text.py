"""JSON that is read without the package `json` is what that package reads."""

from __future__ import annotations

import json
import subprocess
import sys

import orjson
import pytest
from hypothesis import example, given, strategies as st

from agentbus.core.json_text import compact, from_json, to_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


def _refused(name: str) -> None:
    raise ValueError(name)


@given(values)
def test_what_is_written_is_read_again(value):
    assert from_json(to_json(value)) == value
    assert from_json(json.dumps(value)) == value


@given(st.text(alphabet='{}[]",:0.eE+-ntrufalse \\\n'))
@example("NaN")
@example("1 2")
@example("[" * 100_000)
def test_a_text_is_refused_if_it_is_not_json(text):
    try:
        wanted = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        with pytest.raises(ValueError, match=r"."):
            from_json(text)
    else:
        assert from_json(text) == wanted


@pytest.mark.parametrize("text", ["{", '{"a":', "[1,", '"x', '{"a" 1}', "nope", ""])
def test_a_wrong_text_is_an_error_where_json_is_not_loaded(text):
    program = (
        "import sys; from agentbus.core.json_text import from_json\n"
        "assert 'json' not in sys.modules\n"
        "try: from_json(sys.argv[1])\n"
        "except ValueError: sys.exit(7)"
    )

    assert subprocess.run([sys.executable, "-c", program, text], check=False).returncode == 7


@given(values)
@example(
    [0.0001, 0.00001, 1e15, 1e16, -0.0, 2**63, 2**64 - 1, 2**64, "\x7f\x1f\u2028\ud800", (), {}]
)
@example([2**64])
@example("\ud800")
@example(float("nan"))
def test_a_value_is_encoded_as_orjson_encodes_it_or_not_at_all(value):
    found = compact(value)

    assert found is None or found == orjson.dumps(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**64 - 1),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_small_values_of_plain_data_are_encoded(value):
    assert compact(value) == orjson.dumps(value)
