"""Escapes what text must not hold where a terminal shows it: what moves, hides, or turns other characters.

Loaded only for text that is not plain ASCII, and for names that need quotes.
"""

from __future__ import annotations

from unicodedata import category

_JOINER = "\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
# Code points that Python calls printable and that show nothing: those of Unicode's
# Default_Ignorable_Code_Point that are letters or marks, and signs that are blank.
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
    """Return text on one line, with all that is invisible or turns the direction of writing escaped.

    A tab becomes a space. What joins emoji, or chooses their form, stays where it does that.
    """
    if text.isprintable() and _INVISIBLE.isdisjoint(text):
        return text
    return "".join(
        c if is_shown(c) or _belongs(text, at) else _code(c) for at, c in enumerate(text)
    )


def in_quotes(name: str) -> str:
    """Return a name in double quotes, with what `escaped` escapes, quotes and backslashes escaped."""
    return '"' + escaped(name.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def is_shown(character: str) -> bool:
    """Tell whether a character can be seen, and leaves the others where they are."""
    return character.isprintable() and character not in _INVISIBLE


def _belongs(text: str, at: int) -> bool:
    """Tell whether a joiner, or a selector of a form, stands where emoji have one."""
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
