"""Reads the package's own source, for the tests that hold it to its rules."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "agentbus"


class Import(NamedTuple):
    """An import of `module` in `importer`: when it happens, and where it stands."""

    importer: str
    module: str
    line: int
    # "typing": never at run time; "module": as the importer loads; "function": when that is called
    when: str


def files() -> list[pathlib.Path]:
    """Return the package's Python files."""
    # `commands` is linked into the package, which rglob would not follow on every version.
    inside = [
        path for path in PACKAGE.rglob("*.py") if "commands" not in path.relative_to(PACKAGE).parts
    ]
    return sorted([*inside, *(PACKAGE / "commands").glob("*.py")])


def scripts() -> list[pathlib.Path]:
    """Return the Lua scripts and what they include."""
    return sorted((PACKAGE / "store/lua").rglob("*.lua"))


def module_name(path: pathlib.Path) -> str:
    """Return a file's import path."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = frozenset(map(module_name, files()))


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return every node of every file's syntax tree, each with its module: walked once for all rules."""
    return [
        (module, node)
        for path in files()
        for module in [module_name(path)]
        for node in ast.walk(tree(path))
    ]


@functools.cache
def imports() -> tuple[Import, ...]:
    """Return every import of every file."""
    return tuple(found for path in files() for found in _imports(path))


def _imports(path: pathlib.Path) -> Iterator[Import]:
    importer = module_name(path)

    def visit(node: ast.AST, when: str) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(importer, full if full in MODULES else node.module, node.lineno, when)
        elif isinstance(node, ast.If) and _is_for_typing(node.test):
            for child in node.body:
                yield from visit(child, "typing")
            for child in node.orelse:
                yield from visit(child, when)
        else:
            inner = when
            if when == "module" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = "function"
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inner)

    yield from visit(tree(path), "module")


def _is_for_typing(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
