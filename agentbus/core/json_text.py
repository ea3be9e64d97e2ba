"""Reads and writes JSON without the package `json`, whose import takes longer than a short command."""

from __future__ import annotations

from agentbus.core.oplog import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SPACE = " \t\r\n"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Rules:
    """The options of the scanner, as `json.JSONDecoder` has them."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


def from_json(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValueError`, also for one that is nested too deeply."""
    from _json import make_scanner

    rules: Any = _Rules()
    try:
        found, end = make_scanner(rules)(text, len(text) - len(text.lstrip(_SPACE)))
    except StopIteration as missing:
        raise ValueError(f"no value at character {missing.value}") from None
    except SystemError:
        # It has no error to raise unless `json` is loaded, which says what is wrong, and where.
        from json import loads

        return loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text[end:].strip(_SPACE):
        raise ValueError(f"more than one value, from character {end}")
    return found


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
