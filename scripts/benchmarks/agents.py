"""What AgentBus costs a coding agent: its hooks, its MCP server, and how soon receipts are true.

On a wheel install, as users have it, with the embedded server, which keeps an append-only file. Whole
processes take turns with `python -c pass` of the same venv, so that a noisy machine is equally noisy to
all.

    python -m scripts.benchmarks.agents [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from scripts.benchmarks.cli_latency import BASE, install
from tests import sandboxing
from tests.servers import Server, client, scrubbed
from tests.torture.server import free_port

SIZES = {"quick": {"rounds": 3}, "page": {"rounds": 40}}
SESSION = "3f6c2a10-7d0e-4c55-9b1e-0a6f2d8c41aa"
_WARM = 3
_MANY = 1_000_000
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
Words = list[str]


def event(name: str, session: str = SESSION, **fields: object) -> bytes:
    """Return what Claude Code sends to the hook of an event."""
    return json.dumps({"session_id": session, "hook_event_name": name, **fields}).encode()


class Place:
    """An installed `agentbus`, with a home of its own."""

    def __init__(self, folder: str) -> None:
        self.home = pathlib.Path(folder)
        programs = install(self.home / "venv")
        self.python, self.agentbus = str(programs / "python"), str(programs / "agentbus")
        self.environment = {
            **scrubbed(dict(os.environ)),
            "HOME": folder,
            "AGENTBUS_PROJECT": "b",
        }

    def timed(self, words: Words, given: bytes = b"", **more: Any) -> tuple[float, bytes]:
        """Return how many ms a process took, and what it printed."""
        environment = {**self.environment, **more.pop("env", {})}
        began = time.perf_counter()
        done = subprocess.run(
            words,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=self.home,
            check=False,
            **more,
        )
        return (time.perf_counter() - began) * 1000, done.stdout

    def hook(self, name: str, given: bytes, **more: Any) -> float:
        """Return how many ms a hook took that has nothing to say."""
        took, said = self.timed([self.agentbus, "hook", "claude", name], given, **more)
        assert said == b"", said
        return took

    def bare(self, **more: Any) -> float:
        """Return how many ms Python takes to start and end."""
        return self.timed([self.python, "-c", "pass"], **more)[0]


@contextlib.contextmanager
def installed() -> Iterator[Place]:
    """Install a wheel, and stop its server in the end."""
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        place = Place(folder)
        try:
            yield place
        finally:
            place.timed([place.agentbus, "server", "stop"])


def turns(what: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Let these take turns, and return the ms of each, after some to warm up."""
    took: dict[str, list[float]] = {name: [] for name in what}
    for number in range(rounds + _WARM):
        for name, measure in what.items():
            found = measure()
            if number >= _WARM:
                took[name].append(found)
    return took


def _compared(
    took: Mapping[str, list[float]], base: str, wanted: Mapping[str, str], **about: Any
) -> Figure:
    middle = percentile(took[base], 50)
    rows = [Row(base, Spread.of(took[base]), "baseline")]
    rows += [
        Row(
            name,
            Spread.of(values),
            ratio=percentile(values, 50) / middle,
            against=base,
            wanted=wanted.get(name, ""),
        )
        for name, values in took.items()
        if name != base
    ]
    table(
        about["title"],
        ["", f"median {about['unit']}", f"x {base}", "wanted"],
        [
            [
                row.label,
                f"{row.spread.middle:.2f}",
                f"{row.ratio:.2f}" if row.ratio else "",
                row.wanted,
            ]
            for row in rows
        ],
    )
    return Figure(better="less", rows=tuple(rows), **about)


