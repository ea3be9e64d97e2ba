"""Reads typed payloads: exact JSON or text, but nothing ambiguous."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import orjson

from agentbus.commands._declare import Param
from agentbus.core.errors import InvalidPayload
from agentbus.core.json_text import Unsure, as_orjson

TEXT = Param("--text", "Send the payload as text, even if it is JSON.")
JSON = Param("--payload-json", "Send the payload as JSON, and refuse what is not.")

# Characters with which a JSON text begins.
_BEGINNINGS = '{["-0123456789tfn'
# Numbers without a match are exact as a 64-bit integer, or as a double, which keeps 15 digits.
_SUSPECT = r"[0-9.]{16}|[0-9][eE]"
# A text that is meant as a number, even if JSON does not allow its form.
_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]*)?"
_CONSTANTS = ("NaN", "Infinity", "-Infinity")


def read(text: str, *, as_text: bool = False, as_json: bool = False) -> Any:
    """Return a payload's value: JSON if it is exact, else text unless it begins like JSON.

    Raises `InvalidPayload` for ambiguous payloads such as `{bad`, `NaN`, `1e400` and a number of 23
    digits.
    """
    if as_text:
        return text
    try:
        return _exact(text)
    except _Inexact as error:
        what = f"the payload holds the number {error}, which would lose digits as JSON"
        cure = "write the number in quotes"
    except ValueError as error:
        if not (as_json or _begins_like_json(text)):
            return text
        what = "is not JSON" if as_json else "begins like JSON, and is not JSON"
        what, cure = f"the payload {what} ({error})", "correct it"
    raise InvalidPayload(what, hint=cure if as_json else f"{cure}, or send it as text by --text")


def json_or_text(text: str) -> Any:
    """Return a text's value if it is exact JSON, otherwise the text itself."""
    try:
        return _exact(text)
    except ValueError:
        return text


class _Inexact(ValueError):
    """JSON would lose digits of a number."""


def _exact(text: str) -> Any:
    """Return the value of exact JSON; raises `ValueError`, or `_Inexact` for a number."""
    begun = text.lstrip(" \t\r\n")[:1]
    if begun not in _BEGINNINGS:
        raise ValueError(f"JSON does not begin with {begun!a}")
    try:
        return as_orjson(text)
    except Unsure:
        return _thorough(text)


def _thorough(text: str) -> Any:
    """Return the value of exact JSON; raises `ValueError` or `_Inexact`."""
    value = orjson.loads(text)
    if re.search(_SUSPECT, text):
        json.loads(text, parse_int=_whole, parse_float=_decimal, parse_constant=_inexact)
    return value


def _whole(digits: str) -> None:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        _inexact(digits)


def _decimal(digits: str) -> None:
    try:
        exact = Decimal(digits) == Decimal(repr(float(digits)))
    except InvalidOperation:
        exact = False
    if not exact:
        _inexact(digits)


def _inexact(digits: str) -> NoReturn:
    raise _Inexact(digits if len(digits) <= 40 else f"{digits[:37]}...")


def _begins_like_json(text: str) -> bool:
    stripped = text.strip(" \t\r\n\ufeff")
    if stripped[:1] not in "+-.0123456789":
        return stripped[:1] in '{["' or stripped in _CONSTANTS
    return stripped in _CONSTANTS or re.fullmatch(_NUMBER, stripped) is not None
