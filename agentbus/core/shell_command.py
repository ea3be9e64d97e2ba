"""Formats commands in messages, so that they can be pasted into a shell."""

from __future__ import annotations

from agentbus.core.escape import escaped, is_shown
from agentbus.core.names import shell_word


def command(verb: str, operand: str, options: str = "") -> str:
    """Return a command to paste into a shell, with an operand that may look like an option."""
    if operand.startswith("-"):
        return f"{verb}{options} -- {typed(operand)}"
    return f"{verb} {typed(operand)}{options}"


def typed(text: str) -> str:
    """Quote text as one word to paste into a shell, with invisible characters in the form `$'...'`."""
    if escaped(text) == text:
        return shell_word(text)
    shown = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if is_shown(c) else _unicode(c) for c in shown) + "'"


def _unicode(character: str) -> str:
    # Do not use `\x`: shells read it as one byte.
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
