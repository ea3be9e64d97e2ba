"""Serves tools to one client that speaks the Model Context Protocol on stdin and stdout.

Each message is a line of JSON-RPC 2.0. The server supports both generations of the protocol:
`initialize` up to 2025-11-25, and `server/discover` from 2026-07-28, where each request states its
version. Each call of a tool runs in a thread, so that a waiting call does not delay others.
"""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbus.agents import stdio
from agentbus.agents.tools import INSTRUCTIONS, SCOPES, TOOLS
from agentbus.core.json_text import from_json, to_json
from agentbus.core.version import __version__

_SESSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_REQUESTS = ("2026-07-28",)
_VERSION = "io.modelcontextprotocol/protocolVersion"
_SERVER, _CLIENT = "io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/clientInfo"
# Clients that show their model a result's data, instead of its text or with it. They get the text
# alone, which marks the words of other agents.
_SHOW_DATA = ("claude-code", "codex-mcp-client", "copilot-cli")
_PARSE, _REQUEST, _METHOD, _PARAMS, _UNSUPPORTED = -32700, -32600, -32601, -32602, -32022
# OpenCode shares one server among its sessions; its plugin names the session of a call in this
# argument.
SESSION = "_session"
# Maximum bytes of a line, and maximum number of calls at a time.
_LONGEST, _AT_ONCE = 8 << 20, 16
# Seconds in which running calls are still answered after the client has closed its input.
_LAST_ANSWERS = 1.0
# Milliseconds for which a client may cache the list of tools, which is part of the program.
_KEPT_MS = 3_600_000


class ToolResult:
    """The result of a tool: text for the model, the same as data, and whether the tool failed.

    `after` is called with True if the client took the result, which marks its messages as read;
    with False, everything taken for the client is given back.
    """

    __slots__ = ("after", "data", "failed", "text")

    def __init__(
        self,
        text: str,
        data: Mapping[str, object] | None,
        failed: bool,
        after: Callable[[bool], None] | None = None,
    ) -> None:
        self.text = text
        self.data = data
        self.failed = failed
        self.after = after


if TYPE_CHECKING:
    # A function that calls a tool by name, with its arguments and the request's `_meta`; its last
    # argument returns whether the client still wants the result.
    Perform = Callable[[str, dict[str, Any], Mapping[str, Any], Callable[[], bool]], ToolResult]


