"""The five clients: how each is configured and started, and what it calls its tools."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

from tests.clients.forms import Call, Together
from tests.clients.model import Step
from tests.clients.running import Client
from tests.servers import program


def _patch(path: str, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


class Claude(Client):
    name, version = "claude", "2.1.332"

    def configure(self, url: str) -> None:
        self.url = url
        self.write(".claude.json", {"hasCompletedOnboarding": True})

    def plug(self, folder: pathlib.Path) -> None:
        self.own("plugin", "marketplace", "add", str(folder))
        self.own("plugin", "install", "agentbus@agentbus")

    def variables(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "not-a-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def command(self, prompt: str) -> list[str]:
        allowed = "Bash Edit Write Read mcp__plugin_agentbus_agentbus"
        return [str(self.bin / "claude"), "-p", prompt, "--allowedTools", allowed]

    def shell(self, command: str) -> Step:
        return Call("Bash", {"command": command, "description": "Run it"})

    def subagents(self, *prompts: str) -> list[Step]:
        kind = {"subagent_type": "general-purpose", "run_in_background": True}
        return [Call("Agent", {"description": "Write", "prompt": one} | kind) for one in prompts]

    def writes(self, path: str, text: str) -> Step:
        return Call("Write", {"file_path": str(self.root / path), "content": text})

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        file = {"file_path": str(self.root / path)}
        # It edits what it has read.
        return [
            Call("Read", file),
            Call("Edit", file | {"old_string": old, "new_string": new}),
        ]

    def tool(self, name: str, **given: Any) -> list[Step]:
        # It describes the tools of servers to its model after a search.
        search = Call("ToolSearch", {"query": f"select:mcp__plugin_agentbus_agentbus__{name}"})
        return [search, Call(name, given)]


class PlainClaude(Claude):
    """Claude Code without AgentBus."""

    def plug(self, folder: pathlib.Path) -> None:
        """Put in no plugin."""


class TerminalClaude(Claude):
    """Claude Code on a terminal, as a person has it: it goes on when a turn has ended."""

    stdin = subprocess.PIPE

    def configure(self, url: str) -> None:
        self.url = url
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        self.write(
            ".claude.json",
            {
                "hasCompletedOnboarding": True,
                "customApiKeyResponses": {"approved": ["not-a-key"], "rejected": []},
                "projects": {str(self.root): trusted},
            },
        )

    def command(self, prompt: str) -> list[str]:
        terminal = "import pty, sys; pty.spawn(sys.argv[1:])"
        sized = 'stty rows 40 cols 120; exec "$0" "$1"'
        claude = str(self.bin / "claude")
        return [sys.executable, "-c", terminal, "sh", "-c", sized, claude, prompt]


class Codex(Client):
    name, version = "codex", "0.171.0"
    # It knows nothing of the first: patches go through the shell. The second takes patches, and finds the
    # tools of servers by a search; the third runs all tools from JavaScript.
    models = ("scripted", "gpt-5.5", "gpt-5.6-sol")
    sandbox = "workspace-write"

    def configure(self, url: str) -> None:
        provider = f'name = "scripted"\nbase_url = "{url}/v1"\nwire_api = "responses"'
        self.write(
            ".codex/config.toml",
            f'model = "{self.model}"\nmodel_provider = "scripted"\n'
            f"[model_providers.scripted]\n{provider}\n",
        )

    def plug(self, folder: pathlib.Path) -> None:
        self.own("plugin", "marketplace", "add", str(folder))
        self.own("plugin", "add", "agentbus@agentbus")

    def command(self, prompt: str) -> list[str]:
        return [
            *(str(self.bin / "codex"), "exec", "--dangerously-bypass-hook-trust"),
            *("--sandbox", self.sandbox, prompt),
        ]

    def shell(self, command: str) -> Step:
        return self._nested("exec_command", {"cmd": command}, "r.output")

    def subagents(self, *prompts: str) -> list[Step]:
        return [Call("spawn_agent", {"message": one}) for one in prompts]

    def writes(self, path: str, text: str) -> Step:
        patch = f"*** Begin Patch\n*** Add File: {path}\n+{text}*** End Patch\n"
        return self.shell(f"apply_patch <<'EOF'\n{patch}EOF\n")

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        patch = _patch(path, old, new)
        if self.model == "gpt-5.6-sol":
            return [self._nested("apply_patch", patch)]
        if self.model == "gpt-5.5":
            return [Call("apply_patch", {"input": patch})]
        return [self.shell(f"apply_patch <<'EOF'\n{patch}EOF\n")]

    def tool(self, name: str, **given: Any) -> list[Step]:
        if self.model == "gpt-5.6-sol":
            return [self._nested(f"mcp__agentbus__{name}", given)]
        search = [Call("tool_search", {"query": f"agentbus {name}"})]
        return [*(search if self.model == "gpt-5.5" else ()), Call(name, given)]

    def _nested(self, tool: str, given: Any, shown: str = "r") -> Step:
        """Return the call of a tool, in this model from JavaScript."""
        if self.model != "gpt-5.6-sol":
            return Call(tool, given)
        script = f"const r = await tools.{tool}({json.dumps(given)}); text({shown});"
        return Call("exec", {"input": script})


class TerminalCodex(Codex):
    """Codex on a terminal, as a person has it: it goes on when a turn has ended."""

    stdin = subprocess.PIPE

    def configure(self, url: str) -> None:
        super().configure(url)
        file = self.home / ".codex/config.toml"
        trust = f'[projects."{self.root}"]\ntrust_level = "trusted"\n'
        file.write_text(f"{file.read_text()}{trust}")

    def command(self, prompt: str) -> list[str]:
        terminal = "import pty, sys; pty.spawn(sys.argv[1:])"
        # In a dumb terminal it asks whether to go on.
        sized = 'stty rows 40 cols 120; TERM=xterm exec "$0" "$@"'
        codex = [str(self.bin / "codex"), "--no-daemon", "--dangerously-bypass-hook-trust"]
        return [sys.executable, "-c", terminal, "sh", "-c", sized, *codex, prompt]


TOOLS_PORT = 4713


def _served(command: list[str]) -> list[str]:
    """Return a client's command line, beside a server of the tools that ends with it."""
    there = f"import socket; socket.create_connection(('127.0.0.1', {TOOLS_PORT}), 3)"
    script = (
        f'"$0" web --mcp --port {TOOLS_PORT} >&2 & served=$!\n'
        'until "$1" -c "$2" 2>/dev/null; do sleep 0.2; done\n'
        'shift 2; "$@"; code=$?; kill "$served"; wait; exit "$code"'
    )
    return ["sh", "-c", script, program(), sys.executable, there, *command]


