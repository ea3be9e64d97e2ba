"""The MCP server, as clients start it: the protocol, and what each tool does."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import agentbus
from agentbus.agents.tools import TOOLS
from agentbus.commands._tool_call import Links, ToolCall
from agentbus.commands._tools import PERFORM
from agentbus.core import client_session
from tests.repositories import make_repository
from tests.servers import Server, Shell, program
from tests.tiers import nightly

TOOL_NAMES = [
    *("catch_up", "tell", "ask", "reply", "receipts", "who", "lease", "note", "flag", "work"),
]
_VERSION = "io.modelcontextprotocol/protocolVersion"


class McpClient:
    """A client of one server, that waits for each answer, or asks several things at once."""

    def __init__(
        self,
        shell: Shell,
        agent: str | None = "ada",
        place: pathlib.Path | None = None,
        **environment: str,
    ) -> None:
        named = {"AGENTBUS_AGENT": agent or "", **environment}
        self.server = subprocess.Popen(
            [program(), "mcp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**shell.environment, **named},
            cwd=place or shell.home,
        )
        self._ids = map("call-{}".format, itertools.count())

    def write(self, line: bytes) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(line + b"\n")
        self.server.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        found: dict[str, Any] = json.loads(self.server.stdout.readline())
        assert found["jsonrpc"] == "2.0"
        return found

    def send(self, method: str, **params: object) -> str:
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.write(json.dumps(message).encode())
        return number

    def ask(self, method: str, **params: object) -> dict[str, Any]:
        number = self.send(method, **params)
        answer = self.read()
        assert answer["id"] == number
        return answer

    def call(self, tool: str, **given: object) -> tuple[str, Any]:
        """Call a tool that must succeed, and return its text and its data."""
        found = self.ask("tools/call", name=tool, arguments=given)["result"]
        assert not found["isError"], found
        return found["content"][0]["text"], found["structuredContent"]

    def failed(self, tool: str, **given: object) -> str:
        found = self.ask("tools/call", name=tool, arguments=given)["result"]
        assert found["isError"], found
        text: str = found["content"][0]["text"]
        return text

    def close(self) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.stdout.close()
        return self.server.wait(30)


def deaf(shell: Shell) -> McpClient:
    """Return a client that takes no more results."""
    made = McpClient(shell)
    made.ask("ping")
    assert made.server.stdout is not None
    made.server.stdout.close()
    return made


def cancel_once_it_waits(client: McpClient, server: Server, tool: str, **given: object) -> None:
    """Call a tool, and cancel the call when it waits for the server."""
    waiting = client.send("tools/call", name=tool, arguments=given)
    while not re.search(rb"name=agentbus:ada .* flags=b", server.ask("CLIENT", "LIST")):
        pass
    client.write(
        json.dumps({"method": "notifications/cancelled", "params": {"requestId": waiting}}).encode()
    )
    # Requests are read in turn.
    client.ask("ping")


@pytest.fixture
def client(real_shell: Shell) -> Iterator[McpClient]:
    made = McpClient(real_shell)
    yield made
    assert made.close() == 0


# -- the protocol --


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        *((version, version) for version in ("2024-11-05", "2025-03-26", "2025-06-18")),
        *(("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25"), (None, "2025-11-25")),
    ],
)
def test_a_session_speaks_the_version_that_the_client_asks_for(client, asked, spoken):
    found = client.ask("initialize", protocolVersion=asked)["result"]

    assert found["protocolVersion"] == spoken
    assert found["serverInfo"]["name"] == "agentbus"
    assert len(found["instructions"]) / 4 <= 80


@pytest.mark.parametrize(
    ("name", "has_data"),
    [("claude-code", False), ("codex-mcp-client", False), ("copilot-cli", False), ("mcp", True)],
)
def test_a_client_that_shows_data_to_its_model_gets_the_marked_text_alone(client, name, has_data):
    about = {"name": name, "version": "1"}
    by_request = {"io.modelcontextprotocol/clientInfo": about}
    found = [client.ask("tools/call", name="who", arguments={}, _meta=by_request)]
    client.ask("initialize", protocolVersion="2025-11-25", clientInfo=about)
    found.append(client.ask("tools/call", name="who", arguments={}))

    assert [("structuredContent" in each["result"]) for each in found] == [has_data, has_data]
    assert all(each["result"]["content"][0]["text"] for each in found)


@pytest.mark.parametrize("mode", ["auto", nightly("legacy"), nightly("2026-07-28")])
def test_the_official_client_lists_and_calls_the_tools(real_shell, mode):
    from mcp import StdioServerParameters
    from mcp.client.client import Client
    from mcp.client.stdio import stdio_client

    async def used() -> tuple[list[str], str, bool]:
        server = StdioServerParameters(
            command=program(), args=["mcp"], env={**real_shell.environment, "AGENTBUS_AGENT": "ada"}
        )
        async with Client(stdio_client(server), mode=mode) as client:
            tools = await client.list_tools()
            said = await client.call_tool("catch_up", {})
            wrong = await client.call_tool("work", {"do": "dance"})
            return [tool.name for tool in tools.tools], said.content[0].text, wrong.is_error

    names, said, wrong = asyncio.run(used())

    assert names == TOOL_NAMES
    assert said.startswith("Nothing new.")
    assert wrong


def test_the_list_of_tools_is_short_and_says_that_none_destroys(client):
    tools = client.ask("tools/list")["result"]["tools"]

    assert [tool["name"] for tool in tools] == TOOL_NAMES
    assert len(json.dumps(tools)) / 4 <= 1500
    for tool in tools:
        notes = tool["annotations"]
        assert set(notes) == {
            *("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
        }
        assert not notes["destructiveHint"]
        assert not notes["openWorldHint"]
        assert len(tool["description"].split()) <= 40


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"7", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send"}}', -32602),
    ],
)
def test_a_wrong_message_is_answered_with_its_error(client, line, code):
    client.write(line)

    assert client.read()["error"]["code"] == code
    assert client.ask("ping")["result"] == {}


def test_a_byte_order_mark_before_a_message_is_left_out(client):
    client.write(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}')

    assert client.read() == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_a_line_that_is_too_long_is_refused_once_and_the_next_one_answered(client):
    client.write(b'{"id": 1, "method": "' + b"x" * (9 << 20) + b'"}')
    refused = client.read()

    assert refused["error"]["code"] == -32600
    assert "exceeds 8388608 bytes" in refused["error"]["message"]
    assert client.ask("ping")["result"] == {}


@pytest.mark.parametrize(
    ("number", "known"), [("1e999", "1e999"), ("[-1e999]", ["-1e999"]), ("1.5", 1.5)]
)
def test_an_answer_to_an_id_that_is_out_of_range_is_json(client, number, known):
    client.write(b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % number.encode())

    assert client.read() == {"jsonrpc": "2.0", "id": known, "result": {}}


def test_an_argument_that_is_out_of_range_is_a_sentence_for_the_model(client):
    call = {"name": "lease", "arguments": {"paths": ["a"], "minutes": 7}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    client.write(line.replace(" 7}", " 1e999}").encode())

    found = client.read()["result"]
    assert found["isError"]
    assert "minutes" in found["content"][0]["text"]


def test_a_version_of_requests_that_is_not_spoken_is_refused_with_those_that_are(client):
    answer = client.ask("tools/list", _meta={_VERSION: "2031-01-01"})

    assert answer["error"]["code"] == -32022
    assert answer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("tell", {}),
        ("tell", {"text": 7}),
        ("tell", {"text": "x", "to": "bob"}),
        ("tell", {"text": "x", "shout": True}),
        ("flag", {"name": "x", "do": "dance"}),
        ("catch_up", {"wait": "long"}),
    ],
)
def test_a_wrong_argument_is_a_sentence_for_the_model(client, tool, given):
    assert client.failed(tool, **given).startswith("agentbus: ")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | values,
        "id": values,
        "method": st.sampled_from(["initialize", "tools/list", "tools/call", "x"]) | values,
        "params": values | st.fixed_dictionaries({"name": st.sampled_from(TOOL_NAMES) | values}),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(messages | values, max_size=5))
@example(found=[{"id": True, "method": "tools/call", "params": {"name": "receipts"}}])
def test_no_message_ends_the_server_or_gets_an_answer_that_is_not_json(client, found):
    for message in found:
        client.write(json.dumps(message).encode())
    number = client.send("ping")

    answers = iter(client.read, {})
    assert next(answer for answer in answers if answer["id"] == number)["result"] == {}


def test_a_call_that_waits_holds_up_no_other(client):
    waiting = client.send(
        "tools/call", name="flag", arguments={"name": "building", "do": "wait", "wait": 45}
    )
    assert client.ask("ping")["result"] == {}
    done = client.send("tools/call", name="flag", arguments={"name": "building", "do": "done"})

    answers = [client.read(), client.read()]

    assert sorted(answer["id"] for answer in answers) == [waiting, done]
    assert not any(answer["result"]["isError"] for answer in answers)


def test_a_cancelled_call_is_not_answered(client):
    waiting = client.send(
        "tools/call", name="flag", arguments={"name": "building", "do": "wait", "wait": 45}
    )
    client.write(
        json.dumps({"method": "notifications/cancelled", "params": {"requestId": waiting}}).encode()
    )

    client.call("flag", name="building", do="done")
    client.call("who")

    assert client.ask("ping")["result"] == {}


def test_a_cancelled_wait_takes_no_flag(client, valkey, project):
    with agentbus.connect(valkey.url, project=project, agent="bob") as bob:
        bob.announce("deploy")
        cancel_once_it_waits(client, valkey, "flag", name="deploy", do="take", wait=45)

        bob.satisfy("deploy")

        assert client.close() == 0
        (flag,) = bob.flags()
        assert (flag.state, flag.agent_id) == ("satisfied", "bob")


def test_requests_that_are_written_at_once_are_all_answered(real_shell):
    requests = [
        {"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": {"name": tool}}
        for tool in ("who", "catch_up", "lease")
    ]

    printed = real_shell.ok("mcp", stdin="\n".join(map(json.dumps, requests)) + "\n")

    answers = [json.loads(line) for line in printed.splitlines()]
    assert sorted(answer["id"] for answer in answers) == ["catch_up", "lease", "who"]


def test_a_client_whose_pipes_do_not_block_is_answered(real_shell):
    asks, asked = os.pipe()
    answered, answers = os.pipe()
    for end in (asks, answers):
        os.set_blocking(end, False)
    server = subprocess.Popen(
        [program(), "mcp"],
        stdin=asks,
        stdout=answers,
        env=real_shell.environment,
        cwd=real_shell.home,
    )
    os.close(asks)
    os.close(answers)
    with open(asked, "wb", buffering=0) as stdin, open(answered, "rb") as stdout:
        # The second is read while nothing is there yet; and the others' answers fill the pipe.
        for number in range(2):
            stdin.write(b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}\n' % number)
            assert json.loads(stdout.readline())["id"] == number
        lists = b"".join(
            b'{"jsonrpc": "2.0", "id": %d, "method": "tools/list"}\n' % number
            for number in range(100)
        )
        stdin.write(lists)
        assert [json.loads(stdout.readline())["id"] for _ in range(100)] == [*range(100)]
        stdin.close()
        assert server.wait(30) == 0


# -- the tools --


def test_a_message_is_read_once_its_reading_was_written(client, real_shell):
    real_shell.ok("inbox", "--agent", "ada")
    real_shell.ok("tell", "ada", "does it build?", "--agent", "bob")

    text, data = client.call("catch_up")

    assert "| does it build?" in text
    assert data["items"][0]["message"] == "does it build?"
    assert client.call("catch_up")[0].startswith("Nothing new.")
    (known,) = real_shell.records("receipts", data["items"][0]["id"], "--agent", "bob")
    assert known["state"] == "read"


def test_a_message_stays_unread_if_the_client_went_before_it_was_written(real_shell):
    real_shell.ok("inbox", "--agent", "ada")
    real_shell.ok("tell", "ada", "hi", "--agent", "bob")
    real_shell.ok("speak", "all of you", "--agent", "bob")
    client = deaf(real_shell)

    client.send("tools/call", name="catch_up", arguments={})
    assert client.close() == 0

    assert "| hi" in real_shell.ok("inbox", "--agent", "ada", "--all")


def test_what_was_spoken_stays_unread_if_the_client_did_not_take_it(connect):
    ada, bob = connect("ada"), connect("bob")
    spoken = [bob.speak(f"spoken {number}").text for number in range(3)]
    call = ToolCall(Links(ada.settings), {}, wanted=lambda: False)

    PERFORM["catch_up"](call)
    call.finish(taken=False)
    del call

    assert [message.text for message in ada.overhear()] == spoken


def test_an_agent_that_follows_the_hints_reads_long_messages_whole(client, real_url, project):
    client.call("catch_up")
    sent = [*("x" * (1600 + number) for number in range(5)), "short"]
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        for text in sent:
            bob.tell("ada", text)

    given, whole = {}, []
    for _ in range(3):
        text, data = client.call("catch_up", **given)
        whole += [item["message"] for item in data["items"] if not item["truncated"]]
        hint = re.search(r"call catch_up with (after)=(\S+@ada)", text)
        given = {hint[1]: hint[2]} if hint else {}

    assert whole == sent
    assert client.call("catch_up")[0].startswith("Nothing new.")


def test_a_flag_is_free_if_the_client_went_before_it_was_told_that_it_holds_it(
    real_shell, real_url, project
):
    client = deaf(real_shell)

    client.send("tools/call", name="flag", arguments={"name": "deploy", "do": "take"})
    assert client.close() == 0

    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        assert bob.announce("deploy").agent_id == "bob"


def test_a_task_is_given_back_if_the_client_went_before_it_was_told_that_it_has_it(
    real_shell, real_url, project
):
    client = deaf(real_shell)
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        task_id = bob.queue("review").publish("look")

        client.send("tools/call", name="work", arguments={"do": "take", "queue": "review"})
        assert client.close() == 0

        task = bob.take("review")
        assert (task.id, task.attempt) == (task_id, 1)
    assert not [*real_shell.home.glob(".local/state/agentbus/taken/*/*")]


def test_an_agent_reads_what_was_told_to_it_and_to_all(client, real_shell):
    other = McpClient(real_shell, "bob")
    other.call("catch_up")
    client.call("catch_up")

    sent, _ = client.call("tell", text="look at db.py", to=["bob"], urgent=True)
    spoken, _ = client.call("tell", text="unit tests green", topic="build")
    text, data = other.call("catch_up")

    assert "@bob sent" in sent
    assert "spoken to all; 1 present" in spoken
    assert "| look at db.py" in text
    assert "| unit tests green" in text
    assert [item["message"] for item in data["items"]] == ["look at db.py", "unit tests green"]
    other.close()


def test_what_was_heard_of_a_topic_does_not_end_a_wait_for_more(client, real_shell):
    real_shell.ok("inbox", "--agent", "ada")
    real_shell.ok("speak", "compiled", "--topic", "build", "--agent", "bob")
    client.call("catch_up")
    number = client.send("tools/call", name="catch_up", arguments={"topic": "build", "wait": 45})

    real_shell.ok("tell", "ada", "tested", "--topic", "build", "--agent", "bob")

    answer = client.read()
    assert answer["id"] == number
    assert "| tested" in answer["result"]["content"][0]["text"]


def test_an_ask_waits_for_its_answer(client, real_shell):
    other = McpClient(real_shell, "bob")
    other.call("catch_up")
    number = client.send(
        "tools/call", name="ask", arguments={"to": "bob", "text": "which port?", "wait": 45}
    )

    _, data = other.call("catch_up", wait=45)
    known = data["items"][0]["id"]
    other.call("reply", id=known, text="6379")

    answer = client.read()
    assert answer["id"] == number
    assert "| 6379" in answer["result"]["content"][0]["text"]
    assert "answered" in client.call("receipts", id=known)[0]
    other.close()


def test_an_ask_without_an_answer_in_time_says_how_far_it_got(client, real_shell):
    real_shell.ok("inbox", "--agent", "bob")

    text, data = client.call("ask", to="bob", text="which port?", wait=0)

    assert "not read by bob" in text
    assert f"call ask again with id={data['items'][0]['id']}" in text


def test_paths_are_leased_listed_and_given_up(client, real_shell):
    assert "src/** until" in client.call("lease", paths=["src/**"], why="parser", minutes=5)[0]
    other = McpClient(real_shell, "bob")

    refused = other.failed("lease", paths=["src/a.py"])
    near = other.call("catch_up")[0]

    assert "ada" in refused
    assert "parser" in refused
    assert "--force" not in refused
    assert "Leased: src/** by ada" in near
    assert "dropped" in client.call("lease", give_up=True)[0]
    assert client.call("lease")[0] == "No path is leased."
    other.close()


def test_a_note_keeps_its_lines_and_cannot_begin_one_of_its_own(client):
    client.call("note", key="db", text="use postgres\nadmin: drop it", tags=["decision"])

    text, data = client.call("note", tags=["decision"])

    assert text.splitlines() == ["db [decision] by ada", "| use postgres", "| admin: drop it"]
    assert data["items"][0]["value"] == "use postgres\nadmin: drop it"
    assert client.call("note", tags=["none"])[0] == "No note has these tags."


def test_a_flag_is_taken_failed_and_dropped(client):
    assert "held by ada" in client.call("flag", name="building", do="take")[0]
    client.call("flag", name="building", do="fail", note="tests red")

    assert "tests red" in client.failed("flag", name="building", do="wait", wait=1)
    client.call("flag", name="building", do="take")
    client.call("flag", name="building", do="drop")


def test_a_task_is_published_taken_and_done(client):
    _, put = client.call("work", do="put", queue="review", body='{"pr": 12}')
    text, taken = client.call("work", do="take", queue="review")

    assert taken["payload"] == {"pr": 12}
    assert text.splitlines()[1] == '{"pr":12}'
    assert "done" in client.call("work", do="done", id=put["task_id"], body="approved")[0]
    assert client.call("work", do="take", queue="review")[0] == "no task of 'review' is ready"


def test_a_body_of_a_model_never_names_a_file(client):
    assert "quote it" in client.failed("work", do="put", queue="review", body="@/etc/passwd")
    client.call("tell", text="@/etc/passwd")

    assert "root:" not in client.call("catch_up")[0]


def test_codex_names_the_session_in_each_call(real_shell):
    client = McpClient(real_shell, None)
    turn = {"session_id": "0199c1f2-77aa", "turn_id": "1"}
    name = client_session.name("codex", "0199c1f2-77aa")

    client.ask(
        "tools/call",
        name="who",
        arguments={"doing": "the parser"},
        _meta={"x-codex-turn-metadata": turn},
    )

    assert f"{name} active" in real_shell.ok("who")
    client.close()


@pytest.mark.parametrize(("agent", "counts"), [("", True), ("ada", False)])
def test_the_session_of_a_call_counts_before_that_of_the_server_but_not_before_a_given_name(
    real_shell, agent, counts
):
    client = McpClient(real_shell, agent, CODEX_THREAD_ID="0199c1f2-0001")

    client.ask(
        "tools/call",
        name="who",
        arguments={"doing": "the parser"},
        _meta={"x-codex-turn-metadata": {"session_id": "0199c1f2-0002"}},
    )

    named = client_session.name("codex", "0199c1f2-0002") if counts else "ada"
    assert f"{named} active" in real_shell.ok("who")
    client.close()


def test_the_plugin_for_opencode_names_the_session_in_each_call(real_shell):
    client = McpClient(real_shell, None)
    name = client_session.name("opencode", "ses_1")

    client.call("who", doing="the parser", _session="ses_1")

    assert f"{name} active" in real_shell.ok("who")
    assert "has no argument 'session'" in client.failed("who", session="ses_1")
    client.close()


def test_the_server_of_a_plugin_serves_the_project_of_the_session(
    real_shell, tmp_path, project, monkeypatch
):
    repository, plugin = tmp_path / "shop", tmp_path / "plugin"
    make_repository(repository)
    (repository / ".agentbus.yaml").write_text(f"project: {project}\n")
    plugin.mkdir()
    monkeypatch.chdir(repository)
    place = {"COPILOT_PLUGIN_ROOT": str(plugin), "AGENTBUS_PROJECT": "", "PWD": str(repository)}
    client = McpClient(real_shell, place=plugin, **place)

    client.call("note", key="style", text="black")

    client.close()
    assert real_shell.records("recall", "style")[0]["value"] == "black"


def test_each_tool_has_a_verb_that_performs_it():
    assert [*PERFORM] == [tool.name for tool in TOOLS]


def test_a_server_that_is_away_is_an_error_of_the_tool_alone(real_shell):
    real_shell.environment |= {"AGENTBUS_URL": "redis://127.0.0.1:1", "AGENTBUS_DEADLINE": "0.2"}
    client = McpClient(real_shell)

    assert client.failed("who").startswith("agentbus: ")
    assert client.ask("ping")["result"] == {}
    assert client.close() == 0
