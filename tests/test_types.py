"""What type checkers and `help` say about the public API: programs in tests/types, right and wrong."""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import agentbus
from agentbus.client.queue import AsyncQueue
from agentbus.core import envelope
from agentbus.store.steps import Command
from agentbus.store.verb import verb
from tests.source_tree import ROOT, tree

if TYPE_CHECKING:
    from agentbus.store.steps import Op

PROGRAMS = ROOT / "tests" / "types"
Found = dict[tuple[str, int], set[str]]


def expected(checker: str) -> Found:
    """Return the errors that the programs' comments ask for, by file and line."""
    return {
        (path.name, number): {*mark.group(1).split("+")}
        for path in sorted(PROGRAMS.glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (mark := re.search(rf"#.*\b{checker} ([\w+-]+)", line))
    }


def collected(errors: Iterator[tuple[str, int, str]]) -> Found:
    found: Found = {}
    for name, line, code in errors:
        found.setdefault((name, line), set()).add(code)
    return found


def test_mypy_finds_each_mistake_and_nothing_else() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--follow-imports=silent", "--hide-error-context", "--no-pretty"),
            # A cache of its own: the run of `scripts/lint` may write to the other at the same time.
            *("--cache-dir", ".mypy_cache/programs", str(PROGRAMS.relative_to(ROOT))),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    errors = re.findall(r"^\S*?(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert done.stderr == ""
    assert collected((name, int(line), code) for name, line, code in errors) == expected("mypy")


@pytest.mark.slow
def test_pyright_finds_each_mistake_and_nothing_else(tmp_path: pathlib.Path) -> None:
    pyright = shutil.which("basedpyright", path=str(pathlib.Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("basedpyright is not installed; the dependency group 'types' has it")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": [str(PROGRAMS)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))

    done = subprocess.run(
        [pyright, "--outputjson", "-p", str(tmp_path), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )

    errors = (
        (pathlib.Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["rule"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        # Follows from the error on the same line.
        if one["rule"] != "reportUnknownMemberType"
    )
    assert collected(errors) == expected("pyright")


def test_the_keywords_of_an_envelope_are_the_fields_of_a_task() -> None:
    (declared,) = (
        node
        for node in ast.walk(tree(pathlib.Path(envelope.__file__)))
        if isinstance(node, ast.ClassDef) and node.name == "Envelope"
    )
    keywords = [ast.unparse(one.target) for one in declared.body if isinstance(one, ast.AnnAssign)]

    assert ["payload", *keywords] == list(agentbus.Task.__match_args__)


@pytest.mark.parametrize("kind", [agentbus.Bus, agentbus.AsyncBus, agentbus.Queue, AsyncQueue])
def test_help_shows_what_each_method_returns(kind: type) -> None:
    methods = {
        name: str(inspect.signature(found))
        for name in dir(kind)
        if name[0] != "_" and callable(found := getattr(kind, name))
    }

    internal = re.compile(r"\b(Op|Patient|Emits|PerBus)\[")
    assert {name: shown for name, shown in methods.items() if internal.search(shown)} == {}
    assert {name for name, shown in methods.items() if "->" not in shown} == set()


def returned(method: Callable[..., object]) -> object:
    return inspect.signature(method).return_annotation


def test_help_shows_a_verb_as_its_callers_see_it(bus: agentbus.Bus) -> None:
    assert returned(agentbus.Bus.speak) == "Message"
    assert returned(bus.speak) == "Message"
    assert returned(bus.overhear) == "Generator[Message, None, None]"
    assert returned(bus.announce) == "Hold"
    assert returned(bus.queue("mail").publish) == "str"
    first = pydoc.plain(pydoc.render_doc(bus.speak)).splitlines()[2]
    assert first.replace("'", "").startswith(
        "speak(text: str, *, topic: str | None = None) -> Message"
    )


async def test_help_shows_the_verbs_of_an_asynchronous_bus_as_coroutines(
    abus: agentbus.AsyncBus,
) -> None:
    assert returned(abus.speak) == "Coroutine[Any, Any, Message]"
    assert returned(abus.overhear) == "AsyncGenerator[Message, None]"
    assert returned(abus.announce) == "Coroutine[Any, Any, Hold[Awaiting]]"
    assert returned(abus.queue("mail").publish) == "Coroutine[Any, Any, str]"
    assert returned(abus.queue("mail").publish_stream) == "AsyncGenerator[str, None]"
    assert isinstance(abus.queue("mail"), agentbus.Queue)


def test_the_source_of_a_verb_is_that_of_its_definition() -> None:
    assert "@verb" in inspect.getsource(agentbus.Bus.speak)


class Counting:
    """Adds a verb to a bus of either kind."""

    @verb
    def spoken(self) -> Op[int]:
        """Return the number of messages on the channel."""
        bus: Any = self
        length: int = yield Command("XLEN", bus.scope.keys.channel)
        return length


class TeamBus(Counting, agentbus.Bus):
    def speak(self, text: str, *, topic: str | None = None) -> agentbus.Message:
        return super().speak(f"team: {text}", topic=topic)


class AsyncTeamBus(Counting, agentbus.AsyncBus):
    pass


def test_a_subclass_of_a_bus_has_verbs_and_methods_of_its_own(bus: agentbus.Bus) -> None:
    with TeamBus(bus.settings) as team:
        said = team.speak("hi")

        assert said.text == "team: hi"
        assert team.spoken() == 1
        assert [note.key for note in team.notes()] == []
    assert bus.speak("hi").text == "hi"
    assert returned(TeamBus.spoken) == "int"


async def test_a_verb_of_a_subclass_is_awaited_on_an_asynchronous_bus(
    abus: agentbus.AsyncBus,
) -> None:
    async with AsyncTeamBus(abus.settings) as team:
        await team.speak("hi")

        assert await team.spoken() == 1
    assert returned(AsyncTeamBus.spoken) == "Coroutine[Any, Any, int]"
