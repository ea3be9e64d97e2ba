"""Writes formatted texts in a way that each version of Python unparses alike."""

from __future__ import annotations

import ast


def as_calls(node: ast.JoinedStr) -> ast.expr:
    """Return a formatted text as calls, if there are texts in its parts.

    Python 3.12 unparses these with quotes inside the same quotes, which 3.11 cannot parse.
    """
    parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    if not any(map(_has_text, parts)):
        return node
    join = ast.Attribute(ast.Constant(""), "join", ast.Load())
    return ast.Call(join, [ast.Tuple([_formatted(part) for part in node.values], ast.Load())], [])


def _has_text(part: ast.FormattedValue) -> bool:
    """Tell whether there is a text in a part of a text, other than how the part is formatted."""
    spec = part.format_spec
    inner = spec.values if isinstance(spec, ast.JoinedStr) else [] if spec is None else [spec]
    within = [part.value, *(one for one in inner if not isinstance(one, ast.Constant))]
    return any(
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for one in within
        for node in ast.walk(one)
    )


def _formatted(part: ast.expr) -> ast.expr:
    """Return the call that formats a part of a text as the text does."""
    if not isinstance(part, ast.FormattedValue):
        return part
    value = part.value
    if part.conversion != -1:
        name = {"a": "ascii", "r": "repr", "s": "str"}[chr(part.conversion)]
        value = ast.Call(ast.Name(name, ast.Load()), [value], [])
    spec = [] if part.format_spec is None else [part.format_spec]
    return ast.Call(ast.Name("format", ast.Load()), [value, *spec], [])