def hooks(place: Place, rounds: int) -> Figure:
    """A hook with nothing new: from the start of its process to its end, with the client's JSON on stdin.

    It prints nothing, and asks the server once. `1 MB` is a tool's result of a million letters. A server
    that is away is one that accepts the connection and never answers: the first hook waits for less than
    half a second, and those of the next 30 seconds end at once.
    """
    _, said = place.timed([place.agentbus, "hook", "claude", "SessionStart"], event("SessionStart"))
    assert said
    small = event("PostToolUse", tool_name="Bash", tool_response={"stdout": "ok"})
    large = event("PostToolUse", tool_name="Bash", tool_response={"stdout": "x" * _MANY})
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1024)
        away = {"AGENTBUS_URL": f"redis://127.0.0.1:{deaf.getsockname()[1]}"}
        states = (str(place.home / f"state-{number}") for number in range(rounds + _WARM))
        took = turns(
            {
                BASE: place.bare,
                "nothing new": lambda: place.hook("PostToolUse", small),
                "a turn begins": lambda: place.hook("UserPromptSubmit", event("UserPromptSubmit")),
                "1 MB on stdin": lambda: place.hook("PostToolUse", large),
                "server away, first": lambda: place.hook(
                    "PostToolUse", small, env={**away, "XDG_STATE_HOME": next(states)}
                ),
                "server away, then": lambda: place.hook("PostToolUse", small, env=away),
            },
            rounds,
        )
    return _compared(
        took,
        BASE,
        {
            "nothing new": "≤ 1.3",
            "1 MB on stdin": "≤ 1.8",
            "server away, first": "≤ 500 ms",
            "server away, then": "≤ 1.3",
        },
        name="agents-hooks",
        source="agents.hooks",
        title="A hook with nothing to say",
        measured=f"wall time of the whole process, median of {rounds} rounds",
        unit="ms",
    )


class McpServer:
    """An MCP server as a client starts it."""

    def __init__(self, words: Words, environment: Mapping[str, str], cwd: pathlib.Path) -> None:
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
        )

    def ask(self, method: str, **params: object) -> dict[str, Any]:
        """Send a request and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return found

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def mebibytes(pid: int, what: str = "Pss") -> float:
    """Return a process's memory by Linux's account: `Pss` shares pages with others, `Rss` does not."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def mcp(place: Place, rounds: int) -> Figure:
    """From the start of an MCP server to the answer to `initialize`."""

    def begin() -> float:
        began = time.perf_counter()
        server = McpServer([place.agentbus, "mcp"], place.environment, place.home)
        server.ask("initialize", **HELLO)
        took = time.perf_counter() - began
        server.close()
        return took * 1000

    return _compared(
        turns({BASE: place.bare, "initialize": begin}, rounds),
        BASE,
        {"initialize": "≤ 3"},
        name="agents-mcp",
        source="agents.mcp",
        title="The start of an MCP server",
        measured=f"from the start of its process, median of {rounds} rounds",
        unit="ms",
    )


def memory(place: Place) -> Figure:
    """The memory of one MCP server: after `initialize` and `tools/list`, and after calls of three tools.

    PSS counts a page that processes share as a part for each; RSS counts it whole. The baseline is a Python
    that waits for its stdin. On an idle machine with one server, most pages are its own.
    """
    bare = subprocess.Popen([place.python, "-c", "input()"], stdin=subprocess.PIPE)
    server = McpServer([place.agentbus, "mcp"], place.environment, place.home)
    server.ask("initialize", **HELLO)
    server.ask("tools/list")
    pids = {"Python alone": bare.pid}
    found = {("Python alone", kind): mebibytes(bare.pid, kind) for kind in ("Pss", "Rss")}
    pids["mcp, started"] = server.process.pid
    for kind in ("Pss", "Rss"):
        found["mcp, started", kind] = mebibytes(server.process.pid, kind)
    for name in ("catch_up", "who", "lease"):
        server.ask("tools/call", name=name, arguments={})
    for kind in ("Pss", "Rss"):
        found["mcp, in use", kind] = mebibytes(server.process.pid, kind)
    server.close()
    bare.communicate(b"\n")
    rows = [
        Row(
            name,
            Spread.once(value),
            "baseline" if name == "Python alone" else "ours",
            ratio=None if name == "Python alone" else value / found["Python alone", kind],
            against="" if name == "Python alone" else "Python alone",
            wanted="≤ 15 MiB" if name != "Python alone" else "",
            group=kind.upper(),
        )
        for (name, kind), value in sorted(found.items(), key=lambda one: one[0][1])
    ]
    table(
        "memory of an MCP server",
        ["", "kind", "MiB", "wanted"],
        [[row.label, row.group, f"{row.spread.middle:.1f}", row.wanted] for row in rows],
    )
    return Figure(
        name="agents-memory",
        source="agents.memory",
        title="The memory of an MCP server",
        measured="/proc/PID/smaps_rollup, once",
        unit="MiB",
        better="less",
        rows=tuple(rows),
    )


