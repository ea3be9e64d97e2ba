"""The quick path: the modules that a quick verb may load, and what they alone may do to load fast."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.servers import Shell
from tests.source_tree import MODULES, PACKAGE, files, imports, module_name, tree

_PACKAGES = {
    "agentbus.agents": "clients event hook stdio",
    "agentbus.commands": (
        "_declare _main _message _output _parser _session _values _waiting"
        " announce await_ jot overhear recall satisfy speak"
    ),
    "agentbus.coordination": "announce notes overhear recall speak wait waiters",
    "agentbus.core": (
        "agent_name client_session clock errors json_text keys names oplog record settings"
        " stream timespec"
    ),
    "agentbus.store": "connection driver operation resp schemes scope sessions steps tcp url",
}
# These alone may import inside functions for speed, do without `typing`, and avoid dataclasses.
QUICK = {"agentbus", *_PACKAGES} | {
    f"{package}.{name}" for package, names in _PACKAGES.items() for name in names.split()
}
VERBS = {
    "speak": ["speak", "hi", "--topic", "build"],
    "overhear": ["overhear"],
    "announce": ["announce", "building", "--ttl", "60"],
    "satisfy": ["satisfy", "building"],
    "recall": ["recall", "how"],
    "jot": ["jot", "how", "make", "--tag", "a,b"],
    "await": ["await", "tested", "--timeout", "5"],
    "hook claude": ["hook", "claude", "PostToolUse"],
    "hook codex": ["hook", "codex", "PostToolUse"],
    "hook copilot": ["hook", "copilot", "postToolUse"],
    "hook cursor": ["hook", "cursor", "postToolUse"],
    "hook gemini": ["hook", "gemini", "AfterTool"],
    "hook opencode": ["hook", "opencode", "tool.execute.after"],
}
SLOW = {
    *("click", "redis", "typing", "dataclasses", "re"),
    *("json", "logging", "socket", "yaml", "asyncio"),
}
# A process for each verb: what one has loaded would be there for the next.
_PROGRAM = f"""
import os, sys
sys.path[:0] = {[str(PACKAGE.parent), *(p for p in sys.path if p.endswith("site-packages"))]!r}
leave = os._exit
def report(code):
    os.write(2, "\\n".join([str(code), *sys.modules]).encode())
    leave(0)
os._exit = report
from agentbus.commands._main import main
main()
"""
_EVENT = {
    "session_id": "3f6c2a10-7d0e-4c55-9b1e-0a6f2d8c41aa",
    "tool_name": "Bash",
    "tool_response": {"stdout": "ok"},
}


def loaded(shell: Shell, words: list[str]) -> set[str]:
    """Run a quick verb, and return the modules that were there at its end."""
    done = subprocess.run(
        # -S keeps out what an editable install loads at every start.
        [sys.executable, "-S", "-c", _PROGRAM, *words],
        env={"AGENTBUS_AGENT": "ada", **shell.environment},
        cwd=shell.home,
        input=json.dumps(_EVENT),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # What a verb says to people comes first.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("agentbus: ")]
    code, *modules = lines
    assert code == "0", done.stdout
    return set(modules)


@pytest.fixture
def short_home():
    """A home whose path has room for a socket below it; for another one, a verb loads more."""
    with tempfile.TemporaryDirectory(prefix="ab-", dir="/tmp") as place:
        yield pathlib.Path(place)


def prepare(shell: Shell) -> None:
    """Have the server learn the scripts of all quick verbs, and what they read."""
    for words in (VERBS["jot"], ["satisfy", "tested"], *VERBS.values()):
        loaded(shell, words)


def test_a_quick_verb_loads_at_most_35_modules_of_the_list_and_nothing_slow(
    short_home, project, valkey
):
    urls = {"embedded": "", "socket": valkey.url, "TCP": valkey.tcp_url}
    quick, slow = {}, {}
    for where, url in urls.items():
        shell = Shell(short_home, {"AGENTBUS_PROJECT": project, "AGENTBUS_URL": url})
        prepare(shell)
        for verb, words in VERBS.items():
            names = loaded(shell, words)
            quick[where, verb] = {name for name in names if name.partition(".")[0] == "agentbus"}
            # Only a host's name needs `socket`.
            slow[where, verb] = names & SLOW - ({"socket"} if where == "TCP" else set())
        if not url:
            shell.ok("server", "stop")

    assert {verb: names for verb, names in slow.items() if names} == {}
    assert {verb: names - QUICK for verb, names in quick.items() if names - QUICK} == {}
    assert {verb: len(names) for verb, names in quick.items() if len(names) > 35} == {}
    # The other two are loaded for an agent without a name: its name, and the warning that it ends.
    assert QUICK - set().union(*quick.values()) == {
        *("agentbus.core.agent_name", "agentbus.commands._session")
    }


def test_the_list_has_at_most_60_modules():
    assert QUICK <= MODULES
    assert len(QUICK) <= 60


def test_other_modules_import_inside_functions_for_a_stated_reason_alone():
    lines = {module_name(path): path.read_text().splitlines() for path in files()}

    assert [
        f"{found.importer}:{found.line}"
        for found in imports()
        if found.when == "function"
        and found.importer not in QUICK
        and not _has_reason(lines[found.importer], found.line - 1)
    ] == []


def _has_reason(lines: list[str], number: int) -> bool:
    """Report whether a comment stands beside an import, or above it and its neighbours."""
    if "  # " in lines[number]:
        return True
    while lines[number].lstrip().startswith(("import ", "from ")):
        number -= 1
    return lines[number].lstrip().startswith("# ")


def test_other_modules_use_typing_and_dataclasses():
    assert sorted(_avoided()) == []


def _avoided() -> Iterator[str]:
    for path in files():
        name = module_name(path)
        if name in QUICK:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node) == "TYPE_CHECKING = False":
                yield f"{name}: TYPE_CHECKING"
    for found in imports():
        if found.module.startswith("agentbus.core.record") and found.importer not in QUICK:
            yield f"{found.importer}: Record"
