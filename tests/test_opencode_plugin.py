"""The plugin for OpenCode: what it does in a client, whatever becomes of the program that it calls."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any

import pytest

from agentbus.agents import plugin

NODE = shutil.which("node")
# OpenCode needs node, which the nightly tier has: there, a missing one is a failure.
pytestmark = pytest.mark.slow

# Runs the lines of a script in a client that keeps what it is asked to prompt, and prints what it has.
CLIENT = """
import { AgentBus } from "./agentbus.mjs"
const prompts = []
const parents = { ses_child: "ses_1" }
const session = {
  get: async ({ path: { id } }) => ({ data: { id, parentID: parents[id] } }),
  promptAsync: async (asked) => (prompts.push(asked), {}),
}
const hooks = await AgentBus({ client: { session }, directory: process.cwd() })
const happens = (type, properties) => hooks.event({ event: { type, properties } })
const message = { id: "msg_1", agent: "plan", model: { providerID: "p", modelID: "m" } }
const turn = async (sessionID = "ses_1") => {
  const parts = []
  await hooks["chat.message"]({ sessionID }, { message, parts })
  return parts.map((part) => part.text)
}
const edit = (tool, args, sessionID = "ses_1") =>
  hooks["tool.execute.before"]({ tool, sessionID }, { args }).then(() => "done", (e) => e.message)
const after = async (tool, output, sessionID = "ses_1") =>
  (await hooks["tool.execute.after"]({ tool, sessionID }, output), output)
const until = async (found) => { while (!found()) await new Promise((go) => setTimeout(go, 5)) }
"""
# Answers an event with the file of its name, and notes what it got.
PROGRAM = """#!/bin/sh
given=$(cat)
printf '%s %s\n' "$3" "$given" >>"$0.log"
cat "$0.$3" 2>/dev/null
true
"""


class OpenCode:
    """OpenCode as the plugin sees it."""

    def __init__(self, place: pathlib.Path) -> None:
        self.place, self.program = place, place / "agentbus"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        script = plugin.files(str(self.program))["opencode/agentbus.js"]
        # So that a program that hangs does not hold up the test.
        assert "HOOK_MS = 10_000" in script
        (place / "agentbus.mjs").write_text(script.replace("HOOK_MS = 10_000", "HOOK_MS = 1_000"))

    def answers(self, event: str, said: object) -> None:
        text = said if isinstance(said, str) else json.dumps(said)
        (self.place / f"agentbus.{event}").write_text(text)

    def run(self, script: str) -> Any:
        """Return what a script prints, as JSON."""
        (self.place / "client.mjs").write_text(CLIENT + script)
        done = subprocess.run(
            [str(NODE), "client.mjs"],
            capture_output=True,
            check=False,
            cwd=self.place,
            text=True,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The events for which the program was called, and what it got."""
        lines = (self.place / "agentbus.log").read_text().splitlines()
        split = [line.split(" ", 1) for line in lines]
        return [(event, json.loads(given)) for event, given in split]

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.calls]


@pytest.fixture
def opencode(tmp_path: pathlib.Path) -> OpenCode:
    return OpenCode(tmp_path)


def test_the_page_of_a_session_comes_with_its_first_message_once(opencode):
    opencode.answers("session.created", {"context": "the page", "agent": "opencode-otter-k3f"})
    opencode.answers("chat.message", {"context": "the bell"})

    first, second = opencode.run("""
        await happens("session.created", { sessionID: "ses_1", info: { id: "ses_1" } })
        console.log(JSON.stringify([await turn(), await turn()]))
    """)

    assert first == ["the page\n\nthe bell"]
    assert second == ["the bell"]
    assert opencode.events == ["session.created", "chat.message", "chat.message"]


def test_a_session_that_is_resumed_is_one_that_begins(opencode):
    opencode.answers("session.created", {"context": "the page", "agent": "opencode-otter-k3f"})

    assert opencode.run("console.log(JSON.stringify(await turn()))") == ["the page"]
    assert opencode.calls[0] == (
        "session.created",
        {"sessionID": "ses_1", "cwd": str(opencode.place)},
    )


def test_after_a_compaction_the_page_comes_again(opencode):
    opencode.answers("session.created", {"context": "the page"})

    assert opencode.run("""
        await turn()
        await happens("session.compacted", { sessionID: "ses_1" })
        console.log(JSON.stringify(await after("read", { output: "text" })))
    """) == {"output": "text\n\nthe page"}