class HttpClaude(Claude):
    """Claude Code as an agent elsewhere: without hooks, it has the tools over HTTP, by a token."""

    def plug(self, folder: pathlib.Path) -> None:
        server = {
            "type": "http",
            "url": f"http://127.0.0.1:{TOOLS_PORT}/mcp",
            "headers": {"Authorization": "Bearer ${AGENTBUS_TOKEN}"},
        }
        self.write("mcp.json", {"mcpServers": {"agentbus": server}})

    def command(self, prompt: str) -> list[str]:
        own = ["--mcp-config", str(self.home / "mcp.json"), "--allowedTools", "mcp__agentbus"]
        return _served([str(self.bin / "claude"), "-p", prompt, *own])

    def tool(self, name: str, **given: Any) -> list[Step]:
        search = Call("ToolSearch", {"query": f"select:mcp__agentbus__{name}"})
        return [search, Call(name, given)]


class HttpCodex(Codex):
    """Codex as an agent elsewhere: without hooks, it has the tools over HTTP, by a token."""

    def configure(self, url: str) -> None:
        super().configure(url)
        file = self.home / ".codex/config.toml"
        server = (
            f'url = "http://127.0.0.1:{TOOLS_PORT}/mcp"\nbearer_token_env_var = "AGENTBUS_TOKEN"'
        )
        file.write_text(f"{file.read_text()}[mcp_servers.agentbus]\n{server}\n")

    def plug(self, folder: pathlib.Path) -> None:
        """Put in no plugin."""

    def command(self, prompt: str) -> list[str]:
        return _served(super().command(prompt))


class Gemini(Client):
    name, version = "gemini", "0.61.0"

    def configure(self, url: str) -> None:
        self.url = url
        self.write(
            ".gemini/settings.json",
            {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"disableAutoUpdate": True},
            },
        )

    def plug(self, folder: pathlib.Path) -> None:
        self.own("extensions", "link", str(folder / "gemini"), "--consent")

    def variables(self) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": self.url, "GEMINI_API_KEY": "not-a-key"}

    def command(self, prompt: str) -> list[str]:
        mode = ("--approval-mode", "yolo", "--skip-trust", "--model", "gemini-2.5-pro")
        return [str(self.bin / "gemini"), "-p", prompt, *mode]

    def shell(self, command: str) -> Step:
        return Call("run_shell_command", {"command": command, "description": "Run it"})

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        given = {"file_path": path, "old_string": old, "new_string": new}
        return [Call("replace", given | {"instruction": "change it", "allow_multiple": False})]


