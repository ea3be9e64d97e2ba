"""Escapes characters that are unsafe on a terminal: those that move, hide or reverse other characters.

This module is loaded only for text that is not plain ASCII, and for names that need quotes.
"""

from __future__ import annotations

from unicodedata import category

_JOINER = "\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
# Code points that Python calls printable but that display as nothing: letters and marks with
# Unicode's Default_Ignorable_Code_Point property, and blank symbols.
_INVISIBLE = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800),
            *(0x3164, 0xFFA0, 0x13441, 0x13442, 0x16FE4, 0x1D159),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)


def escaped(text: str) -> str:
    """Return text on one line, with invisible characters and changes of writing direction escaped.

    A tab becomes a space. Joiners and variation selectors stay where they belong to emoji.
    """
    if text.isprintable() and _INVISIBLE.isdisjoint(text):
        return text
    return "".join(
        c if is_shown(c) or _belongs(text, at) else _code(c) for at, c in enumerate(text)
    )


def in_quotes(name: str) -> str:
    """Return a name in double quotes, escaped like `escaped`, with quotes and backslashes escaped too."""
    return '"' + escaped(name.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def is_shown(character: str) -> bool:
    """Return whether a character is visible and does not move other characters."""
    return character.isprintable() and character not in _INVISIBLE


def _belongs(text: str, at: int) -> bool:
    """Return whether a joiner or a variation selector is in a place where emoji use one."""
    character, before = text[at], text[at - 1 : at]
    if character in _SELECTORS:
        return _is_sign(before) or (before.isascii() and text[at + 1 : at + 2] == _KEYCAP)
    if character == _JOINER:
        base = text[at - 2 : at - 1] if before and before in _SELECTORS else before
        return _is_sign(base) and _is_sign(text[at + 1 : at + 2])
    return False


def _is_sign(character: str) -> bool:
    return bool(character) and is_shown(character) and category(character) in ("So", "Sk", "Sm")


def _code(character: str) -> str:
    if character == "\t":
        return " "
    short = repr(character)[1:-1]
    if len(short) > 1:
        return short
    return f"\\u{ord(character):04x}" if character < "\U00010000" else f"\\U{ord(character):08x}"