def receipts(place: Place, rounds: int) -> Figure:
    """From the reader's output to the sender's wake-up: `tell --wait --for read` in another process.

    The reader is `agentbus inbox`. The time counts from the moment at which what it printed can be read
    from its pipe; then it marks the message as read, which wakes the sender. The baseline is a blocked
    XREAD that an XADD wakes.
    """
    took: list[float] = []
    with Server(place.home / "receipts") as server:
        environment = {
            **place.environment,
            "AGENTBUS_URL": server.url,
            "AGENTBUS_EXCHANGE_LIMIT": "0",
        }
        environment["AGENTBUS_AGENT"] = "ada"
        plain = [_raw(server.url, number) for number in range(rounds)]
        with agentbus.connect(server.url, project="b", agent="ada") as ada:
            list(ada.inbox())
        for _ in range(rounds):
            sender = subprocess.Popen(
                [place.python, "-c", _SENDER, server.url],
                env=environment,
                stdout=subprocess.PIPE,
            )
            assert sender.stdout is not None
            sender.stdout.readline()
            reader = subprocess.Popen(
                [place.agentbus, "inbox", "--wait", "30"],
                env=environment,
                stdout=subprocess.PIPE,
            )
            assert reader.stdout is not None
            os.read(reader.stdout.fileno(), 1)
            printed = time.monotonic()
            took.append((float(sender.communicate()[0]) - printed) * 1000)
            reader.communicate()
    return _compared(
        {"XADD to XREAD": plain, "inbox to receipt": took},
        "XADD to XREAD",
        {"inbox to receipt": "≤ 250 ms"},
        name="agents-receipts",
        source="agents.receipts",
        title="From what a reader prints to the sender's receipt",
        measured=f"median of {rounds} rounds",
        unit="ms",
    )


# Says that the message was sent, and when it was read, on the clock that all processes share.
_SENDER = """
import sys, time, agentbus
with agentbus.connect(sys.argv[1], project="b", agent="eve") as bus:
    sent = bus.tell("ada", "hi")
    print("sent", flush=True)
    bus.receipts(sent.id, wait=30, until="read")
    print(time.monotonic())
"""


def _raw(url: str, number: int) -> float:
    woken: list[float] = []
    with client(url) as sleeper, client(url) as waker:

        def sleep() -> None:
            sleeper.xread({f"raw{number}": "$"}, block=10_000)
            woken.append(time.perf_counter())

        thread = threading.Thread(target=sleep)
        thread.start()
        while not any(one["cmd"] == "xread" for one in waker.client_list()):
            pass
        began = time.perf_counter()
        waker.xadd(f"raw{number}", {"a": "b"})
        thread.join()
    return (woken[0] - began) * 1000


def sandbox(place: Place, rounds: int) -> Figure:
    """A command in a sandbox that forbids to connect, as that of Codex does: exit 1, with what works there.

    The filter of system calls is the tests' own; `python -c pass` runs in it, too.
    """
    inside = {"preexec_fn": sandboxing.enter}
    words = [place.agentbus, "speak", "hi"]
    url = {"AGENTBUS_URL": f"redis://127.0.0.1:{free_port()}"}
    took = turns(
        {
            BASE: lambda: place.bare(**inside),
            "embedded server": lambda: place.timed(words, **inside)[0],
            "AGENTBUS_URL": lambda: place.timed(words, env=url, **inside)[0],
        },
        rounds,
    )
    return _compared(
        took,
        BASE,
        dict.fromkeys(("embedded server", "AGENTBUS_URL"), "≤ 100 ms"),
        name="agents-sandbox",
        source="agents.sandbox",
        title="A command in a sandbox",
        measured=f"wall time of the whole process, median of {rounds} rounds",
        unit="ms",
    )


def measure(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure all of it."""
    with installed() as place:
        yield hooks(place, given.rounds)
        yield mcp(place, given.rounds)
        if pathlib.Path("/proc/self/smaps_rollup").exists():
            yield memory(place)
        yield receipts(place, given.rounds)
        if sandboxing.available():
            yield sandbox(place, given.rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    run(measure, parser, SIZES)
