"""The tools of coding agents by MCP's streamable HTTP, for agents elsewhere.

A client sends each message by a POST, with the token of its session, which names the agent and what it may
do. It gets one JSON object; there are neither streams of events nor sessions of the protocol, so that a
server that starts again ends nothing. A client that leaves cancels its call.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from starlette.datastructures import Headers
from starlette.responses import Response

from agentbus.agents import mcp, tokens
from agentbus.core.errors import AgentBusError
from agentbus.core.json_text import to_json
from agentbus.dashboard.web.guard import left, received, refusal
from agentbus.dashboard.web.sessions import WrongTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from agentbus.agents.mcp import Run, ToolResult
    from agentbus.agents.tokens import AgentToken
    from agentbus.client.aio import AsyncBus

# Requests of one token at a time; calls whose clients have left count until they end.
_AT_ONCE = 32
_MISMATCH = -32020
# HTTP's status of errors; only the versions without `initialize` have one for an unknown method.
_STATUS = {mcp.PARSE: 400, mcp.REQUEST: 400, mcp.UNSUPPORTED: 400, _MISMATCH: 400}
_MODERN_STATUS = {**_STATUS, mcp.METHOD: 404}


class AgentTools(Protocol):
    """The tools of one agent."""

    def perform(
        self,
        name: str,
        given: dict[str, Any],
        meta: Mapping[str, Any],
        wanted: Callable[[], bool],
    ) -> ToolResult:
        """Run a tool."""

    def close(self) -> None:
        """Close the connections."""


class _Session:
    """The server of a token, while requests run."""

    def __init__(self, token: AgentToken, tools: AgentTools) -> None:
        self.token = token
        self.tools = tools
        self.server = mcp.Server(tools.perform, token.scope, lasting=False)
        self.requests = 0


class McpEndpoint:
    """The application at `/mcp`; `tools` returns those of an agent, `log` is called for a wrong token."""

    def __init__(
        self,
        bus: AsyncBus,
        tools: Callable[[str], AgentTools],
        log: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._tools = tools
        self._log = log
        # They do not count for the sign-in of people, who may share an address with agents.
        self._wrong_tokens = WrongTokens()
        self._sessions: dict[AgentToken, _Session] = {}
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Answer the calls that wait: the server stops."""
        self._ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = Headers(scope=scope)
        token = await self._examine(scope, headers)
        if not isinstance(token, tokens.AgentToken):
            await token(scope, receive, send)
            return
        session = self._sessions.get(token)
        if session is None:
            session = self._sessions[token] = _Session(token, self._tools(token.agent))
        session.requests += 1
        run: Run | None = None
        try:
            answer = await _taken(session, headers, receive)
            if isinstance(answer, Response):
                await answer(scope, receive, send)
            else:
                run = answer
        finally:
            if run is None:
                self._leave(session)
        if run is not None:
            await self._call(run, session, scope, receive, send)

    def _leave(self, session: _Session) -> None:
        """Count a request as ended; the last one of a token closes the connections."""
        session.requests -= 1
        if not session.requests:
            del self._sessions[session.token]
            session.tools.close()

    async def _examine(self, scope: Scope, headers: Headers) -> AgentToken | Response:
        """Return the token of a request, or the answer to a request without a valid one."""
        given = headers.getlist("authorization")
        scheme, _, secret = (given[0] if len(given) == 1 else "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            text = "send the header 'Authorization: Bearer TOKEN'; 'agentbus token create' makes tokens"
            return refusal(text, 401, {"www-authenticate": "Bearer"})
        try:
            token = await self._bus.runner.run(
                tokens.find(self._bus.scope, secret.strip()), verb="token"
            )
        except AgentBusError as error:
            return refusal(str(error.message), 503)
        if token is None:
            return self._wrong((scope.get("client") or ("",))[0])
        if scope["method"] != "POST":
            text = "this server has no sessions, and answers requests alone: use POST"
            return refusal(text, 405, {"allow": "POST"})
        return token

    def _wrong(self, address: str) -> Response:
        # A right token is always let in: agents behind one address do not lock each other out.
        if not self._wrong_tokens.examines(address):
            text = "too many wrong tokens have come: try again in a minute"
            return refusal(text, 429, {"retry-after": "60"})
        self._wrong_tokens.count(address)
        self._log(address)
        text = "the token is not valid: it is wrong, was revoked, or has ended; ask for another one"
        return refusal(text, 401, {"www-authenticate": 'Bearer error="invalid_token"'})

    async def _call(
        self, run: Run, session: _Session, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a call in a thread, and send its answer unless the client leaves before."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        taken: Future[bool] = Future()

        def answer(result: dict[str, Any]) -> bool:
            try:
                loop.call_soon_threadsafe(answered.set_result, result)
            except RuntimeError:
                # The loop has ended.
                return False
            return taken.result()

        def end() -> None:
            self._leave(session)
            if not answered.done():
                # A cancelled call has no answer.
                answered.set_result(None)

        def work() -> None:
            try:
                run(answer)
            finally:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(end)

        gone = asyncio.create_task(left(receive))
        ended = asyncio.create_task(self._ended.wait())
        try:
            try:
                threading.Thread(target=work, daemon=True).start()
            except RuntimeError:
                # The machine has no room for another thread.
                end()
                raise
            await asyncio.wait((answered, gone, ended), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            if not answered.done():
                await refusal("the server stops: try again", 503)(scope, receive, send)
            elif (result := answered.result()) is None:
                await Response(status_code=202)(scope, receive, send)
            else:
                body = to_json(result).encode()
                await send({"type": "http.response.start", "status": 200, "headers": _json(body)})
                await send({"type": "http.response.body", "body": body, "more_body": True})
                # Let the loop notice a client that has left.
                await asyncio.sleep(0)
                taken.set_result(not gone.done())
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not taken.done():
                taken.set_result(False)
            session.server.leave(receive)
            for task in (gone, ended):
                task.cancel()


async def _taken(session: _Session, headers: Headers, receive: Receive) -> Response | Run:
    """Return the answer to a message, or the call that makes it; `receive` is the origin of the call."""
    if session.requests > _AT_ONCE:
        text = f"{_AT_ONCE} requests of this token run already: wait for one of them"
        return refusal(text, 429)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return refusal("send the message as application/json", 415)
    try:
        data = await received(receive, mcp.LONGEST)
    except ValueError as error:
        return refusal(f"the message cannot be read: {error}", 400)
    message: Any = None
    try:
        message = mcp.parsed(data)
        modern = _check_headers(headers, message)
    except mcp.ProtocolError as error:
        number = message.get("id") if isinstance(message, dict) else None
        return _answer(mcp.failure(number, error), 400)
    answer = session.server.take(message, receive)
    if answer is None:
        return Response(status_code=202)
    if callable(answer):
        return answer
    code = answer.get("error", {}).get("code")
    return _answer(answer, (_MODERN_STATUS if modern else _STATUS).get(code, 200))


def _check_headers(headers: Headers, message: object) -> bool:
    """Tell whether a message is of a version whose requests have headers that repeat parts of them.

    Raises `ProtocolError` if the headers are of an unsupported version, or do not fit the message.
    """
    named = headers.getlist("mcp-protocol-version")
    version = named[0] if named else None
    supported = (*mcp.SESSIONS, *mcp.REQUESTS)
    if version is not None and version not in supported:
        raise mcp.ProtocolError(
            mcp.UNSUPPORTED,
            f"version {version!r} of the protocol is not supported",
            {"supported": [*supported], "requested": version},
        )
    if not isinstance(message, dict) or message.get("id") is None:
        return version in mcp.REQUESTS
    params = message.get("params")
    stated = mcp.version_of(params)
    if stated is None and version not in mcp.REQUESTS:
        return False
    wanted = [("MCP-Protocol-Version", stated), ("Mcp-Method", message.get("method"))]
    if message.get("method") == "tools/call" and isinstance(params, dict):
        wanted.append(("Mcp-Name", params.get("name")))
    for name, value in wanted:
        if [*map(_plain, headers.getlist(name))] != [value]:
            raise mcp.ProtocolError(_MISMATCH, f"the header {name} does not fit the message")
    return True


def _plain(value: str) -> str:
    """Return the value of a header that may be encoded."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return value


def _answer(answer: dict[str, Any], status: int) -> Response:
    return Response(to_json(answer).encode(), status, media_type="application/json")


def _json(body: bytes) -> list[tuple[bytes, bytes]]:
    length = str(len(body)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length)]


__all__ = ["AgentTools", "McpEndpoint"]
