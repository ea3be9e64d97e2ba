"""JSON that is read without the package `json` is what that package reads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given, strategies as st

from agentbus.core.json_text import from_json, to_json

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
