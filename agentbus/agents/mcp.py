"""Serves tools to one client that speaks the Model Context Protocol, by itself on stdin and stdout.

Each message is JSON-RPC 2.0, on stdin a line of it. The server supports both generations of the
protocol: `initialize` up to 2025-11-25, and `server/discover` from 2026-07-28, where each request
states its version. Each call of a tool runs in a thread, so that a waiting call does not delay others.
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

SESSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
REQUESTS = ("2026-07-28",)
_VERSION = "io.modelcontextprotocol/protocolVersion"
_SERVER, _CLIENT = "io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/clientInfo"
# Clients that show their model a result's data, instead of its text or with it. They get the text
# alone, which marks the words of other agents.
_SHOW_DATA = ("claude-code", "codex-mcp-client", "copilot-cli")
PARSE, REQUEST, METHOD, _PARAMS, UNSUPPORTED = -32700, -32600, -32601, -32602, -32022
# OpenCode shares one server among its sessions; its plugin names the session of a call in this
# argument.
SESSION = "_session"
# Maximum bytes of a message, and maximum number of calls at a time.
LONGEST, _AT_ONCE = 8 << 20, 16
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
    # A function that runs a call of a tool; its argument takes the answer, and returns whether the
    # client took it.
    Run = Callable[[Callable[[dict[str, Any]], bool]], None]


class ProtocolError(Exception):
    """An error that is returned to the client as a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Server:
    """Answers the messages of one client; `scope` is what its calls may do.

    A server that is not `lasting` may answer only some of a client's messages.
    """

    def __init__(self, perform: Perform, scope: str = SCOPES[-1], *, lasting: bool = True) -> None:
        self._perform = perform
        self._scope = scope
        self._lasting = lasting
        self._start = _thread.start_new_thread
        # One lock for each call, held while the call runs.
        self._calls: list[_thread.LockType] = []
        self._writing = _thread.allocate_lock()
        # Held from writing a result until the messages that it shows are marked as read.
        self._marking = _thread.allocate_lock()
        # The name that the client gives when it begins a session.
        self._client: object = None
        # The origins and ids of running calls; a cancelled call is removed, and not answered.
        self._running: set[tuple[object, object]] = set()

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
                if len(rest) > LONGEST:
                    self._write(
                        failure(None, ProtocolError(REQUEST, f"a line exceeds {LONGEST} bytes"))
                    )
                    rest = None
        # Answer calls that finish at once: a client may write all of its requests and close its
        # input.
        until = time.monotonic() + _LAST_ANSWERS
        for call in self._calls:
            call.acquire(timeout=max(0.0, until - time.monotonic()))

    def _read(self, line: bytes) -> None:
        try:
            request = parsed(line)
        except ProtocolError as error:
            self._write(failure(None, error))
            return
        # A batch, which versions before 2025-06-18 allow, is answered message by message.
        for message in request if isinstance(request, list) and request else [request]:
            answer = self.take(message)
            if callable(answer):
                ends = _thread.allocate_lock()
                ends.acquire()
                self._calls = [*(call for call in self._calls if call.locked()), ends]
                self._start(self._run_call, (answer, ends))
            elif answer is not None:
                self._write(answer)

    def _run_call(self, run: Run, ends: _thread.LockType) -> None:
        run(self._write)
        ends.release()

    def take(self, message: Any, origin: object = None) -> dict[str, Any] | Run | None:
        """Return the answer to a message, None if it has none, or the call that makes the answer.

        The call is run in another thread. Requests of different origins may have equal ids.
        """
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # Ignore replies: this server sends no requests.
            if isinstance(message, dict) and ("result" in message or "error" in message):
                return None
            return failure(None, ProtocolError(REQUEST, "not a request of JSON-RPC 2.0"))
        number, params = message.get("id"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if number is None:
            if message["method"] == "notifications/cancelled":
                cancelled = _key(params.get("requestId"))
                self._running -= {call for call in [*self._running] if call[1] == cancelled}
            return None
        try:
            if message["method"] == "tools/call":
                return self._call(number, params, origin)
            return _answer(number, self._reply(message["method"], params))
        except ProtocolError as error:
            return failure(number, error)

    def leave(self, origin: object) -> None:
        """Cancel the calls of an origin: nobody waits for their answers."""
        self._running -= {call for call in [*self._running] if call[0] is origin}

    def _reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request other than a tool call."""
        _check_version(params)
        if method == "initialize":
            asked = params.get("protocolVersion")
            self._client = _name(params.get("clientInfo")) if self._lasting else None
            return {
                "protocolVersion": asked if asked in SESSIONS else SESSIONS[-1],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": _info(),
                "instructions": INSTRUCTIONS,
            }
        if method == "server/discover":
            return {
                "resultType": "complete",
                "supportedVersions": [*REQUESTS],
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
        raise ProtocolError(METHOD, f"the method {method!r} is unknown")

    def _call(self, number: Any, params: dict[str, Any], origin: object) -> dict[str, Any] | Run:
        """Return the call of a tool, or the answer to a call that cannot be made."""
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
            return _answer(number, _result(f"agentbus: {wrong}", None, failed=True))
        call = origin, _key(number)
        if call in self._running:
            raise ProtocolError(REQUEST, f"a request with the id {number!r} is being answered")
        if len(self._running) >= _AT_ONCE:
            raise ProtocolError(REQUEST, f"{_AT_ONCE} calls run already; wait for one of them")
        self._running.add(call)

        def run(answer: Callable[[dict[str, Any]], bool]) -> None:
            with self._marking:
                # Wait until the messages in earlier results are marked as read.
                pass
            outcome = self._perform(tool.name, given, meta, lambda: call in self._running)
            with self._marking:
                wanted = call in self._running
                self._running.discard(call)
                data = outcome.data if self._takes_data(meta) else None
                result = _result(outcome.text, data, failed=outcome.failed)
                written = wanted and answer(_answer(number, result))
                if outcome.after is not None:
                    outcome.after(written)

        return run

    def _takes_data(self, meta: Mapping[str, Any]) -> bool:
        """Tell whether the client gets a result's data; an unknown one does from a lasting server."""
        client = _name(meta.get(_CLIENT)) or self._client
        return self._lasting if client is None else client not in _SHOW_DATA

    def _write(self, answer: dict[str, Any]) -> bool:
        """Write an answer, and return whether the client took it."""
        line = to_json(answer).encode() + b"\n"
        with self._writing:
            try:
                stdio.write(1, line)
            except OSError:
                # The client is gone, and its input ends as well.
                return False
        return True


def parsed(data: bytes) -> Any:
    """Return the value of JSON. Raises `ProtocolError`."""
    try:
        # Some clients begin with a byte order mark.
        return from_json(data.decode().removeprefix("\ufeff"), decimal=_decimal)
    except ValueError as error:
        raise ProtocolError(PARSE, f"not JSON: {error}") from None


def version_of(params: object) -> object:
    """Return the version of the protocol that a request's parameters name, or None."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(_VERSION) if isinstance(meta, dict) else None


def failure(number: Any, error: ProtocolError) -> dict[str, Any]:
    """Return the answer to a request that cannot be performed."""
    known: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        known["data"] = error.data
    return {"jsonrpc": "2.0", "id": number, "error": known}


def _answer(number: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _check_version(params: dict[str, Any]) -> None:
    """Raise an error for a protocol version that this server does not support."""
    asked = version_of(params)
    if asked is not None and asked not in REQUESTS:
        raise ProtocolError(
            UNSUPPORTED,
            f"version {asked!r} of the protocol is not supported",
            {"supported": [*REQUESTS], "requested": asked},
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
