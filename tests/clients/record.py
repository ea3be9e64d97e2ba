"""Records what each client sends to the hooks of AgentBus, in a real run:

    .venv/bin/python -m tests.clients.record [CLIENT...]

The files go to `tests/clients/recorded/<client>-<version>`, in the place of those of the same
events; an event that no run has stays as it is.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import tempfile

from agentbus.agents import plugin
from tests.clients.forms import Say
from tests.clients.real import CLIENTS, Copilot
from tests.clients.running import Client
from tests.servers import Server, program

RECORDED = pathlib.Path(__file__).parent / "recorded"
# Keeps what a hook gets, and runs it.
_RECORDER = """#!{python}
import os, pathlib, subprocess, sys
if sys.argv[1] != "hook":
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
data = sys.stdin.buffer.read()
kept = pathlib.Path({kept!r})
(kept / f"{{len(list(kept.iterdir())):03}}-{{sys.argv[3]}}.json").write_bytes(data)
done = subprocess.run([{program!r}, *sys.argv[1:]], input=data)
sys.exit(done.returncode)
"""
# Copilot's own files of hooks name events differently.
_OWN_FILES = (
    *("sessionStart", "userPromptSubmitted", "preToolUse", "postToolUse"),
    *("agentStop", "sessionEnd"),
)


def record(client: Client, url: str, *, own_files: bool = False) -> dict[str, dict]:
    """Run a client, and return what it sent for each event: of tools, an edit before and a shell after."""
    kept = client.place / "kept"
    kept.mkdir()
    recorder = client.place / "recorder"
    recorder.write_text(_RECORDER.format(python=sys.executable, program=program(), kept=str(kept)))
    recorder.chmod(0o755)
    client.install(str(recorder))
    client.repository()
    if own_files:
        hooks = {
            event: [{"type": "command", "bash": plugin.command(str(recorder), "copilot", event)}]
            for event in _OWN_FILES
        }
        client.own("plugin", "uninstall", "agentbus@agentbus")
        folder = client.root / ".github/hooks"
        folder.mkdir(parents=True)
        (folder / "hooks.json").write_text(json.dumps({"version": 1, "hooks": hooks}))
    script = [*client.edits("src/db.py", "a = 1", "a = 2"), client.shell("ls"), Say()]
    client.run(*script, AGENTBUS_URL=url, AGENTBUS_PROJECT="record")
    found: dict[str, dict] = {}
    for file in sorted(kept.iterdir()):
        event, text = file.stem.partition("-")[2], file.read_text()
        for place, shown in ((client.home, "/home/ada"), (client.root, "/work/shop")):
            text = text.replace(str(place), shown)
            # Claude Code names a directory after a path.
            text = text.replace(re.sub("[^A-Za-z0-9]", "-", str(place)), shown.replace("/", "-"))
        given = json.loads(text)
        before = "pre" in event.lower() or ("before" in event.lower() and event != "BeforeAgent")
        # What reads the file, or lists the directory; the plugin of OpenCode asks for edits alone.
        if before and "a = 2" not in text and client.name != "opencode":
            continue
        found[event] = given
    return found


def main() -> None:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place, Server(pathlib.Path(place) / "server") as server:
        for make in CLIENTS:
            for model in make.models if not wanted or make.name in wanted else ():
                for own_files in (False, True) if make is Copilot else (False,):
                    end = "-files" if own_files else ""
                    client = make(pathlib.Path(place) / f"{make.name}{end}-{model}", model)
                    found = record(client, server.url, own_files=own_files)
                    _keep(RECORDED / f"{make.name}-{make.version}{end}", found, model)


def _keep(folder: pathlib.Path, found: dict[str, dict], model: str) -> None:
    """Write each event, of the further models only what precedes an edit."""
    folder.mkdir(exist_ok=True)
    for event, given in found.items():
        name = event
        if model != "scripted":
            if "reTool" not in event and "before" not in event:
                continue
            name = f"{event}-{model}"
        (folder / f"{name}.json").write_text(json.dumps(given, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
