"""What a typed payload is: JSON, text, or neither."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given, strategies as st

from agentbus.commands._payload import _exact, _thorough, json_or_text, read
from agentbus.errors import InvalidPayload
from tests import profiles  # noqa: F401 (loads the profile)

JSON = [
    *('{"a": [1, 2.5, null]}', "[]", '""', "17", "-17", "0", "-0.5", "1e5", "1.10", "0.1", "true"),
    *("null", "18446744073709551615", "-9223372036854775808", "9007199254740993", "1E-7", " 5 "),
    *('"12345678901234567890123"', '{"sha": "12e4567", "n": 1}', "123456789012345.6", "5e-324"),
    "1.7976931348623157e308",
]  # fmt: skip
TEXT = [
    *("hello", "3 apples", "2024-01-20", "1.5.2", "12:30", "3f2a9c", "1.png", "-x", "-", "--force"),
    *("1,000", "True", "None", "nan", "inf", "nul", "nullable", "truely", "0x1F", "1_000", "1/2"),
    *("50%", "\u0663", " ", "."),
]  # fmt: skip
NEITHER = [
    *("{bad", "[1, 2", "[1,]", "{'a': 1}", '"open', '"quoted" text', "[draft] fix", "{name}", "{} {}"),
    *('"\\ud800"', "NaN", "Infinity", "-Infinity", "[NaN]", '{"a": Infinity}', " NaN ", "\ufeff{}"),
    *("1e400", "-1e400", "[1e400]", "1e-400", "007", "-01", "1.", ".5", "+5", "1e", "1e+", "12.e4"),
    *("12345678901234567890123", "-9223372036854775809", "18446744073709551616", "1" * 5000),
    *('{"id": 18446744073709551616}', "0.1234567890123456789", "9007199254740993.0"),
    *("[1.00000000000000001]", "1e-99999999999999999999"),
]  # fmt: skip


@pytest.mark.parametrize("typed", JSON)
def test_what_is_json_is_json(typed):
    assert read(typed) == read(typed, as_json=True) == json.loads(typed)
    assert read(typed, as_text=True) == typed


@pytest.mark.parametrize("typed", TEXT)
def test_words_that_nobody_means_as_json_are_text(typed):
    assert read(typed) == read(typed, as_text=True) == typed
    with pytest.raises(InvalidPayload, match="is not JSON"):
        read(typed, as_json=True)


@pytest.mark.parametrize("typed", NEITHER)
def test_what_begins_like_json_and_is_not_exactly_that_is_refused(typed):
    for as_json in (False, True):
        with pytest.raises(InvalidPayload) as refused:
            read(typed, as_json=as_json)
        assert refused.value.exit_code == 2
        assert ("--text" in str(refused.value.hint)) is not as_json
        assert len(str(refused.value)) < 300
    assert read(typed, as_text=True) == typed
    assert json_or_text(typed) == typed


@given(
    st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False).map(str)
)
@example("-0.0")
def test_a_number_is_taken_with_its_exact_value_or_not_at_all(number):
    typed = str(number)
    try:
        value = read(typed, as_json=True)
    except InvalidPayload:
        assert isinstance(number, str)
    else:
        from decimal import Decimal

        assert Decimal(typed) == Decimal(repr(value))
        assert math.isfinite(value)


def _value_or_error(how, text):
    try:
        return repr(how(text))
    except ValueError as error:
        return "Inexact" if type(error).__name__ == "_Inexact" else "not JSON"


@given(
    st.text(alphabet='{}[]",:0123456789.eE+-ntrufalse \\\n\x7f\ud800é', max_size=60)
    | st.from_regex(r"\s?\[(-?[0-9]{1,18}(\.[0-9]{1,9})?([eE][0-9]{1,2})?,?)*\]\s?", fullmatch=True)
)
@example("[" * 1000 + "]" * 1000)
@example("[" * 5000 + "]" * 5000)
@example('"\\u00e9"')
@example('{"a": -0, "a": -0.0}')
@example("true love")
@example("")
def test_a_short_payload_is_read_as_a_long_one(text):
    assert _value_or_error(_exact, text) == _value_or_error(_thorough, text)
