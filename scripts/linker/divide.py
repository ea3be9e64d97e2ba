"""Divides a linked module: what runs until the request is sent, and the rest, which is loaded meanwhile."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

# What stands for a function and for a class of the second part (see runtime.py).
_FUNCTION, _CLASS = "_rest", "_of_rest"


def divide(
    statements: Iterable[ast.stmt], first: Container[str], roots: Iterable[str]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements of both parts.

    `first` names the functions that run before the request is sent (`function`, `Class.method`), those
    included that run as the module is loaded; `roots` are the names that the end of the first part uses.
    For what the first part refers to in the second one it has a stand-in, which loads that part: where
    `first` lacks a function, a verb is slower, and does the same.
    """
    order = list(statements)
    homes: dict[str, list[ast.stmt]] = {}
    for statement in order:
        for name in _bound(statement):
            homes.setdefault(name, []).append(statement)
    waits = _Waits(order, first)
    kept: dict[int, tuple[ast.stmt, list[ast.stmt]]] = {}
    later: set[str] = set()
    waiting = [*roots]
    for statement in order:
        if not _bound(statement):
            waiting += (name for name, _ in _read(statement))
    while waiting:
        name = waiting.pop()
        later.discard(name)
        for statement in homes.pop(name, ()):
            stays, goes = _parts(statement, first)
            if id(statement) in kept:
                continue
            kept[id(statement)] = stays, goes
            for other, within in _read(stays):
                if within and other in homes and waits(other):
                    later.add(other)
                else:
                    waiting.append(other)
    one: list[ast.stmt] = []
    two: list[ast.stmt] = []
    for statement in order:
        stays, goes = kept.get(id(statement), (statement, []))
        if id(statement) in kept or not _bound(statement):
            one.append(_Later(later).visit(stays))
            two += goes
        else:
            two.append(statement)
    return one, two


def _parts(statement: ast.stmt, first: Container[str]) -> tuple[ast.stmt, list[ast.stmt]]:
    """Return what stays of a statement in the first part, and what goes to the second."""
    if isinstance(statement, ast.FunctionDef) and statement.name not in first:
        return _stand_in(statement.name, statement.name), [statement]
    if not isinstance(statement, ast.ClassDef):
        return statement, []
    body: list[ast.stmt] = []
    moved: list[ast.stmt] = []
    for method in statement.body:
        if not isinstance(method, ast.FunctionDef) or _must_stay(method, statement.name, first):
            body.append(method)
            continue
        name = f"{statement.name}__{method.name}"
        body.append(_stand_in(method.name, name))
        moved.append(ast.FunctionDef(name, method.args, method.body, [], lineno=0))
    stays = ast.ClassDef(
        statement.name, statement.bases, statement.keywords, body, statement.decorator_list
    )
    return stays, moved


def _must_stay(method: ast.FunctionDef, of: str, first: Container[str]) -> bool:
    """Tell whether a method runs first, or means something else outside of its class."""
    nodes = list(ast.walk(method))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        f"{of}.{method.name}" in first
        or method.name[:2] == "__"
        or bool(method.decorator_list)
        or not names.isdisjoint(("super", "__class__"))
        or any(isinstance(node, ast.Attribute) and _is_private(node.attr) for node in nodes)
    )


class _Waits:
    """Tells of which classes nothing is made before the request is sent."""

    def __init__(self, statements: list[ast.stmt], first: Container[str]) -> None:
        self._classes = {one.name: one for one in statements if isinstance(one, ast.ClassDef)}
        self._first = first

    def __call__(self, name: str) -> bool:
        methods = [*self._methods(name)]
        known = any(method.endswith(".__init__") for method in methods)
        return known and not any(method in self._first for method in methods)

    def _methods(self, name: str) -> Iterator[str]:
        """Yield the methods of a class and of those that it inherits from."""
        made = self._classes.get(name)
        if made is None:
            return
        yield from (f"{name}.{one.name}" for one in made.body if isinstance(one, ast.FunctionDef))
        for base in made.bases:
            if isinstance(base, ast.Name):
                yield from self._methods(base.id)


def _is_private(name: str) -> bool:
    return name[:2] == "__" and name[-2:] != "__"


def _stand_in(name: str, of: str) -> ast.stmt:
    made = ast.Call(ast.Name(_FUNCTION, ast.Load()), [ast.Constant(of)], [])
    return ast.Assign([ast.Name(name, ast.Store())], made)


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module binds; none where it stays in any case."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [node.id for node in statement.targets if isinstance(node, ast.Name)]
    return []


def _read(node: ast.AST, *, within: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the names that are read, and whether a function does so once it is called.

    What it tests values for counts as read at once: to load the second part for a test would be too soon.
    """
    if isinstance(node, ast.Name):
        yield node.id, within and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        within = within and node.func.id != "isinstance"
    is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        inside = within or (is_function and field == "body")
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield from _read(child, within=inside)


class _Later(ast.NodeTransformer):
    """Puts what loads the second part in the place of the names of its classes."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._names:
            return node
        return ast.Call(ast.Name(_CLASS, ast.Load()), [ast.Constant(node.id)], [])
