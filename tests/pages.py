"""The fenced blocks of a page, and what types them into shells and holds the output against them.

A `console` block holds commands after `$ ` (going on after `> `) and the output of each, where
`...` stands for anything, and ids and times for any id and time. A `python` block is followed by an
`output` block if it prints something. A page is one session: a fresh home with an embedded server.
Marks stand in a comment on the line before a block: `terminal=2` is another shell, `terminal=3` a third;
with `waits` its output is looked at when the page ends. `no-run` marks what needs more than one machine
has, `signature` how something is called.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable

from tests.servers import ROOT, Shell

# The examples are programs of their own, with tests of their own.
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "examples" not in path.parts)
PAGES = [ROOT / "README.md", *DOCS]
NOT_RUN = {"no-run", "signature"}
DONE = "\x1e"
# The marks stand in a comment before the fence: a site's Markdown takes a language alone behind it.
_BLOCK = re.compile(
    r"(?:^<!-- (?P<marks>[^\n]*?) -->\n)?^```(?P<language>.*?)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def named(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


class Block:
    """A fenced block: its language, its marks, its text, and what a program should print."""

    def __init__(self, line: int, language: str, marks: str, text: str) -> None:
        self.line = line
        self.language = language
        self.marks = marks.split()
        self.text = text
        self.output = ""

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands, each with the output that it should have."""
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif (line == ">" or line.startswith("> ")) and found and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
            else:
                assert found, f"line {self.line}: output before the first command"
                found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        return found


def blocks(path: pathlib.Path) -> list[Block]:
    found: list[Block] = []
    text = path.read_text()
    for match in _BLOCK.finditer(text):
        assert match["language"], f"{path}: a block without a language"
        line = text.count("\n", 0, match.start("language")) + 1
        block = Block(line, match["language"], match["marks"] or "", match["text"])
        if block.language == "output":
            found[-1].output = block.text
        found.append(block)
    return found


class Terminal:
    """A shell that is typed into, one command after the other."""

    def __init__(
        self,
        environment: dict[str, str],
        place: pathlib.Path,
        begin: Callable[[Iterable[str]], list[str]],
    ) -> None:
        self._process = subprocess.Popen(
            begin(["bash", "--noprofile", "--norc"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=place,
            # So that what it started in the background ends with it.
            start_new_session=True,
        )
        self._expected: list[tuple[str, str]] = []
        self._read = b""

    def type(self, commands: list[tuple[str, str]]) -> None:
        assert self._process.stdin is not None
        for command, expected in commands:
            self._process.stdin.write(f"{command}\nprintf '\\036'\n".encode())
            self._process.stdin.flush()
            self._expected.append((command, expected))

    def settle(self) -> None:
        """Wait for what was typed, and hold what it printed against what it should have."""
        assert self._process.stdout is not None
        while self._expected:
            command, expected = self._expected.pop(0)
            while DONE.encode() not in self._read:
                data = os.read(self._process.stdout.fileno(), 65536)
                assert data, f"the shell ended at: {command}"
                self._read += data
            printed, _, self._read = self._read.partition(DONE.encode())
            assert_printed(expected, printed.decode(), command)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def assert_printed(expected: str, printed: str, what: str) -> None:
    pattern = re.escape(neutral(expected)).replace(re.escape("..."), ".*?")
    found = neutral(printed)
    assert re.fullmatch(pattern, found, re.DOTALL), f"{what}\nprinted\n{found}\nnot\n{expected}"


def neutral(text: str) -> str:
    """Return text with one id for all ids, one time for all times, one host for all hosts."""
    text = re.sub(r"\b\d{13}-\d+\b", "1700000000000-0", text)
    # On a busy machine.
    text = re.sub(r"\b\d+ s ago\b", "just now", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "2024-01-20T15:30:00Z", text)
    text = re.sub(r"\bdone in [\d.]+ m?s\b", "done in 8 ms", text)
    text = re.sub(r", version \S+", ", version 0.2.0", text)
    text = re.sub(r"\b(token|deploy) \d{13}\b", "token 1700000000000", text)
    text = re.sub(rf"you@{re.escape(os.uname().nodename)}~\d+", "you@laptop~4711", text)
    # Pages show a terminal, and this is a warning to sessions without one.
    text = re.sub(r"agentbus: the name .* ends with this session; .*\n", "", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


# What a python block finds: the package, and a bus of the page's agent.
RUNNER = """
import ast, asyncio, inspect, pathlib, sys
import agentbus, agentbus.aio
source = pathlib.Path(sys.argv[1]).read_text()
code = compile(source, sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
async def awaited():
    async with agentbus.aio.connect() as bus:
        await eval(code, {"agentbus": agentbus, "bus": bus, "__name__": "__main__"})
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(awaited())
else:
    with agentbus.connect() as bus:
        exec(code, {"agentbus": agentbus, "bus": bus, "__name__": "__main__"})
"""

# Plain `redis-cli`, as it prints when no terminal reads it: machines need not have one. It speaks the
# protocol itself: to import a client takes far longer than any command of a page.
REDIS_CLI = f"""#!{sys.executable} -IS
import socket, sys
_, _, place, *command = sys.argv
server = socket.socket(socket.AF_UNIX)
server.connect(place)
words = [word.encode("utf-8", "surrogateescape") for word in command]
server.sendall(b"*%d\\r\\n" % len(words) + b"".join(b"$%d\\r\\n%b\\r\\n" % (len(w), w) for w in words))
replies = server.makefile("rb")
def lines():
    kind, value = (line := replies.readline())[:1], line[1:-2]
    if kind == b"*":
        return b"".join(lines() for _ in range(max(0, int(value))))
    if kind == b"$":
        value = replies.read(int(value) + 2)[:-2] if int(value) >= 0 else b""
    return value + b"\\n"
sys.stdout.buffer.write(lines())
"""


def run_python(file: pathlib.Path, block: Block, session: Shell, place: pathlib.Path) -> None:
    done = session.python(str(file.parent / "runner.py"), str(file), cwd=place)
    assert done.returncode == 0, f"line {block.line}:\n{done.stderr}"
    assert_printed(block.output, done.stdout, f"line {block.line}: {block.text}")
