"""Stands in for the clients' programs: the commands by which they install plugins, with what they print.

`put` writes a program of a client's name into a directory. It keeps in `$HOME/.fake/NAME.json` what it has,
and writes each command that changes it to `$HOME/.fake/calls`. What is in `$HOME/.fake/fails` fails,
and what is in `$HOME/.fake/ends` kills the process that has called it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import sys
from typing import Any

NAMES = ("claude", "codex", "copilot", "gemini", "opencode")
PLUGIN = "agentbus@agentbus"


def put(folder: pathlib.Path, *names: str) -> None:
    """Write the programs of these clients."""
    folder.mkdir(exist_ok=True)
    for name in names:
        program = folder / name
        program.write_text(f"#!{sys.executable} -IS\n" + pathlib.Path(__file__).read_text())
        program.chmod(0o755)


class Fake:
    """One client, and what it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = pathlib.Path(os.environ["HOME"])
        self.place = self.home / ".fake"
        self.place.mkdir(exist_ok=True)
        self.file = self.place / f"{name}.json"
        self.has: dict[str, Any] = (
            json.loads(self.file.read_text()) if self.file.exists() else {"market": None}
        )

    def run(self, words: list[str]) -> int:
        fails = self.place / "fails"
        if fails.exists() and fails.read_text().strip() in " ".join([self.name, *words]):
            sys.stderr.write("it went wrong\n")
            return 3
        ends = self.place / "ends"
        if ends.exists() and ends.read_text().strip() in " ".join([self.name, *words]):
            os.kill(os.getppid(), signal.SIGKILL)
            return 0
        if words == ["app-server"]:
            return self.serve()
        if "list" in words:
            # As Gemini CLI does.
            out = sys.stderr if self.name == "gemini" else sys.stdout
            out.write(self.listed(words) + "\n")
            return 0
        if "validate" in words:
            return 0
        with open(self.place / "calls", "a") as calls:
            calls.write(" ".join([self.name, *words]) + "\n")
        self.change([word for word in words if not word.startswith("-")])
        self.file.write_text(json.dumps(self.has))
        if self.name in ("claude", "copilot"):
            self.rewrite()
        return 0

    def rewrite(self) -> None:
        """Rewrite the settings, as clients do: with what is there of ours, without comments."""
        path = self.home / f".{self.name}/settings.json"
        path.parent.mkdir(exist_ok=True)
        text = re.sub("//.*", "", path.read_text()) if path.exists() else "{}"
        changed = {**json.loads(text), "enabledPlugins": {PLUGIN: "plugin" in self.has}}
        path.write_text(json.dumps(changed, indent=2))

    def change(self, words: list[str]) -> None:
        if words[:3] == ["plugin", "marketplace", "add"]:
            self.has["market"] = words[3]
        elif words[:3] == ["plugin", "marketplace", "remove"]:
            self.has["market"] = None
        elif words[:2] == ["extensions", "link"]:
            self.has["linked"] = words[2]
        elif words[1] in ("add", "install"):
            self.install()
        else:
            shutil.rmtree(self.copy(), ignore_errors=True)
            self.has.pop("linked", None)
            self.has.pop("plugin", None)

    def install(self) -> None:
        source = pathlib.Path(self.has["market"]) / "agentbus"
        version = json.loads((source / ".claude-plugin/plugin.json").read_text())["version"]
        self.has["plugin"] = {"version": version, "enabled": True}
        if self.name != "copilot":
            shutil.copytree(source, self.copy(), dirs_exist_ok=True)

    def copy(self) -> pathlib.Path:
        version = self.has.get("plugin", {}).get("version", "none")
        return self.home / f".{self.name}/plugins/cache/agentbus/agentbus/{version}"

    def listed(self, words: list[str]) -> str:
        """Return what a list prints."""
        if self.name == "opencode":
            there = (self.home / ".config/opencode/plugins/agentbus.js").exists()
            return "agentbus connected" if there else "No MCP servers"
        if self.name == "gemini":
            linked = self.has.get("linked")
            return json.dumps([{"name": "agentbus", "path": linked}] if linked else [])
        found: Any = self.markets() if "marketplace" in words else self.plugins()
        return json.dumps(found)

    def markets(self) -> Any:
        path = self.has["market"]
        if self.name == "codex":
            return {"marketplaces": [{"name": "agentbus", "root": path}] if path else []}
        if self.name == "copilot":
            return [{"name": "agentbus", "source": f"Local: {path}"}] if path else []
        return [{"name": "agentbus", "path": path}] if path else []

    def plugins(self) -> Any:
        own = self.has.get("plugin")
        if self.name == "codex":
            return {"installed": [{"pluginId": PLUGIN, **own}] if own else []}
        if self.name == "copilot":
            return [{"name": "agentbus", "marketplace": "agentbus", **own}] if own else []
        path = str(self.copy())
        about = {"id": PLUGIN, "scope": "user", "installPath": path}
        return [{**about, **own}] if own else []

    def serve(self) -> int:
        """Answer as `codex app-server` does."""
        trust = self.place / "trust"
        state = trust.read_text() if trust.exists() else "untrusted"
        hook = {"eventName": "stop", "pluginId": PLUGIN, "trustStatus": state, "enabled": True}
        for line in sys.stdin:
            asked = json.loads(line)
            result: Any = {}
            if asked["method"] == "hooks/list":
                result = {"data": [{"hooks": [hook] if self.has.get("plugin") else []}]}
            sys.stdout.write(json.dumps({"id": asked["id"], "result": result}) + "\n")
            sys.stdout.flush()
        return 0


if __name__ == "__main__":
    sys.exit(Fake(pathlib.Path(sys.argv[0]).name).run(sys.argv[1:]))
