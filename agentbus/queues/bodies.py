"""Reads the stored bodies of tasks that are delayed or wait for others."""

from __future__ import annotations

from typing import Any

import orjson

# How many words of a body come before the fields and values of its entry.
DELAYED, DEPENDENT = 2, 5
_LONGEST_TIME = 15


def read(body: bytes | None, fixed: int) -> list[str]:
    """Return the words of a body: the priority and more about the task, `fixed` in all, then its entry's.

    If another program wrote it in another form, they are those of an entry that workers bury as malformed.
    """
    try:
        found: Any = orjson.loads(body or b"")
    except ValueError:
        found = None
    if isinstance(found, list) and len(found) > fixed and all(isinstance(w, str) for w in found):
        due = found[2] if fixed == DEPENDENT else ""
        if not due or (due.isascii() and due.isdigit() and len(due) <= _LONGEST_TIME):
            return found
    shown = (body or b"").decode("utf-8", "replace")
    return ["normal", *[""] * (fixed - 1), "payload", shown, "meta", "!"]
