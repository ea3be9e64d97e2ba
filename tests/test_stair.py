"""The rooms of the package stand on one stair: each imports only from rooms below it."""

from __future__ import annotations

import ast
import collections
import pathlib
from collections.abc import Iterator, Mapping

from tests.source_tree import MODULES, PACKAGE, files, imports, module_name, nodes

# Each line may import from the lines above it; the rooms of one line do not know each other.
STAIR = (
    ("core",),
    ("store",),
    ("coordination", "queues"),
    ("processes",),
    ("workers",),
    ("admin",),
    ("client",),
    ("agentbus",),
    ("routing", "testing", "events", "pipeline", "agents"),
    ("tasks",),
    ("dashboard",),
    ("commands",),
)
STEP = {room: step for step, rooms in enumerate(STAIR) for room in rooms}
# The public import paths at the top of the package, and the package itself, are one room.
TOP = "agentbus"
MOST_ROOMS = 17
FOUND_BY_NAME = (
    *("heartbeat", "dead_letter", "consumer", "ack", "reclaim", "retry", "registry", "fetch"),
    *("pause", "doctor"),
)


def room(module: str) -> str:
    if module == "agentbus.__main__":
        return "commands"
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else TOP


def crossings() -> Iterator[tuple[str, str]]:
    """Yield every pair of modules of which the first imports the second, whenever it does."""
    for found in imports():
        if found.module in MODULES and found.module != found.importer:
            yield found.importer, found.module


def circles(needs: Mapping[str, set[str]]) -> list[str]:
    """Return the modules that need themselves by way of others."""
    needed_by: dict[str, set[str]] = collections.defaultdict(set)
    for module, needed in needs.items():
        for other in needed:
            needed_by[other].add(module)
    left = set(needs)
    for direction in (needs, needed_by):
        while free := {m for m in left if not direction.get(m, set()) & left}:
            left -= free
    return sorted(left)


def test_every_room_has_a_step():
    assert {room(module) for module in MODULES} <= set(STEP)


def test_imports_go_down_the_stair_only():
    upwards = sorted(
        f"{importer} -> {imported}"
        for importer, imported in set(crossings())
        if room(importer) != room(imported)
        and STEP[room(imported)] >= STEP[room(importer)]
        # The package's own table of contents names what it loads when asked.
        and importer != TOP
    )

    assert upwards == []


def test_no_modules_import_each_other_in_a_circle():
    needs: dict[str, set[str]] = {module: set() for module in MODULES}
    for importer, imported in crossings():
        needs[importer].add(imported)
    # The package's own table of contents names what it loads when asked.
    del needs[TOP]

    assert circles(needs) == []


def test_there_are_few_rooms():
    assert (
        len([path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]) <= MOST_ROOMS
    )


def test_the_names_of_modules_are_unique_within_a_room():
    named: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for path in files():
        module = module_name(path)
        # A supervisor has a status, as events have.
        inside = module.rpartition(".")[0] if room(module) == "events" else room(module)
        if path.stem != "__init__":
            named[inside, path.stem].append(module)

    assert [modules for modules in named.values() if len(modules) > 1] == []


def test_no_two_classes_have_one_name():
    defined: dict[str, set[str]] = collections.defaultdict(set)
    for module, node in nodes():
        if isinstance(node, ast.ClassDef):
            defined[node.name].add(module)

    assert {name: sorted(where) for name, where in defined.items() if len(where) > 1} == {}


def test_a_newcomer_finds_each_concept_by_the_name_of_a_file():
    stems = [path.stem for path in files()]

    assert [word for word in FOUND_BY_NAME if not any(word in stem for stem in stems)] == []


def test_no_file_is_long():
    long = {
        str(path.relative_to(PACKAGE)): length
        for path in (*files(), *PACKAGE.rglob("*.lua"))
        if (length := len(pathlib.Path(path).read_text().splitlines())) > 700
    }

    assert long == {}
