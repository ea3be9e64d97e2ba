"""Moves branches that plain calls never take out of functions, which then load faster."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

# Calls a branch by its number, and imports what is not linked (see runtime.py).
_CALL, _LATE = "_branch", "_late"
# What the names of branches begin with, before the number: each name takes time to load.
_BRANCH = "branch"
# A shorter branch gains nothing from being a call.
_LEAST = 70
# What leaves a branch in another way than its function, or means something else in another function.
_FIXED = (
    *(ast.Yield, ast.YieldFrom, ast.Await, ast.Break, ast.Continue, ast.Delete),
    *(ast.Global, ast.Nonlocal, ast.FunctionDef, ast.ClassDef),
)
# What evaluates only some of what is in it.
_CHOICES = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.BoolOp, ast.Lambda)
_OWN = frozenset(("super", "__class__"))


def outline(statements: Iterable[ast.stmt], package: str) -> list[ast.stmt]:
    """Replace branches of the statements' functions by calls, and return the functions that these call.

    Such a branch ends its function, and raises or needs what is not linked: no plain call takes it.
    """
    outliner = _Outliner(package)
    for statement in statements:
        outliner.visit(statement)
    return outliner.found


class _Outliner(ast.NodeVisitor):
    def __init__(self, package: str) -> None:
        self.found: list[ast.stmt] = []
        self._package = package
        # The functions around.
        self._functions: list[ast.FunctionDef] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_If(self, node: ast.If) -> None:
        self.generic_visit(node)
        self._outline(node.body)
        self._outline(node.orelse)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.generic_visit(node)
        self._outline(node.body)

    def _outline(self, body: list[ast.stmt]) -> None:
        if not self._functions or not self._is_rare(body):
            return
        outside = {name for one in self._functions for name in _bound(one, body)}
        used = [*_names(body)]
        if any(name in outside for name, is_bound in used if is_bound):
            return
        given = sorted({name for name, _ in used if name in outside})
        number = len(self.found)
        self.found.append(
            ast.FunctionDef(f"{_BRANCH}{number}", _parameters(given), [*body], [], lineno=0)
        )
        values: list[ast.expr] = [ast.Name(one, ast.Load()) for one in given]
        call = ast.Call(ast.Name(_CALL, ast.Load()), [ast.Constant(number), *values], [])
        body[:] = [ast.Return(call)]

    def _is_rare(self, body: list[ast.stmt]) -> bool:
        """Tell whether a branch ends its function, and no plain call takes it."""
        if not body or not isinstance(body[-1], ast.Raise | ast.Return):
            return False
        nodes = [node for statement in body for node in ast.walk(statement)]
        if any(isinstance(node, _FIXED) for node in nodes):
            return False
        if any(isinstance(node, ast.Name) and node.id in _OWN for node in nodes):
            return False
        if any(isinstance(node, ast.Attribute) and _is_private(node.attr) for node in nodes):
            return False
        is_rare = isinstance(body[-1], ast.Raise) or any(map(self._is_late, _certain(body)))
        return is_rare and len(ast.unparse(ast.Module(body, []))) > _LEAST

    def _is_late(self, node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return str(node.module).partition(".")[0] == self._package
        return isinstance(node, ast.Name) and node.id == _LATE


def _certain(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that are evaluated whenever the statements run."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _CHOICES):
            yield node
            waiting += ast.iter_child_nodes(node)


def _bound(function: ast.FunctionDef, without: list[ast.stmt]) -> set[str]:
    """Return the names that a function binds outside of some of its statements."""
    given = function.args
    several = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    found = {one.arg for one in several if one is not None}
    return found.union(name for name, is_bound in _names(function.body, without) if is_bound)


def _names(
    body: list[ast.stmt], without: list[ast.stmt] | None = None
) -> Iterator[tuple[str, bool]]:
    """Yield the names in statements, and whether they are bound there, but for some of the statements."""
    left = {id(one) for one in without or ()}
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if id(node) in left:
            continue
        if isinstance(node, ast.Name):
            yield node.id, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name.partition(".")[0], True) for one in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, True
        waiting += ast.iter_child_nodes(node)


def _parameters(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in names],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )


def _is_private(name: str) -> bool:
    return name[:2] == "__" and name[-2:] != "__"
