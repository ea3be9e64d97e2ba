"""Many coding agents at once: each has an MCP server, hooks at the pace of a model at work, and leases.

On a wheel install, with the embedded server. Each session takes turns of about 20 seconds: a prompt, 6
tools with hooks, of which one in three edits a file, two calls of the MCP tool `catch_up` and one of
`tell`, which writes to another session, and the end of the turn.

    python -m scripts.benchmarks.sessions [--sessions N] [--seconds S]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

from agentbus.core import client_session
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks.agents import HELLO, Place, event, installed, mebibytes
from scripts.benchmarks.cli_latency import BASE

SIZES = {"quick": {"sessions": 3, "seconds": 2.0, "thinks": 0.05}, "page": {}}
_TOOLS = 6
_FILES = 60
_ANSWERS_WITHIN = 60.0


class Load:
    """What all sessions did; times in ms. `trouble` is whatever did not go as it should."""

    def __init__(self, thinks: float) -> None:
        # How many seconds a model thinks between two tools, and between two turns.
        self.thinks = thinks
        self.hooks: list[float] = []
        self.calls: list[float] = []
        self.trouble: list[str] = []
        self.refused = self.told = 0


class ClientSession:
    """One client's session: its MCP server, and the hooks that it runs."""

    def __init__(self, place: Place, load: Load, number: int, folder: pathlib.Path) -> None:
        self.place, self.load, self.folder = place, load, folder
        self.id = f"3f6c2a10-7d0e-4c55-9b1e-{number:012x}"
        self.agent = client_session.name("claude", self.id)
        self._chance = random.Random(number)
        self._environment = {**place.environment, "CLAUDE_CODE_SESSION_ID": self.id}
        self.server: asyncio.subprocess.Process

    async def begin(self) -> None:
        """Start the MCP server, and run the hook of the session's start."""
        self.server = await asyncio.create_subprocess_exec(
            *(self.place.agentbus, "mcp"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env=self._environment,
        )
        await self._ask("initialize", **HELLO)
        await self._hook("SessionStart", source="startup")

    async def live(self, others: list[ClientSession], until: float) -> None:
        """Take turns until a time."""
        await asyncio.sleep(self._chance.uniform(0, self.load.thinks))
        while time.monotonic() < until:
            await self._hook("UserPromptSubmit", prompt="go on")
            for number in range(_TOOLS):
                await self._tool()
                if number % 3 == 1:
                    await self._call("catch_up", wait=0)
                if number == 3:
                    await self._write(self._chance.choice(others))
                await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self.load.thinks)
                if time.monotonic() >= until:
                    break
            await self._hook("Stop", stop_hook_active=True)
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self.load.thinks)

    async def end(self) -> None:
        """Run the hook of the session's end, and stop the server by the end of its stdin."""
        await self._hook("SessionEnd", reason="exit")
        assert self.server.stdin is not None
        self.server.stdin.close()
        code = await asyncio.wait_for(self.server.wait(), _ANSWERS_WITHIN)
        if code:
            self.load.trouble.append(f"mcp ended with {code}")

    async def _tool(self) -> None:
        if self._chance.random() < 1 / 3:
            path = str(self.folder / f"src/file{self._chance.randrange(_FILES)}.py")
            of: dict[str, object] = {"tool_name": "Edit", "tool_input": {"file_path": path}}
            if '"deny"' in await self._hook("PreToolUse", **of):
                self.load.refused += 1
                return
            await self._hook("PostToolUse", **of, tool_response={"filePath": path})
        else:
            size = self._chance.choice((100, 1_000, 20_000))
            await self._hook("PostToolUse", tool_name="Bash", tool_response={"stdout": "x" * size})

    async def _write(self, other: ClientSession) -> None:
        if other is not self:
            await self._call("tell", to=[other.agent], text="the parser is done", topic="parser")
            self.load.told += 1

    async def _hook(self, name: str, **fields: object) -> str:
        began = time.perf_counter()
        hook = await asyncio.create_subprocess_exec(
            *(self.place.agentbus, "hook", "claude", name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env=self._environment,
        )
        data = event(name, self.id, cwd=str(self.folder), **fields)
        said, errors = await asyncio.wait_for(hook.communicate(data), _ANSWERS_WITHIN)
        self.load.hooks.append((time.perf_counter() - began) * 1000)
        if hook.returncode or errors:
            self.load.trouble.append(f"hook {name}: exit {hook.returncode}, {errors[-200:]!r}")
        if said:
            json.loads(said)
        return said.decode()

    async def _call(self, name: str, **arguments: object) -> dict[str, Any]:
        began = time.perf_counter()
        found = await self._ask("tools/call", name=name, arguments=arguments)
        self.load.calls.append((time.perf_counter() - began) * 1000)
        if found.get("isError"):
            self.load.trouble.append(f"{name}: {str(found['content'])[:200]}")
        content: dict[str, Any] = found.get("structuredContent") or {}
        return content

    async def _ask(self, method: str, **params: object) -> dict[str, Any]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self.server.stdin.write(f"{line}\n".encode())
        await self.server.stdin.drain()
        answer = await asyncio.wait_for(self.server.stdout.readline(), _ANSWERS_WITHIN)
        found: dict[str, Any] = json.loads(answer)["result"]
        return found


class Memory:
    """The memory of the servers, in MiB: the highest PSS of all MCP servers together, and of the bus."""

    def __init__(self, server: int) -> None:
        self._server = server
        self.mcp = self.mcp_rss = self.bus = self.bus_rss = 0.0

    def look(self, sessions: list[ClientSession]) -> None:
        """Take what is more than before."""
        pids = [one.server.pid for one in sessions]
        self.mcp = max(self.mcp, sum(map(mebibytes, pids)))
        self.mcp_rss = max(self.mcp_rss, sum(mebibytes(pid, "Rss") for pid in pids))
        self.bus = max(self.bus, mebibytes(self._server))
        self.bus_rss = max(self.bus_rss, mebibytes(self._server, "Rss"))


async def live(place: Place, number: int, seconds: float, thinks: float) -> tuple[Load, Memory]:
    """Let so many sessions live for a time."""
    folder = place.home / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / ".git").mkdir()
    load = Load(thinks)
    sessions = [ClientSession(place, load, at, folder) for at in range(number)]
    for one in sessions:
        await one.begin()
    status = json.loads(place.timed([place.agentbus, "server", "status", "--json"])[1])
    memory = Memory(int(status["pid"]))
    until = time.monotonic() + seconds
    living = [asyncio.create_task(one.live(sessions, until)) for one in sessions]
    try:
        while time.monotonic() < until:
            memory.look(sessions)
            await asyncio.sleep(min(5.0, max(0.1, until - time.monotonic())))
        await asyncio.gather(*living)
        memory.look(sessions)
        for one in sessions:
            await one.end()
    finally:
        for task in living:
            task.cancel()
        for one in sessions:
            with contextlib.suppress(ProcessLookupError):
                one.server.kill()
    return load, memory


