"""Asks Codex which hooks it has, and whether the user trusts them: until then it runs none of them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

from agentbus.core.errors import AgentBusError

_WITHIN = 30.0
# The states in which Codex runs a hook.
TRUSTED = ("trusted", "managed")


def hooks(program: str, folder: str) -> list[dict[str, Any]]:
    """Return the hooks that Codex finds in a directory, each with its event and its trust."""
    try:
        server = subprocess.Popen(
            [program, "app-server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
    except OSError as error:
        raise AgentBusError(f"'codex app-server' cannot be run ({error.strerror})") from None
    try:
        ask = _asking(server)
        ask(1, "initialize", {"clientInfo": {"name": "agentbus", "version": "1"}})
        lists = ask(2, "hooks/list", {"cwds": [folder]})["data"]
        listed: list[dict[str, Any]] = [hook for each in lists for hook in each["hooks"]]
        return listed
    except (OSError, ValueError, LookupError, TypeError):
        raise AgentBusError("'codex app-server' does not list hooks in a known form") from None
    finally:
        server.kill()
        server.communicate()


def _asking(server: subprocess.Popen[bytes]) -> Callable[[int, str, object], Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    stdin, stdout = server.stdin, server.stdout
    until = time.monotonic() + _WITHIN
    rest = b""

    def ask(number: int, method: str, params: object) -> Any:
        nonlocal rest
        stdin.write(json.dumps({"id": number, "method": method, "params": params}).encode() + b"\n")
        stdin.flush()
        while True:
            line, newline, after = rest.partition(b"\n")
            if newline:
                rest = after
                reply = json.loads(line)
                if reply.get("id") == number:
                    return reply["result"]
                continue
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - time.monotonic()))
            data = os.read(stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise AgentBusError("'codex app-server' does not answer")
            rest += data

    return ask
