"""The Lua scripts as server-side functions, for users who may call functions but not run scripts.

The functions of one version form a library. The names of the library and its functions contain a digest, so
that several versions can coexist. An administrator loads it once; the server stores it with its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.store import resp
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from agentbus.store.steps import Arg, Op, Step

MISSING = "Function not found"
_DIGITS = 16
_called: dict[Arg, str] = {}


def library() -> str:
    """Return the name of the library of this version's functions."""
    # Combine the known digests arithmetically: a hash would require importing hashlib.
    mixed = sum(place * int(digest, 16) for place, digest in enumerate(resp.digests().values(), 1))
    return f"agentbus_{mixed % 16**_DIGITS:0{_DIGITS}x}"


def function(script: str) -> str:
    """Return the name of a script's function."""
    return f"{library()}_{script}"


def commands(step: Step, *, whole: bool = False) -> list[Sequence[Arg]]:
    """Return a step's commands like `resp.commands`, with function calls instead of scripts.

    A function has no text to send, so `whole` has no effect.
    """
    del whole
    if not _called:
        name = library()
        _called.update({digest: f"{name}_{script}" for script, digest in resp.digests().items()})
    return [
        ("FCALL", _called[args[1]], *args[2:]) if args[0] == "EVALSHA" else args
        for args in resp.commands(step)
    ]


def text() -> bytes:
    """Return the library's text."""
    parts = [f"#!lua name={library()}\n"]
    for script in resp.digests():
        head, _, body = resp.source(script).decode().partition("\n")
        flags = ",".join(f"'{flag}'" for flag in head.partition("flags=")[2].split(",") if flag)
        parts.append(
            f"redis.register_function{{function_name='{function(script)}', flags={{{flags}}},"
            f" callback=function(KEYS, ARGV)\n{body}\nend}}\n"
        )
    return "".join(parts).encode()


def load() -> Op[bool]:
    """Load the functions of this version, and return whether they were missing."""
    name, wanted = library(), text()
    reply = yield Command("FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE")
    if any(wanted in entry for entry in reply):
        return False
    yield Command("FUNCTION", "LOAD", "REPLACE", wanted)
    return True