def sessions(given: argparse.Namespace) -> Iterator[Figure]:
    """All sessions at once; a hook or a tool that fails fails the benchmark.

    The times are those of the whole processes of the hooks, and of MCP calls, beside a `python -c pass`
    that was measured before the sessions began. With two cores for all of them, a process waits for its
    turn.
    """
    with installed() as place:
        bare = [place.bare() for _ in range(10)]
        load, memory = asyncio.run(live(place, given.sessions, given.seconds, given.thinks))
    if load.trouble:
        kinds = dict.fromkeys(one[:80] for one in load.trouble)
        raise SystemExit(f"{len(load.trouble)} failures: {[*kinds][:9]}")
    about = (
        f"{given.sessions} sessions, {given.seconds:g} s: {len(load.hooks):,} hooks, {len(load.calls):,}"
        f" calls, {load.told:,} messages, {load.refused:,} edits refused; no failure"
    )
    base = Spread.of(bare)
    times = [
        Row(
            f"{what}, p{part}",
            Spread.at(part, values),
            ratio=Spread.at(part, values).middle / base.middle,
            against=BASE,
        )
        for what, values in (("hook", load.hooks), ("MCP call", load.calls))
        for part in (50, 99)
        if values
    ]
    sizes = [
        Row("all MCP servers, PSS", Spread.once(memory.mcp), wanted="≤ 500"),
        Row("all MCP servers, RSS", Spread.once(memory.mcp_rss)),
        Row("the embedded server, PSS", Spread.once(memory.bus)),
        Row("the embedded server, RSS", Spread.once(memory.bus_rss), wanted="≤ 50"),
    ]
    table(
        about,
        ["", "", "x python -c pass", "wanted"],
        [
            *([row.label, f"{row.spread.middle:.1f} ms", f"{row.ratio:.1f}", ""] for row in times),
            *([row.label, f"{row.spread.middle:.1f} MiB", "", row.wanted] for row in sizes),
        ],
    )
    yield Figure(
        name="sessions-time",
        source="sessions.sessions",
        title="Hooks and calls of many sessions",
        measured=about,
        unit="ms",
        better="less",
        rows=(Row(BASE, base, "baseline"), *times),
    )
    yield Figure(
        name="sessions-memory",
        source="sessions.sessions",
        title="Memory of many sessions",
        measured=f"the highest of a look every 5 s, {given.sessions} sessions",
        unit="MiB",
        better="less",
        rows=tuple(sizes),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=35)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--thinks", type=float, default=2.5)
    run(sessions, parser, SIZES)