def test_shells_have_the_name_of_their_session(opencode):
    opencode.answers("session.created", {"agent": "opencode-otter-k3f"})

    assert opencode.run("""
        const envs = []
        for (const sessionID of ["ses_1", "ses_child", undefined]) {
          envs.push({ TERM: "xterm" })
          await hooks["shell.env"]({ cwd: "/", sessionID }, { env: envs.at(-1) })
        }
        console.log(JSON.stringify(envs))
    """) == [
        {"TERM": "xterm", "AGENTBUS_AGENT": "opencode-otter-k3f"},
        {"TERM": "xterm", "AGENTBUS_AGENT": "opencode-otter-k3f", "AGENTBUS_SUB": "child"},
        {"TERM": "xterm"},
    ]


def test_the_server_of_tools_is_added_unless_there_is_one_of_its_name(opencode):
    added, kept = opencode.run("""
        const added = {}, kept = { mcp: { agentbus: { type: "remote" }, other: {} } }
        await hooks.config(added)
        await hooks.config(kept)
        console.log(JSON.stringify([added, kept]))
    """)

    # Longer than a tool waits.
    server = {"type": "local", "command": [str(opencode.program), "mcp"], "timeout": 60_000}
    assert added == {"mcp": {"agentbus": server}}
    assert kept == {"mcp": {"agentbus": {"type": "remote"}, "other": {}}}


def test_what_is_new_goes_to_the_result_of_any_tool(opencode):
    opencode.answers("tool.execute.after", {"context": "the bell"})

    assert opencode.run("""
        console.log(JSON.stringify([
          await after("read", { title: "x", output: "text" }),
          await after("agentbus_who", { content: [{ type: "text", text: "none" }] }),
          await after("task", undefined) ?? null,
          await turn(),
        ]))
    """) == [
        {"title": "x", "output": "text\n\nthe bell"},
        {"content": [{"type": "text", "text": "none"}, {"type": "text", "text": "the bell"}]},
        None,
        ["the bell"],
    ]


def test_an_edit_that_is_refused_throws_what_the_model_reads(opencode):
    opencode.answers("tool.execute.before", {"deny": "a.py is leased by reviewer"})

    assert opencode.run("""
        console.log(JSON.stringify([
          await edit("edit", { filePath: "a.py", oldString: "x".repeat(1 << 20) }),
          await edit("apply_patch", { patchText: "*** Update File: a.py" }),
          await edit("read", { filePath: "a.py" }),
        ]))
    """) == ["a.py is leased by reviewer"] * 2 + ["done"]
    given = [given["args"] for event, given in opencode.calls if event == "tool.execute.before"]
    assert given == [{"filePath": "a.py"}, {"patchText": "*** Update File: a.py"}]


def test_a_call_of_our_tools_says_whose_session_it_is_of(opencode):
    assert opencode.run("""
        const args = {}
        await edit("agentbus_inbox", args, "ses_child")
        console.log(JSON.stringify(args))
    """) == {"_session": "ses_1"}


def test_a_subagent_acts_for_the_session_that_it_belongs_to(opencode):
    opencode.answers("session.created", {"context": "the page"})

    assert (
        opencode.run("""
        await happens("session.created",
          { sessionID: "ses_child", info: { id: "ses_child", parentID: "ses_1" } })
        await turn("ses_child")
        await edit("write", { filePath: "a.py" }, "ses_child")
        await happens("session.idle", { sessionID: "ses_child" })
        await happens("session.deleted", { info: { id: "ses_child", parentID: "ses_1" } })
        console.log("[]")
    """)
        == []
    )
    # With its turn, and with its session, the leases of the subagent end.
    assert opencode.events == [
        *("session.created", "tool.execute.before"),
        *("session.idle", "session.deleted"),
    ]
    assert {given["sessionID"] for _, given in opencode.calls} == {"ses_1"}
    assert [given.get("agent_id") for _, given in opencode.calls] == [None, *["child"] * 3]


def test_an_idle_session_is_prompted_in_its_own_mode_by_what_woke_it(opencode):
    opencode.answers("Wake", {"prompt": "AgentBus: 1 message."})

    assert opencode.run("""
        await turn()
        await happens("session.idle", { sessionID: "ses_1" })
        console.log(JSON.stringify(prompts))
    """) == [
        {
            "path": {"id": "ses_1"},
            "body": {
                "agent": "plan",
                "model": {"providerID": "p", "modelID": "m"},
                "parts": [{"type": "text", "text": "AgentBus: 1 message."}],
            },
        }
    ]


