"""wake: begin a turn of an idle agent when a message comes."""

from __future__ import annotations

import shutil
import subprocess
import time

from agentbus.agents import bell, waker
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core import names
from agentbus.core.errors import NotFound
from agentbus.core.names import word

VERB = Verb(
    "wake",
    Param("AGENT", "The agent.", dest="name", required=True, values="agent"),
    Param("-- CMD...", "Run CMD with the line as its last argument.", dest="command", many=True),
    Param("--once", "End after the first turn, with the exit code of its command."),
    text="Waits for messages to the agent, without polling, and begins a turn with a line that says how"
    " many there are, never their text. An idle session of Codex gets it by 'codex queue'; a session that"
    " no client has is resumed without a terminal, by Claude Code, Codex, Copilot CLI, Gemini CLI or"
    " OpenCode. What is open in a terminal of Copilot CLI or Gemini CLI is left alone until it ends; Claude"
    " Code and OpenCode wake by themselves there. Run it in the repository of the agent. A command that"
    " fails is run again after 5 s and after 60 s. JSON: agent, state, exit_code.",
    examples=(
        "agentbus wake codex-fir-aea",
        "agentbus wake copilot-mule-mx9 -- copilot --allow-all-tools --resume=ID --prompt",
    ),
    subject="name",
    waits="",
)
# Seconds after which a command that has failed is run again.
_AGAIN = (5.0, 60.0)


def run(call: Call) -> int | None:
    """Wait, begin a turn, and wait again."""
    args, agent = call.args, names.name("agent", call.args.name)
    scope = call.enter()
    wakes = call.run(waker.find(scope, agent))
    _check(args.command or wakes.client.resume)
    while True:
        state, reply = call.run(wakes.next_news(), patience=float("inf"))
        command = wakes.command(state, args.command, bell.wake(reply))
        code = _run(call, command)
        if code:
            call.run(wakes.still(state), patience=60.0)
        fields = {"agent": agent, "state": state, "exit_code": code}
        call.out.record(fields, f"{word(agent)} was {state}: {word(command[0])} ended with {code}")
        if args.once:
            return code


def _run(call: Call, command: list[str]) -> int:
    for pause in (*_AGAIN, None):
        # Only the records are data.
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode
        if not code or pause is None:
            break
        call.out.warn(f"{word(command[0])} ended with {code}; it runs again in {pause:g} s")
        time.sleep(pause)
    return code


def _check(command: list[str] | tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        raise NotFound(
            f"the program {word(command[0])} is not on PATH",
            hint="install it, or name another command after --",
        )