class ProtocolError(Exception):
    """An error that is returned to the client as a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Server:
    """Serves one client until it closes stdin; `scope` is what its calls may do."""

    def __init__(self, perform: Perform, scope: str = SCOPES[-1]) -> None:
        self._perform = perform
        self._scope = scope
        self._start = _thread.start_new_thread
        # One lock for each call, held while the call runs.
        self._calls: list[_thread.LockType] = []
        self._writing = _thread.allocate_lock()
        # Held from writing a result until the messages that it shows are marked as read.
        self._marking = _thread.allocate_lock()
        # The name that the client gives when it begins a session.
        self._client: object = None
        # The ids of running calls; a cancelled call is removed, and not answered.
        self._running: set[Any] = set()

    def serve(self) -> None:
        """Read requests from stdin, and answer them on stdout."""
        # The line that has not ended yet; None: it was refused, and the rest of it is passed over.
        rest: bytes | None = b""
        while data := stdio.read(1 << 16):
            *lines, last = data.split(b"\n")
            for end in lines:
                if rest is not None and (line := rest + end).strip():
                    self._read(line)
                rest = b""
            if rest is not None:
                rest += last
                if len(rest) > _LONGEST:
                    self._answer(
                        None, error=ProtocolError(_REQUEST, f"a line exceeds {_LONGEST} bytes")
                    )
                    rest = None
        # Answer calls that finish at once: a client may write all of its requests and close its
        # input.
        until = time.monotonic() + _LAST_ANSWERS
        for call in self._calls:
            call.acquire(timeout=max(0.0, until - time.monotonic()))

    def _read(self, line: bytes) -> None:
        try:
            # Some clients begin with a byte order mark.
            request = from_json(line.decode().removeprefix("\ufeff"), decimal=_decimal)
        except ValueError as error:
            self._answer(None, error=ProtocolError(_PARSE, f"not JSON: {error}"))
            return
        # A batch, which versions before 2025-06-18 allow, is answered message by message.
        for message in request if isinstance(request, list) and request else [request]:
            self._take(message)

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # Ignore replies: this server sends no requests.
            if not (isinstance(message, dict) and ("result" in message or "error" in message)):
                self._answer(None, error=ProtocolError(_REQUEST, "not a request of JSON-RPC 2.0"))
            return
        number, params = message.get("id"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if number is None:
            if message["method"] == "notifications/cancelled":
                self._running.discard(_key(params.get("requestId")))
            return
        try:
            if message["method"] == "tools/call":
                self._call(number, params)
            else:
                self._answer(number, self._reply(message["method"], params))
        except ProtocolError as error:
            self._answer(number, error=error)

    def _reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request other than a tool call."""
        _check_version(params)
        if method == "initialize":
            asked = params.get("protocolVersion")
            self._client = _name(params.get("clientInfo"))
            return {
                "protocolVersion": asked if asked in _SESSIONS else _SESSIONS[-1],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": _info(),
                "instructions": INSTRUCTIONS,
            }
        if method == "server/discover":
            return {
                "resultType": "complete",
                "supportedVersions": [*_REQUESTS],
                "capabilities": {"tools": {}},
                "instructions": INSTRUCTIONS,
                "ttlMs": _KEPT_MS,
                "cacheScope": "private",
                "_meta": {_SERVER: _info()},
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {
                "tools": [tool.listed() for tool in TOOLS if tool.is_listed(self._scope)],
                "resultType": "complete",
                "ttlMs": _KEPT_MS,
                "cacheScope": "private",
            }
        raise ProtocolError(_METHOD, f"there is no method {method!r}")

    def _call(self, number: Any, params: dict[str, Any]) -> None:
        """Start a thread for a tool call."""
        _check_version(params)
        tool = next((tool for tool in TOOLS if tool.name == params.get("name")), None)
        if tool is None:
            names = ", ".join(tool.name for tool in TOOLS)
            raise ProtocolError(
                _PARAMS, f"there is no tool {params.get('name')!r}; the tools are {names}"
            )
        given = params.get("arguments")
        given = {} if given is None else given
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        if isinstance(given, dict) and SESSION in given:
            given = dict(given)
            meta = {**meta, SESSION: given.pop(SESSION)}
        if wrong := tool.mistake(given) or tool.refusal(given, self._scope):
            # Return the error to the model, which can correct the call.
            self._answer(number, _result(f"agentbus: {wrong}", None, failed=True))
            return
        key = _key(number)
        if key in self._running:
            raise ProtocolError(_REQUEST, f"a request with the id {number!r} is being answered")
        if len(self._running) >= _AT_ONCE:
            raise ProtocolError(_REQUEST, f"{_AT_ONCE} calls run already; wait for one of them")
        self._running.add(key)
        ends = _thread.allocate_lock()
        ends.acquire()
        self._calls = [*(call for call in self._calls if call.locked()), ends]
        self._start(self._run, (number, tool.name, given, meta, ends))

    def _run(
        self,
        number: Any,
        name: str,
        given: dict[str, Any],
        meta: Mapping[str, Any],
        ends: _thread.LockType,
    ) -> None:
        with self._marking:
            # Wait until the messages in earlier results are marked as read.
            pass
        key = _key(number)
        outcome = self._perform(name, given, meta, lambda: key in self._running)
        with self._marking:
            wanted = key in self._running
            self._running.discard(key)
            shows_data = (_name(meta.get(_CLIENT)) or self._client) in _SHOW_DATA
            data = None if shows_data else outcome.data
            result = _result(outcome.text, data, failed=outcome.failed)
            written = wanted and self._answer(number, result)
            if outcome.after is not None:
                outcome.after(written)
        ends.release()

    def _answer(
        self,
        number: Any,
        result: dict[str, Any] | None = None,
        *,
        error: ProtocolError | None = None,
    ) -> bool:
        """Write an answer, and return whether the client took it."""
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        if error is None:
            answer["result"] = result
        else:
            answer["error"] = {"code": error.code, "message": str(error)}
            if error.data is not None:
                answer["error"]["data"] = error.data
        line = to_json(answer).encode() + b"\n"
        with self._writing:
            try:
                stdio.write(1, line)
            except OSError:
                # The client is gone, and its input ends as well.
                return False
        return True


def _check_version(params: dict[str, Any]) -> None:
    """Raise an error for a protocol version that this server does not support."""
    meta = params.get("_meta")
    asked = meta.get(_VERSION) if isinstance(meta, dict) else None
    if asked is not None and asked not in _REQUESTS:
        raise ProtocolError(
            _UNSUPPORTED,
            f"version {asked!r} of the protocol is not supported",
            {"supported": [*_REQUESTS], "requested": asked},
        )


def _decimal(digits: str) -> float | str:
    """Return a number; text if it is out of range, since JSON has no infinity."""
    number = float(digits)
    return number if math.isfinite(number) else digits


def _key(number: Any) -> tuple[type, Any]:
    """Return the key of a request id, which distinguishes 1 from true."""
    return type(number), number if isinstance(number, (str, int, float)) else repr(number)


def _name(client: object) -> object:
    """Return the client's name for itself."""
    return client.get("name") if isinstance(client, dict) else None


def _info() -> dict[str, str]:
    return {"name": "agentbus", "version": __version__}


def _result(text: str, data: Mapping[str, object] | None, *, failed: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": text}],
        "isError": failed,
        "resultType": "complete",
    }
    if data is not None:
        result["structuredContent"] = data
    return result
