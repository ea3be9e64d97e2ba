"""The examples of the documentation do what their pages say."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

from tests.forking import forking_session, new_shell
from tests.pages import NOT_RUN, PAGES, REDIS_CLI, ROOT, RUNNER, Terminal, blocks, named, run_python
from tests.servers import Shell, program
from tests.tiers import nightly


@pytest.fixture
def session(tmp_path: pathlib.Path) -> Iterator[Shell]:
    """A fresh home in which the commands of one page run."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "redis-cli").write_text(REDIS_CLI)
    (tools / "redis-cli").chmod(0o755)
    (tmp_path / "runner.py").write_text(RUNNER)
    path = f"{pathlib.Path(program()).parent}:{tools}:{os.environ['PATH']}"
    # A short path, as homes have: the server's socket lies in it.
    with tempfile.TemporaryDirectory(prefix="docs-", dir="/tmp") as home:
        shell = new_shell(pathlib.Path(home), {"PATH": path, "LOGNAME": "you", "USER": "you"})
        yield shell
        shell.run("server", "stop")


def runnable(path: pathlib.Path) -> bool:
    return any(
        block.language in ("console", "python") and not NOT_RUN & set(block.marks)
        for block in blocks(path)
    )


# Each takes as long as ten others; the shop has tests of its own.
LONG = ("docs/tutorial/shop.md",)
# Each change starts a Python for each command line on these, as readers do.
STARTED = ("README.md", "docs/tutorial/first-ten-minutes.md")


@pytest.mark.parametrize(
    "path",
    [
        nightly(path, id=named(path)) if named(path) in LONG else pytest.param(path, id=named(path))
        for path in PAGES
        if runnable(path)
    ],
)
def test_the_examples_of_the_page_do_what_they_say(path, session, tmp_path):
    place = session.home / "app"
    place.mkdir()
    if "cp -r docs/examples" in path.read_text():
        # As a reader does in a checkout.
        (place / "docs").symlink_to(ROOT / "docs")
    begin = list if named(path) in STARTED else forking_session
    terminals: dict[str, Terminal] = {}
    try:
        for block in blocks(path):
            if NOT_RUN & set(block.marks):
                continue
            if block.language == "console":
                which = next((mark for mark in block.marks if mark[:9] == "terminal="), "")
                if which not in terminals:
                    terminals[which] = Terminal(session.environment, place, begin)
                terminals[which].type(block.commands())
                if "waits" not in block.marks:
                    terminals[which].settle()
            elif block.language == "python":
                file = tmp_path / f"line{block.line}.py"
                file.write_text(block.text)
                run_python(file, block, session, place)
        for terminal in terminals.values():
            terminal.settle()
    finally:
        for terminal in terminals.values():
            terminal.close()