class OpenCode(Client):
    name, version = "opencode", "1.18.33"
    # It gives models of this name patches in place of edits.
    models = ("scripted", "gpt-5.1")

    def configure(self, url: str) -> None:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": f"{url}/v1", "apiKey": "not-a-key"},
            "models": {name: {"name": name, "tool_call": True} for name in (*self.models, "small")},
        }
        self.write(
            ".config/opencode/opencode.json",
            {
                "autoupdate": False,
                "share": "disabled",
                "provider": {"scripted": provider},
                "model": f"scripted/{self.model}",
                "small_model": "scripted/small",
            },
        )
        # Else it asks for a package for more than a minute, where nothing answers.
        self.write(".npmrc", "offline=true\n")

    def plug(self, folder: pathlib.Path) -> None:
        plugins = self.home / ".config/opencode/plugins"
        plugins.mkdir()
        shutil.copy(folder / "opencode/agentbus.js", plugins)

    def variables(self) -> dict[str, str]:
        names = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        return {f"OPENCODE_DISABLE_{name}": "1" for name in names}

    def command(self, prompt: str) -> list[str]:
        return [str(self.bin / "opencode"), "run", prompt]

    def shell(self, command: str) -> Step:
        return Call("bash", {"command": command, "description": "Run it"})

    def subagents(self, *prompts: str) -> list[Step]:
        kind = {"description": "Write it", "subagent_type": "general"}
        return [Together(tuple(Call("task", {"prompt": one} | kind) for one in prompts))]

    def writes(self, path: str, text: str) -> Step:
        return Call("write", {"filePath": str(self.root / path), "content": text})

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        if self.model == "gpt-5.1":
            return [Call("apply_patch", {"patchText": _patch(path, old, new)})]
        file = {"filePath": str(self.root / path)}
        return [
            Call("read", file),
            Call("edit", file | {"oldString": old, "newString": new}),
        ]


class ServedOpenCode(OpenCode):
    """OpenCode with a server, as with a terminal: it goes on when a turn has ended."""

    def command(self, prompt: str) -> list[str]:
        opencode, address = str(self.bin / "opencode"), "http://127.0.0.1:4712"
        # A server that is still starting may leave a request without an answer for good.
        script = (
            '"$0" serve --hostname 127.0.0.1 --port 4712 >&2 &\n'
            'until "$2" -c "$3" 2>/dev/null; do sleep 0.2; done\n'
            f'"$0" run --attach {address} "$1"\nwait'
        )
        there = "import urllib.request as u; u.urlopen('http://127.0.0.1:4712/config', timeout=3)"
        return ["sh", "-c", script, opencode, prompt, sys.executable, there]


class Copilot(Client):
    name, version = "copilot", "1.0.102"
    # It gives models of this name patches in place of edits.
    models = ("scripted", "gpt-5.4")

    def configure(self, url: str) -> None:
        self.url = url

    def plug(self, folder: pathlib.Path) -> None:
        self.own("plugin", "marketplace", "add", str(folder))
        self.own("plugin", "install", "agentbus@agentbus")

    def variables(self) -> dict[str, str]:
        return {
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_PROVIDER_BASE_URL": f"{self.url}/v1",
            "COPILOT_PROVIDER_API_KEY": "not-a-key",
            "COPILOT_MODEL": self.model,
        }

    def command(self, prompt: str) -> list[str]:
        return [str(self.bin / "copilot"), "-p", prompt, "--allow-all-tools", "--trust-folder"]

    def shell(self, command: str) -> Step:
        return Call("bash", {"command": command, "description": "Run it"})

    def subagents(self, *prompts: str) -> list[Step]:
        kind = {"description": "Write it", "agent_type": "general-purpose", "mode": "background"}
        return [
            Call("task", {"name": f"writer-{number}", "prompt": prompt} | kind)
            for number, prompt in enumerate(prompts)
        ]

    def writes(self, path: str, text: str) -> Step:
        return Call("create", {"path": str(self.root / path), "file_text": text})

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        if self.model == "gpt-5.4":
            return [Call("apply_patch", {"input": _patch(path, old, new)})]
        return [Call("edit", {"path": str(self.root / path), "old_str": old, "new_str": new})]


CLIENTS: tuple[type[Client], ...] = (Claude, Codex, Gemini, OpenCode, Copilot)
