"""Reads and writes JSON without `json` and `orjson`, whose imports take longer than a short command."""

from __future__ import annotations

from agentbus.core.oplog import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\r\n"
# Beyond these limits (parts of a value, length of a text), orjson is faster, including its import.
_MOST_PARTS, _LONGEST = 2000, 16384
# A double represents every number of this many digits exactly.
_DIGITS = 15


class Unsure(ValueError):
    """`orjson` may interpret the text differently from `from_json`."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Rules:
    """Options for the scanner, like those of `json.JSONDecoder`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_constant = staticmethod(_no_constant)

    def __init__(self, whole: Callable[[str], object], decimal: Callable[[str], object]) -> None:
        self.parse_int = whole
        self.parse_float = decimal


def from_json(
    text: str, *, whole: Callable[[str], object] = int, decimal: Callable[[str], object] = float
) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if it is invalid or nested too deeply.

    `whole` and `decimal` convert integers and decimals from their text.
    """
    from _json import make_scanner

    rules: Any = _Rules(whole, decimal)
    try:
        value, end = make_scanner(rules)(text, len(text) - len(text.lstrip(_SPACE)))
    except StopIteration as missing:
        raise ValueError(f"no value at character {missing.value}") from None
    except SystemError:
        # The C scanner can raise JSONDecodeError only once `json` is loaded; `json` also reports
        # the place of the error.
        from json import loads

        return loads(text, parse_int=whole, parse_float=decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text[end:].strip(_SPACE):
        raise ValueError(f"more than one value, from character {end}")
    return value


def as_orjson(text: str) -> Any:
    """Return the value of a JSON text as `orjson` does.

    Raises `ValueError` if it is not JSON, and `Unsure` where only `orjson` can tell.
    """
    if len(text) > _LONGEST or "\\u" in text:
        raise Unsure
    try:
        text.encode()
        return from_json(text, whole=_whole, decimal=_decimal)
    except UnicodeEncodeError as error:
        raise Unsure from error
    except Unsure:
        raise
    except ValueError as error:
        if text.lstrip(_SPACE)[:1] in ("{", "["):
            # Only `from_json` may have failed, at its smaller limit of nesting.
            raise Unsure from error
        raise


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise Unsure
    return int(digits)


def _decimal(digits: str) -> float:
    if len(digits) > _DIGITS or "e" in digits or "E" in digits:
        raise Unsure
    return float(digits)


def to_json(value: object) -> str:
    """Return a value as JSON."""
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(k)}: {to_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_json(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def compact(value: object) -> bytes | None:
    """Return a small value of plain data as `orjson.dumps` encodes it; None for any other value."""
    from _json import encode_basestring

    parts: list[str] = []
    try:
        _add(parts, value, encode_basestring)
        return "".join(parts).encode()
    except (TypeError, ValueError, RuntimeError):
        # The value is not plain data, holds invalid text, is nested too deeply, or changed during
        # encoding.
        return None


def _add(parts: list[str], value: Any, in_quotes: Callable[[str], str]) -> None:
    """Append the JSON of a value; raises `TypeError` if `orjson` may encode it differently."""
    kind = type(value)
    if kind is str:
        parts.append(in_quotes(value))
    elif kind is dict:
        before = "{"
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError
            parts.append(f"{before}{in_quotes(key)}:")
            _add(parts, item, in_quotes)
            before = ","
        parts.append("}" if value else "{}")
    elif kind is list or kind is tuple:
        before = "["
        for item in value:
            parts.append(before)
            _add(parts, item, in_quotes)
            before = ","
        parts.append("]" if value else "[]")
    elif value is None or kind is bool:
        parts.append("null" if value is None else "true" if value else "false")
    elif kind is int and -(2**63) <= value < 2**64:
        parts.append(str(value))
    elif kind is float and "e" not in (shown := repr(value)) and "n" not in shown:
        # Encode only plain decimals: exponents have two spellings, and JSON has no NaN or infinity.
        parts.append(shown)
    else:
        raise TypeError
    if len(parts) > _MOST_PARTS:
        raise TypeError