def test_a_turn_goes_on_once_for_an_ask(opencode):
    opencode.answers("session.idle", {"prompt": "look at 1 ask"})

    assert (
        opencode.run("""
        await turn()
        await happens("session.idle", { sessionID: "ses_1" })
        await turn()
        await happens("session.idle", { sessionID: "ses_1" })
        await turn()
        await turn()
        await happens("session.idle", { sessionID: "ses_1" })
        console.log(prompts.length)
    """)
        == 3
    )
    again = [given["again"] for event, given in opencode.calls if event == "session.idle"]
    assert again == [False, True, False]


def test_a_turn_that_its_user_has_stopped_does_not_go_on(opencode):
    opencode.answers("Wake", {"prompt": "AgentBus: 1 message."})

    assert opencode.run("""
        await turn()
        const error = { name: "MessageAbortedError", data: {} }
        await happens("session.error", { sessionID: "ses_1", error })
        await happens("session.idle", { sessionID: "ses_1" })
        await happens("session.idle", { sessionID: "ses_1" })
        const before = prompts.length
        await turn()
        await happens("session.idle", { sessionID: "ses_1" })
        console.log(JSON.stringify([before, prompts.length]))
    """) == [0, 1]
    again = [given["again"] for event, given in opencode.calls if event == "session.idle"]
    assert again == [True, True, False]


@pytest.mark.parametrize(
    "what", ["turn()", 'happens("session.deleted", { info: { id: "ses_1" } })']
)
def test_what_waits_ends_when_a_turn_begins_or_the_session_ends(opencode, what):
    opencode.program.write_text(PROGRAM + '[ "$3" = Wake ] && echo $$ >"$0.pid" && exec sleep 60\n')

    pid = opencode.run(
        """
        import fs from "node:fs"
        const pid = "agentbus.pid", there = () => fs.existsSync(pid) && fs.readFileSync(pid, "utf8")
        await turn()
        const idle = happens("session.idle", { sessionID: "ses_1" })
        await until(there)
        """
        f"await {what}\n"
        """
        await idle
        console.log(JSON.stringify(Number(there())))
        """
    )

    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_all_sessions_end_with_the_client(opencode):
    opencode.run("""
        await turn()
        await turn("ses_2")
        await hooks.dispose()
        console.log("[]")
    """)

    ended = [given["sessionID"] for event, given in opencode.calls if event == "session.deleted"]
    assert sorted(ended) == ["ses_1", "ses_2"]


@pytest.mark.parametrize(
    "program",
    [
        None,
        "#!/bin/sh\necho '[1, 2'\nexit 1\n",
        "#!/bin/sh\necho null\n",
        '#!/bin/sh\necho \'{"deny": 1, "context": {}, "prompt": [], "agent": 5}\'\n',
        "#!/nowhere/at/all\n",
        "#!/bin/sh\nyes | head -c 5000000\n",
        "#!/bin/sh\nexec <&- ; sleep 0.1\n",
        "#!/bin/sh\nkill -9 $$\n",
    ],
    ids=["none", "not JSON", "null", "other types", "no shell", "much", "stdin closed", "killed"],
)
def test_a_program_that_fails_changes_nothing(opencode, program):
    if program is None:
        opencode.program.unlink()
    else:
        opencode.program.write_text(program)

    assert opencode.run("""
        session.get = async () => { throw new Error("no") }
        const env = {}
        await happens("session.created", { sessionID: "ses_1" })
        await happens("session.created", {})
        await hooks["shell.env"]({ sessionID: "ses_1" }, { env })
        await hooks.config(undefined)
        const seen = [
          await turn(),
          await edit("edit", { filePath: "a.py", oldString: "x".repeat(1 << 20) }),
          await edit("edit", undefined),
          await after("read", { output: "text" }),
          env,
        ]
        await happens("session.idle", { sessionID: "ses_1" })
        await hooks.dispose()
        console.log(JSON.stringify([...seen, prompts]))
    """) == [[], "done", "done", {"output": "text"}, {}, []]


@pytest.mark.slow
def test_a_program_that_hangs_is_ended(opencode):
    opencode.program.write_text("#!/bin/sh\nexec sleep 60\n")

    assert opencode.run('console.log(JSON.stringify(await edit("edit", {})))') == "done"
