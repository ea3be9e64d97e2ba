"""Texts that break careless programs, and a server on which every neighbour's key is watched."""

from __future__ import annotations

import gc
import json
import unicodedata
import warnings
from collections.abc import Callable

import redis
from hypothesis import strategies as st

from agentbus.core.names import KEY_KINDS, MAX_BODY_BYTES
from tests.inprocess import Done, run
from tests.servers import Server

DATABASE = 9

NASTY = [
    *("*", "?", "[a]", "a:b", "%", "%3A", "{a}", " ", "-", "--force", "@x", "=", ",", "a,b", "\\"),
    *("\n", "\r\n", "\t", "\0", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x85", "\x9b31m", "\u2028"),
    *("\u202e", "\u2066", "\u200f", "\ufeff", "\ud800", "\udcff", "\udc80", "\U0001f600", "é", "é"),
    *("$(reboot)", "`id`", "'; FLUSHALL", '"', "%s", "{0}", "a @ b", " @ ", "ada @ 2024-01-01", "NaN"),
    *("0-0", "1-1", "$", "+", "null", "true", "<script>", "../../etc/passwd", "\r\n*1\r\n$8\r\nFLUSHALL"),
]  # fmt: skip
nasty = st.sampled_from(NASTY)
anything = st.text(st.characters(exclude_categories=()), max_size=40)
hostile = nasty | anything | st.lists(nasty | anything, max_size=4).map("".join)
# Mostly what is accepted, so that the examples get further than the first check.
accepted = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
names = st.one_of(accepted, accepted, hostile, st.just("x" * 256), st.just("x" * 257))
bodies = st.one_of(accepted, hostile, st.just("é" * (MAX_BODY_BYTES // 2 + 1)))
raw = st.binary(max_size=60) | hostile.map(lambda text: text.encode("utf-8", "surrogatepass"))


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(text: str) -> bool:
    """Tell whether the rules allow a name; put down apart from the code that is tested."""
    if not is_text(text) or not 1 <= len(text.encode()) <= 256:
        return False
    return not any(unicodedata.category(character) == "Cc" for character in text)


def is_agent(text: str) -> bool:
    """Tell whether an agent may have this name without a setting that allows it."""
    reserved = {"human", "user", "system", "developer", "assistant", "agentbus"}
    return is_name(text) and text.lower() not in reserved


def is_body(text: str) -> bool:
    return is_text(text) and 1 <= len(text.encode()) <= MAX_BODY_BYTES and "\0" not in text


def check_told(done: Done, *codes: int) -> None:
    """Check that a failure was told in a sentence, with a documented code."""
    said = done.err.decode()
    if said.startswith("{"):
        assert set(json.loads(said)) == {"error", "code", "hint"}
        said = f"agentbus: {said}"
    lines = said.removesuffix("\n").split("\n")
    assert done.code in codes, (done.code, said)
    assert done.out == b""
    assert len(lines) in {1, 2}, said
    assert lines[0].startswith("agentbus: ")
    assert all(line.isprintable() for line in lines), said
    assert "unexpectedly" not in said, said
    assert "Traceback" not in said


class World:
    """A database of its own with one project under test and its neighbours around it."""

    project = "app"
    neighbours = ("app2", "app:x", "ap", "xapp", "*", "ap?", "[a]pp", "App", "{app}", "")

    def __init__(self, server: Server) -> None:
        self.client = redis.Redis(
            unix_socket_path=server.socket, db=DATABASE, protocol=2, driver_info=None
        )
        self.url = f"{server.url}?db={DATABASE}"
        self._theirs: dict[bytes, bytes] = {}

    def close(self) -> None:
        """Close this connection, and those that verbs left as they do where a process ends."""
        self.client.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()

    def renew(self) -> None:
        """Remove everything and plant the neighbours' keys anew."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for name in self.neighbours:
                for kind in ("jots", "flag:building", "ch:main", "last:ada", "jot:how", "note"):
                    pipe.set(f"{name}:{kind}", f"{name} {kind}")
            pipe.execute()
        # What is planted is the same each time.
        self._theirs = self._theirs or self.foreign()

    def foreign(self) -> dict[bytes, bytes]:
        """Return every key that is not the project's, with what it holds."""
        kinds = {f"{self.project}:{kind}".encode() for kind in KEY_KINDS}
        below = tuple(kind + b":" for kind in kinds)
        return self.all(lambda key: key not in kinds and not key.startswith(below))

    def all(self, wanted: Callable[[bytes], bool] = lambda _key: True) -> dict[bytes, bytes]:
        keys = sorted(filter(wanted, self.client.scan_iter(count=1000)))
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True))

    def check_neighbours(self) -> None:
        assert self.foreign() == self._theirs

    def run(self, *argv: str, stdin: bytes = b"") -> Done:
        verb, *words = argv
        return run(verb, *self.where(), *words, stdin=stdin)

    def where(self) -> list[str]:
        return ["--url", self.url, "--project", self.project]
