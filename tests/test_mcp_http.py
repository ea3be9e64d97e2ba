"""The tools by MCP over HTTP of `agentbus web --mcp`: tokens, scopes, headers, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple

import pytest

import agentbus
from agentbus.agents import tokens
from agentbus.commands.web import _AgentTools
from agentbus.dashboard.web import application, serve
from agentbus.dashboard.web.mcp import _AT_ONCE
from agentbus.store.steps import Command, one_step
from tests.test_web_clients import closed
from tests.tiers import nightly

PATIENCE = 30.0
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol"
_FORM = "application/x-www-form-urlencoded"


class HttpAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        text: str = self.json["error"]["message"]
        return text

    @property
    def result(self) -> Any:
        assert self.status == 200, self
        return self.json["result"]

    @property
    def text(self) -> str:
        """The text of a tool's result."""
        text: str = self.result["content"][0]["text"]
        return text


class McpSite:
    """`agentbus web --mcp` on a real port."""

    def __init__(self, port: int, bus: Any) -> None:
        self.port = port
        self.bus = bus
        self.opened: list[asyncio.StreamWriter] = []

    async def token(self, agent: str = "cloud", scope: str = "work", ttl: float = 60.0) -> str:
        """Create a token."""
        op = tokens.create(self.bus.scope, agent, scope, ttl)
        secret, _ = await self.bus.runner.run(op, verb="token")
        return str(secret)

    async def send(
        self,
        token: str | None,
        body: bytes,
        *,
        method: str = "POST",
        path: str = "/mcp",
        length: int | None = None,
        **headers: str,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request, and return its connection."""
        named = {
            "host": f"127.0.0.1:{self.port}",
            "content-type": "application/json",
            "content-length": str(len(body) if length is None else length),
            **({} if token is None else {"authorization": f"Bearer {token}"}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        return reader, writer

    async def ask(self, token: str | None, message: object, **options: Any) -> HttpAnswer:
        """Send a message, and return the answer."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        async with asyncio.timeout(PATIENCE):
            reader, _ = await self.send(token, body, **options)
            return await answer_on(reader)

    async def call(self, token: str, tool: str, **given: object) -> HttpAnswer:
        """Call a tool."""
        return await self.ask(token, request("tools/call", name=tool, arguments=given))


async def _until_calls_run(number: int) -> None:
    """Wait until this number of calls run, each in a thread."""
    async with asyncio.timeout(PATIENCE):
        while sum("(work)" in thread.name for thread in threading.enumerate()) != number:
            await asyncio.sleep(0.01)


async def answer_on(reader: asyncio.StreamReader) -> HttpAnswer:
    """Return the answer that comes on a connection."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(named.get("content-length", "0")))
    return HttpAnswer(int(head[0].split()[1]), named, body)


def request(method: str, number: object = 1, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def modern(method: str, **params: object) -> dict[str, object]:
    meta = {f"{_META}/protocolVersion": MODERN, f"{_META}/clientInfo": {"name": "test"}}
    return request(method, _meta=meta, **params)


@pytest.fixture
def url(real_url) -> str:
    return str(real_url)


@pytest.fixture
async def site(abus) -> AsyncIterator[McpSite]:
    """The application, served as the verb serves it."""
    said: list[str] = []
    ended = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    made = application(
        abus, code="the-code-of-the-pages", tools=partial(_AgentTools, abus.settings)
    )
    found = McpSite(listening.getsockname()[1], abus)
    serving = asyncio.create_task(serve.serve(made, listening, ended=ended, say=said.append))
    try:
        yield found
    finally:
        ended.set()
        async with asyncio.timeout(PATIENCE):
            await serving
        for writer in found.opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    assert said == []


# -- tokens --


async def test_a_token_names_the_agent_whatever_the_call_says(site, bus):
    token = await site.token("cloud")

    said = await site.ask(
        token,
        request(
            "tools/call",
            name="tell",
            arguments={"text": "hi", "_session": "0123456789abcdef"},
            _meta={"x-codex-turn-metadata": {"session_id": "01890000-0000-7000-8000-000000000000"}},
        ),
    )

    assert "spoken to all" in said.text
    (message,) = bus.overhear()
    assert (message.agent_id, message.text) == ("cloud", "hi")


@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "Bearer ", "Bearer a, b"])
async def test_without_a_token_nothing_is_answered_but_how_to_send_one(site, header):
    await site.token()
    headers = {} if header is None else {"authorization": header}

    answer = await site.ask(None, request("tools/list"), **headers)

    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("bearer")
    assert "token" in answer.error


async def test_a_token_that_has_ended_or_was_revoked_is_refused(site, bus):
    brief, revoked = await site.token("brief", ttl=1.0), await site.token("revoked")
    assert (await site.ask(revoked, request("ping"))).result == {}
    bus.runner.run(tokens.revoke(bus.scope, "revoked"), verb="token")

    refused = await site.ask(revoked, request("ping"))
    until = time.monotonic() + PATIENCE
    while (last := await site.ask(brief, request("ping"))).status == 200:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)

    for answer in (refused, last):
        assert (answer.status, "revoked, or has ended" in answer.error) == (401, True)


async def test_wrong_tokens_are_logged_and_slowed_and_lock_out_no_right_one(site):
    right = await site.token()

    answers = [await site.ask("agentbus_wrong", request("ping")) for _ in range(7)]

    assert [answer.status for answer in answers] == [401] * 5 + [429] * 2
    assert answers[-1].headers["retry-after"] == "60"
    assert (await site.ask(right, request("ping"))).result == {}
    # People behind the same address may still enter a token.
    form = {"origin": f"http://127.0.0.1:{site.port}", "content_type": _FORM}
    assert (await site.ask(None, b"token=wrong", path="/session", **form)).status == 403


async def test_the_session_of_a_browser_is_no_token(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"GET /?code=the-code-of-the-pages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    cookie = (await answer_on(reader)).headers["set-cookie"].partition(";")[0]
    writer.close()

    answer = await site.ask(None, request("ping"), cookie=cookie)

    assert answer.status == 401


@pytest.mark.parametrize(
    "record",
    [
        *("", "7", "[]", "{", "{}", '{"agent":"a","scope":"root","since":1,"until":9e12}'),
        '{"agent":"human:eve","scope":"work","since":1,"until":9e12}',
        '{"agent":"a","scope":"work","since":1,"until":"9"}',
        '{"agent":["a"],"scope":"work","since":1,"until":9e12}',
    ],
)
async def test_a_record_of_another_form_is_no_token(site, bus, record):
    secret = "agentbus_forged"
    op = one_step(Command("HSET", bus.scope.keys.tokens, tokens._digest(secret), record))
    bus.runner.run(op, verb="token")

    assert (await site.ask(secret, request("ping"))).status == 401
    assert bus.runner.run(tokens.valid(bus.scope), verb="token") == []
    await site.token("cloud")


# -- scopes --


async def test_a_token_of_one_scope_is_refused_in_another_and_does_not_see_its_tools(site):
    scopes = ("read", "talk", "work")
    held = {scope: await site.token(scope, scope) for scope in scopes}
    calls = {
        "read": ("who", {}, "talk"),
        "talk": ("flag", {"name": "deploy", "do": "take"}, "work"),
    }
    for scope, (tool, given, needed) in calls.items():
        listed = (await site.ask(held[scope], request("tools/list"))).result["tools"]
        assert tool not in {one["name"] for one in listed}
        refused = (await site.call(held[scope], tool, **given)).result
        assert refused["isError"]
        text = refused["content"][0]["text"]
        assert f"needs the scope {needed}; this client has {scope}" in text

    assert len((await site.ask(held["work"], request("tools/list"))).result["tools"]) == 10
    assert not (await site.call(held["work"], "flag", name="deploy", do="take")).result["isError"]


async def test_a_reader_is_told_how_a_tool_only_reads(site, bus):
    token = await site.token("cloud", "read")

    assert "which allows peek: true" in (await site.call(token, "catch_up")).text
    assert "Nothing new." in (await site.call(token, "catch_up", peek=True)).text


# -- the protocol --


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_session_begins_without_an_id_of_its_own(site, version):
    token = await site.token()

    begun = await site.ask(token, request("initialize", protocolVersion=version))
    noted = await site.ask(
        token,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        mcp_protocol_version=version,
    )
    listed = await site.ask(token, request("tools/list"), mcp_protocol_version=version)

    assert begun.result["protocolVersion"] == version
    assert "mcp-session-id" not in begun.headers
    assert (noted.status, noted.body) == (202, b"")
    assert len(listed.result["tools"]) == 10


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "PUT"])
async def test_only_post_is_allowed(site, method):
    answer = await site.ask(await site.token(), b"", method=method, mcp_session_id="1")

    assert (answer.status, answer.headers["allow"]) == (405, "post")


async def test_a_request_of_the_new_version_has_headers_that_fit_it(site):
    token = await site.token()
    call = modern("tools/call", name="who", arguments={})
    fitting = {
        "mcp_protocol_version": MODERN,
        "mcp_method": "tools/call",
        "mcp_name": "=?base64?d2hv?=",
    }

    right = await site.ask(token, call, **fitting)
    plain = await site.ask(token, call, **{**fitting, "mcp_name": "who"})
    wrong = [
        await site.ask(token, call, **{**fitting, name: value})
        for name, value in (
            ("mcp_name", "tell"),
            ("mcp_name", "=?base64?!?="),
            ("mcp_method", "tools/list"),
            ("mcp_protocol_version", "2025-11-25"),
        )
    ]
    wrong += [
        await site.ask(token, call, **{key: fitting[key] for key in fitting if key != left_out})
        for left_out in fitting
    ]
    wrong.append(await site.ask(token, request("tools/call", name="who"), **fitting))

    assert right.result["structuredContent"] == plain.result["structuredContent"]
    for answer in wrong:
        assert (answer.status, answer.json["error"]["code"]) == (400, -32020), answer


async def test_a_version_that_is_not_spoken_is_refused_with_those_that_are(site):
    answer = await site.ask(
        await site.token(), request("tools/list"), mcp_protocol_version="2031-01-01"
    )

    assert (answer.status, answer.json["error"]["code"]) == (400, -32022)
    assert MODERN in answer.json["error"]["data"]["supported"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff", 400, -32700),
        (b"", 400, -32700),
        (b"7", 400, -32600),
        (b"[]", 400, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send"}}', 200, -32602),
    ],
)
async def test_a_wrong_message_is_answered_with_its_error(site, body, status, code):
    answer = await site.ask(await site.token(), body)

    assert (answer.status, answer.json["error"]["code"]) == (status, code)


async def test_an_unknown_method_of_the_new_version_is_not_found(site):
    answer = await site.ask(
        await site.token(),
        modern("resources/list"),
        mcp_protocol_version=MODERN,
        mcp_method="resources/list",
    )

    assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


async def test_a_client_that_is_not_known_gets_the_marked_text_alone(site):
    token = await site.token()
    await site.ask(token, request("initialize", clientInfo={"name": "other", "version": "1"}))

    assert "structuredContent" not in (await site.call(token, "who")).result


async def test_only_json_is_read(site):
    answer = await site.ask(await site.token(), request("ping"), content_type="text/plain")

    assert answer.status == 415


# -- where requests come from --


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:7070"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example", "authorization": ""}, 403),
    ],
)
async def test_pages_of_other_sites_and_rebound_names_are_refused(site, headers, status):
    answer = await site.ask(await site.token(), request("ping"), **headers)

    assert answer.status == status
    assert answer.headers["content-type"].startswith("application/json")


async def test_the_own_origin_is_let_in(site):
    origin = f"http://127.0.0.1:{site.port}"

    assert (await site.ask(await site.token(), request("ping"), origin=origin)).result == {}


# -- clients that are slow, or leave --


async def test_the_body_of_a_client_without_a_token_is_not_waited_for(site):
    reader, _ = await site.send(None, b"", length=1_000_000)

    assert (await answer_on(reader)).status == 401


async def test_a_message_that_does_not_come_in_time_is_refused(site, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.guard._SECONDS", 0.1)
    reader, _ = await site.send(await site.token(), b"{", length=1_000)

    answer = await answer_on(reader)

    assert (answer.status, "did not come" in answer.error) == (400, True)


async def test_clients_whose_message_does_not_come_give_way_to_new_ones(site, monkeypatch):
    token = await site.token()
    monkeypatch.setattr(serve, "_MOST", 8)
    first, _ = await site.send(token, b"{", length=1_000)
    for _ in range(20):
        await site.send(token, b"{", length=1_000)

    assert (await site.ask(await site.token("other"), request("ping"))).result == {}
    assert await closed(first)


async def test_a_message_that_is_too_long_is_refused(site, monkeypatch):
    monkeypatch.setattr("agentbus.agents.mcp.LONGEST", 1_000)
    answer = await site.ask(await site.token(), request("ping", text="x" * 1_000))

    assert (answer.status, "more than 1000 bytes" in answer.error) == (400, True)


async def test_a_call_waits_longer_than_a_page_may_take_and_stops_nobody(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    await _until_calls_run(0)
    waiting = asyncio.create_task(site.call(token, "catch_up", wait=30))
    await _until_calls_run(1)

    assert (await site.ask(token, request("ping", number=1))).result == {}
    bus.tell("cloud", "does it build?")

    assert "| does it build?" in (await waiting).text


async def test_two_clients_of_one_token_may_use_equal_ids(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    await _until_calls_run(0)
    waiting = asyncio.create_task(site.call(token, "catch_up", wait=30))
    await _until_calls_run(1)

    assert "Here: " in (await site.call(token, "catch_up")).text
    bus.tell("cloud", "go on")

    assert "| go on" in (await waiting).text


async def test_a_message_is_read_once_the_client_has_its_answer(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    sent = bus.tell("cloud", "does it build?")

    text = (await site.call(token, "catch_up")).text

    assert "| does it build?" in text
    assert "Nothing new." in (await site.call(token, "catch_up")).text
    assert bus.receipts(sent.id).state == "read"


async def test_a_message_stays_unread_if_the_client_left_before_the_answer(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    await _until_calls_run(0)
    call = request("tools/call", name="catch_up", arguments={"wait": 30})
    _, writer = await site.send(token, json.dumps(call).encode())
    await _until_calls_run(1)
    writer.transport.abort()
    # Connections are read in turn.
    await site.ask(token, request("ping"))
    bus.tell("cloud", "does it build?")
    await _until_calls_run(0)

    assert "| does it build?" in (await site.call(token, "catch_up")).text


async def test_a_cancelled_call_is_not_performed_further(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    await _until_calls_run(0)
    call = request("tools/call", "call-7", name="catch_up", arguments={"wait": 30})
    reader, _ = await site.send(token, json.dumps(call).encode())
    await _until_calls_run(1)

    cancel = {"method": "notifications/cancelled", "params": {"requestId": "call-7"}}
    noted = await site.ask(token, {"jsonrpc": "2.0", **cancel})
    bus.tell("cloud", "still unread")
    await _until_calls_run(0)
    text = (await site.call(token, "catch_up")).text

    assert (noted.status, (await answer_on(reader)).body) == (202, b"")
    assert "| still unread" in text


async def test_one_token_has_a_bound_of_requests_and_others_are_answered(site, monkeypatch):
    token, other = await site.token("cloud"), await site.token("other")
    busy = [await site.send(token, b"{", length=1_000) for _ in range(_AT_ONCE)]
    until = time.monotonic() + PATIENCE
    while (refused := await site.ask(token, request("ping"))).status != 429:
        assert time.monotonic() < until
    assert "wait for one of them" in refused.error
    assert (await site.ask(other, request("ping"))).result == {}

    for _, writer in busy:
        writer.transport.abort()
    while (await site.ask(token, request("ping"))).status == 429:
        assert time.monotonic() < until


async def test_calls_that_wait_end_with_the_server(abus):
    listening, ended = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    made = application(abus, code="a-code", tools=partial(_AgentTools, abus.settings))
    site = McpSite(listening.getsockname()[1], abus)
    serving = asyncio.create_task(serve.serve(made, listening, ended=ended, say=lambda _: None))
    token = await site.token()
    await site.call(token, "catch_up")
    await _until_calls_run(0)
    waiting = asyncio.create_task(site.call(token, "catch_up", wait=30))
    await _until_calls_run(1)

    ended.set()
    async with asyncio.timeout(PATIENCE):
        await serving

    assert (await waiting).status == 503
    for writer in site.opened:
        writer.close()


# -- agents elsewhere --


async def test_nothing_of_this_machine_describes_an_agent_elsewhere(site, bus, monkeypatch):
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "0f6c2a10-7d0e-4c55-9b1e-0a6f2d8c41aa")
    monkeypatch.setenv("AGENTBUS_SUB", "abc")
    token = await site.token()

    await site.call(token, "who", doing="the parser")
    await site.call(token, "lease", paths=["src/**"], why="parser")

    (cloud,) = [one for one in bus.present() if one.agent == "cloud"]
    assert (cloud.doing, cloud.host, cloud.pid, cloud.cwd) == ("the parser", None, None, None)
    assert (cloud.client, cloud.session) == (None, None)
    (lease,) = bus.leases()
    assert (lease.agent, lease.sub, lease.process) == ("cloud", None, None)


async def test_a_token_reaches_other_projects_by_answers_alone(site, bus):
    token = await site.token()
    await site.call(token, "catch_up")
    with agentbus.connect(bus.settings.url, project=f"{bus.project}x", agent="bob") as bob:
        bob.here()
        asked = bob.tell(f"cloud@{bus.project}", "green?")

        for tool in ("tell", "ask"):
            to: Any = f"bob@{bob.project}"
            said = await site.call(token, tool, to=[to] if tool == "tell" else to, text="hi")
            assert f"token is for {bus.project}" in said.text
        await site.call(token, "reply", id=asked.id, text="yes")

        assert [message.text for message in bob.inbox()] == ["yes"]


async def test_a_token_sees_no_receipt_of_another_project(site, bus):
    token = await site.token()
    with agentbus.connect(bus.settings.url, project=f"{bus.project}x", agent="bob") as bob:
        bob.here()
        own = bob.tell("bob", "a note")
        known = f"{own.id}@{bob.project}"
        assert bus.receipts(known).state == "sent"

        for tool in ("receipts", "ask"):
            shown = await site.call(token, tool, id=known)
            assert f"there is no message '{known}'" in shown.text


async def test_paths_of_an_agent_elsewhere_begin_at_the_repository(
    site, bus, tmp_path, monkeypatch
):
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/deploy").mkdir()
    monkeypatch.chdir(tmp_path / "repo/deploy")
    token = await site.token()

    await site.call(token, "lease", paths=["src/**"])

    assert [lease.pattern for lease in bus.leases()] == ["src/**"]


async def test_a_text_of_a_model_names_no_file_of_the_server(site, bus, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the password")
    token = await site.token()

    await site.call(token, "note", key="a", text=f"@{secret}")
    await site.call(token, "tell", text=f"@{secret}")
    await site.call(token, "flag", name="f", do="take")
    await site.call(token, "flag", name="f", do="done", note=f"@{secret}")
    for put in ({"body": f"@{secret}"}, {"title": "t", "body": f"@{secret}"}):
        await site.call(token, "work", do="put", queue="q", **put)

    assert bus.recall("a").value == f"@{secret}"
    assert all("password" not in message.text for message in bus.overhear())
    assert os.path.exists(secret)


# -- the official client --


@pytest.mark.parametrize("mode", ["auto", nightly("legacy"), nightly(MODERN)])
async def test_the_official_client_lists_and_calls_the_tools(site, mode):
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    token = await site.token("cloud", "talk")
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(
            streamable_http_client(f"http://127.0.0.1:{site.port}/mcp", http_client=http), mode=mode
        ) as client,
    ):
        tools = await client.list_tools()
        said = await client.call_tool("catch_up", {})
        refused = await client.call_tool("flag", {"name": "deploy", "do": "take"})

    assert "flag" not in {tool.name for tool in tools.tools}
    assert said.content[0].text.startswith("Nothing new.")
    assert refused.is_error
    assert "needs the scope work" in refused.content[0].text
