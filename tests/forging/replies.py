"""A server that passes requests on to a real one, and forges some of the replies."""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
from hypothesis import strategies as st

from tests.torture.network import Listener

# What is no reply, no whole one, or one of a newer protocol or of another size.
_RAW = [
    *(b"", b"\r\n", b"\x00", b"+", b"+OK", b"$5\r\nab", b"*2\r\n:1\r\n", b"HTTP/1.1 400 No\r\n\r\n"),
    *(b"$999999999999\r\nx", b"*2147483647\r\n", b"*100000000\r\n:1\r\n", b"$-5\r\n", b"*-5\r\n"),
    *(b"*1\r\n" * 20_000, b"*1\r\n" * 900 + b":1\r\n", b"*1\r\n" * 8 + b"$-1\r\n", b"$x\r\n", b":x\r\n"),
    *(b":99999999999999999999\r\n", b":9223372036854775807\r\n", b":" + b"9" * 5_000 + b"\r\n", b":\r\n"),
    *(b"-\x1b[2J\xe2\x80\xae evil\r\n", b"-ERR " + b"x" * 9_000 + b"\r\n", b"-\r\n", b"-\xff\xfe\r\n"),
    *(b"-WRONGTYPE no\r\n", b"-NOPERM no\r\n", b"-NOAUTH no\r\n", b"-OOM no\r\n", b"-NOGROUP no\r\n"),
    *(b"-NOSCRIPT no\r\n", b"-UNBLOCKED no\r\n", b"-MISCONF no\r\n", b"-BUSYGROUP no\r\n", b"-ERR no\r\n"),
    *(b"%1\r\n+a\r\n+b\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"~1\r\n:1\r\n", b"(123\r\n"),
    *(b"!2\r\nno\r\n", b"*-1\r\n", b"*x\r\n"),
    *(b"=5\r\ntxt:a\r\n", b"|1\r\n+a\r\n+b\r\n:1\r\n", b">2\r\n+message\r\n+x\r\n", b"+OK\r\n+OK\r\n"),
]  # fmt: skip
# Such an answer is retried until the deadline.
_SLOW = [
    b"-LOADING no\r\n",
    b"-READONLY no\r\n",
    b"-MOVED 1 192.0.2.1:1\r\n",
    b"-BUSY no\r\n",
    None,
]
_VALUES: list[Any] = [
    *(None, 0, 1, -1, 2**63 - 1, -(2**63), b"", b"x", b"\xff", b"9" * 30, b"1-1", b"\x1b[2J", b"nan"),
    *([], [None], [[]], [b"a"], [[b"a", b"b"]], [0, 0], [b"a", [b"b", [b"c"]]], [b"x"] * 1_000, b"inf"),
    *(b"9" * 5_000, b"\xe2\x80\xae", b"{}", b"[" * 900, b"-5", [b"entries"], [b"accepted"], [b"full"]),
]  # fmt: skip


class Forgery:
    """What to answer in the place of one reply: bytes as they are, or the real reply with a part replaced.

    One that `stays` forges all replies from that number on, so that another connection does not help.
    """

    def __init__(self, number: int, stays: bool, how: str, value: Any, path: list[int]) -> None:
        self.number = number
        self.stays = stays
        self.how = how
        self.value = value
        self.path = path

    def __repr__(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) < 80 else f"{shown[:80]}…"
        return f"Forgery({self.number}, {self.stays}, {self.how!r}, {shown}, {self.path})"

    def forge(self, real: Any) -> bytes | None:
        """Return the bytes to send; None to say nothing and leave the connection open."""
        if self.how == "raw":
            found: bytes | None = self.value
            return found
        return packed(self.value if self.how == "value" else self._replaced(real, self.path))

    def _replaced(self, real: Any, path: list[int]) -> Any:
        if not (isinstance(real, list) and real and path):
            return self.value
        at = path[0] % len(real)
        if len(path) == 1 and self.how == "gone":
            return real[:at] + real[at + 1 :]
        if len(path) == 1 and self.how == "twice":
            return [*real[:at], real[at], *real[at:]]
        return [*real[:at], self._replaced(real[at], path[1:]), *real[at + 1 :]]


def packed(value: Any) -> bytes:
    """Return a reply as RESP2 bytes."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, Exception):
        return b"-%b\r\n" % str(value).encode()
    return b"*%d\r\n%b" % (len(value), b"".join(map(packed, value)))


_numbers = st.sampled_from([0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25])
_stays = st.sampled_from([True, False, False])
_paths = st.lists(st.integers(0, 9), min_size=1, max_size=4)
_parts = st.sampled_from(["part", "part", "part", "gone", "twice"])
forgeries = st.one_of(
    st.builds(Forgery, _numbers, _stays, st.just("raw"), st.sampled_from(_RAW), st.just([])),
    st.builds(Forgery, _numbers, _stays, st.just("value"), st.sampled_from(_VALUES), st.just([])),
    st.builds(Forgery, _numbers, _stays, _parts, st.sampled_from(_VALUES), _paths),
    st.builds(Forgery, _numbers, _stays, _parts, st.sampled_from(_VALUES), _paths),
    st.builds(
        Forgery, _numbers, _stays, st.just("raw"), st.sampled_from(_RAW + _SLOW), st.just([])
    ),
)


class ForgingServer(Listener):
    """Passes each request on, and answers with a forged reply where its plan says so."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = socket
        self._plan: list[Forgery] = []
        self._seen = 0

    def plan(self, *forged: Forgery) -> None:
        """Forge these replies, counted from the next one; those to a login are always real."""
        self._plan = [*forged]
        self._seen = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it closes, or a forged reply leaves it without sense."""
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        requests, replies = hiredis.Reader(), hiredis.Reader()
        try:
            while data := await reader.read(65536):
                requests.feed(data)
                while (request := requests.gets()) is not False:
                    if request[0] == b"AUTH":
                        # The real one has no password.
                        writer.write(b"+OK\r\n")
                        continue
                    to_server.write(packed(request))
                    while (reply := replies.gets()) is False:
                        replies.feed(await from_server.read(65536))
                    await self._answer(writer, reply)
        finally:
            to_server.transport.abort()

    async def _answer(self, writer: asyncio.StreamWriter, reply: Any) -> None:
        number, self._seen = self._seen, self._seen + 1
        due = [
            one for one in self._plan if one.number == number or (one.stays and one.number < number)
        ]
        data = due[0].forge(reply) if due else packed(reply)
        if data is not None:
            writer.write(data)
        await writer.drain()
