"""Runs a real client against a scripted model, in a HOME and a network of its own.

The clients are npm packages at fixed versions. Each runs without a terminal, with the plugin of AgentBus
put in by its own command.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from agentbus.agents import plugin
from tests.clients.forms import Call, Request
from tests.clients.model import Model, Step
from tests.servers import CACHE, program

HERE = pathlib.Path(__file__).parent
# Seconds after which a client has hung; the slowest takes some fifteen.
HANGS = 120
_PORT = 4711
# What a terminal shows no letter for: sequences that move the cursor or set colours, and blanks.
_DRAWN = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\s")
# Scripts that put this platform's program in its place; the others build what no test needs.
_LINKS = ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs")


def installed() -> pathlib.Path:
    """Return the folder of the clients' programs, which npm fills the first time.

    With NEWEST_CLIENTS set, they are the newest versions of the day, in place of those of `package.json`.
    """
    files = [HERE / "package.json", HERE / "package-lock.json"]
    newest = time.strftime("newest-%Y-%m-%d") if os.environ.get("NEWEST_CLIENTS") else ""
    parts = [*(file.read_bytes() for file in files), *(str(one).encode() for one in _LINKS)]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
    folder = CACHE / f"clients-{newest or digest}"
    with (CACHE / "clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            npm = shutil.which("npm")
            assert npm, "npm is not on PATH: the clients are npm packages (tests/README.md)"
            folder.mkdir(exist_ok=True)
            for file in files[:1] if newest else files:
                shutil.copy(file, folder)
            if newest:
                wanted = json.loads(files[0].read_text())
                wanted["dependencies"] = dict.fromkeys(wanted["dependencies"], "latest")
                (folder / "package.json").write_text(json.dumps(wanted))
            # Not `npm ci`, which demands the packages of all platforms in the lock.
            install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
            for command in (install, *(["node", f"node_modules/{one}"] for one in _LINKS)):
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
            (folder / ".ready").touch()
    return folder / "node_modules/.bin"


def namespaces() -> bool:
    """Tell whether this machine lets a process have a network namespace of its own."""
    done = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    return done.returncode == 0


class Run:
    """One run of a client, and what the model was asked in it; at the end of `with` all of it is gone."""

    def __init__(self, process: subprocess.Popen[str], model: Model) -> None:
        self._process = process
        self.model = model
        self.output = ""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.model.close()

    def wait(self) -> Run:
        """Wait for the client's end; it must have gone through the whole script."""
        self.output = "\n".join(self._process.communicate(timeout=HANGS))
        assert self.model.errors == [], self.output
        assert self._process.returncode == 0, self.output
        return self

    def kill(self) -> str:
        """Kill the client and what it has started, as `kill -9` does; return what they printed."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return "\n".join(self._process.communicate())

    def enter(self, text: str) -> None:
        """Type a text at the client's terminal, and Enter once it is shown: sooner, it is a new line."""
        keys, screen = self._process.stdin, self._process.stdout
        assert keys is not None
        assert screen is not None
        keys.write(text)
        keys.flush()
        shown = b""
        # A blank may be a move of the cursor.
        while text.encode().replace(b" ", b"") not in _DRAWN.sub(b"", shown):
            assert select.select([screen], [], [], HANGS)[0], shown
            shown += os.read(screen.fileno(), 65_536)
        keys.write("\r")
        keys.flush()

    @property
    def requests(self) -> list[Request]:
        """What the script has answered."""
        return self.model.requests

    @property
    def others(self) -> list[Request]:
        """The requests for titles, summaries, and the like."""
        return self.model.others


class Client:
    """A client in a HOME and a repository of its own."""

    name = ""
    version = ""

    def __init__(self, place: pathlib.Path, model: str = "") -> None:
        self.bin = installed()
        self.place = place
        self.model = model or self.models[0]
        self.home, self.root = place / "home", place / "shop"
        self.home.mkdir(parents=True)
        self.isolated = namespaces()
        path = f"{pathlib.Path(program()).parent}:{os.environ['PATH']}"
        # Codex runs commands in a login shell.
        self.write(".profile", f'PATH="{path}"\n')
        self.environment = {
            "HOME": str(self.home),
            "PATH": path,
            "TERM": "dumb",
            "LANG": "C.UTF-8",
        }

    # A client that finds a pipe may wait for the end of its input.
    stdin = subprocess.DEVNULL
    # The models by whose names it offers different tools.
    models: tuple[str, ...] = ("scripted",)

    def install(self, program: str) -> None:
        """Put the plugin into the client, all of whose commands are `program`."""
        folder = self.place / "plugin"
        plugin.write(program, str(folder))
        self.configure(f"http://127.0.0.1:{_PORT}")
        self.plug(folder)

    def repository(self) -> pathlib.Path:
        """Make a fresh repository with one file, and return it."""
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "src").mkdir(parents=True)
        (self.root / "src/db.py").write_text("a = 1\n")
        git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        for words in (["init", "-q", "."], ["add", "."], ["commit", "-q", "-m", "Begin"]):
            subprocess.run([*git, *words], cwd=self.root, check=True)
        return self.root

    def start(self, *script: Step, **environment: str) -> Run:
        """Start the client on a prompt, with a model that follows the script."""
        model = Model(*script, socket=str(self.place / "model.sock"))
        inside = [sys.executable, str(HERE / "inside.py"), str(_PORT), model.socket]
        wrapped = ["unshare", "-rn", *inside] if self.isolated else [*inside, "--here"]
        process = subprocess.Popen(
            [*wrapped, *self.command("change a in src/db.py")],
            cwd=self.root,
            env=self.environment | self.variables() | environment,
            stdin=self.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Run(process, model)

    def run(self, *script: Step, **environment: str) -> Run:
        """Run the client to its end."""
        with self.start(*script, **environment) as started:
            return started.wait()

    def beside(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start `agentbus` as a person would beside the client, in its repository."""
        known = self.environment | self.variables() | environment
        return subprocess.Popen(
            [program(), *words],
            cwd=self.root,
            env=known | {"PATH": f"{self.bin}:{known['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def own(self, *words: str) -> str:
        """Run a command of the client's own, such as the one that puts in a plugin."""
        done = subprocess.run(
            [str(self.bin / self.name), *words],
            cwd=self.place,
            env=self.environment | self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self, path: str, content: object) -> None:
        """Write a file of the client's settings, an object as JSON."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))

    # -- what differs between clients --

    def configure(self, url: str) -> None:
        """Write the settings by which the client asks the model at a URL."""

    def plug(self, folder: pathlib.Path) -> None:
        """Put in the plugin, by the client's own command."""

    def variables(self) -> dict[str, str]:
        """Return the variables by which the client asks the model."""
        return {}

    def command(self, prompt: str) -> list[str]:
        """Return the command line of a turn without a terminal."""
        raise NotImplementedError

    def shell(self, command: str) -> Step:
        """Return the call of a shell command."""
        raise NotImplementedError

    def edits(self, path: str, old: str, new: str) -> list[Step]:
        """Return the calls that replace the line of a file."""
        raise NotImplementedError

    def subagents(self, *prompts: str) -> list[Step]:
        """Return the calls that start subagents, which run at the same time."""
        raise NotImplementedError

    def writes(self, path: str, text: str) -> Step:
        """Return the call that writes a new file."""
        raise NotImplementedError

    def tool(self, name: str, **given: Any) -> list[Step]:
        """Return the calls of a tool of AgentBus's server."""
        return [Call(name, given)]
