"""Divides a linked module into three parts: to load one takes nearly half of a quick verb's own time."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

from linker.outline import outline
from linker.sources import PACKAGE

# What stands for a function and for a class of a later part (see runtime.py), and for a class that values
# are tested for.
_FUNCTION, _CLASS, HERE = "_rest", "_of_rest", "_here"
# Given to a class whose methods are added by a later part.
_COMPLETE = "__getattr__ = _complete"


def divide(
    statements: Iterable[ast.stmt],
    first: Iterable[str],
    second: Iterable[str],
    roots: Iterable[str],
) -> tuple[list[ast.stmt], list[ast.stmt], list[ast.stmt]]:
    """Return the statements of the parts: until the request is sent, until the verb ends, and all others.

    `first` names the functions that run before the request is sent (`function`, `Class.method`), those
    included that run as the module is loaded; `second` those that run afterwards; `roots` are the names
    that the end of the first part uses. For what a part refers to in a later one it has a stand-in, which
    loads that part: where `first` lacks a function, a verb is slower, and does the same.
    """
    one, rest = _divided([*statements], frozenset(first), roots)
    # Classes that are made then; and a method that has left the first part stands outside of its class.
    made = {name.partition(".")[0] for name in second if name.endswith(".__init__")}
    runs = {name.replace(".", "__") for name in second} | made
    roots = [name for statement in rest for name in _bound(statement) if name in runs]
    two, three = _divided(rest, {*first, *second, *runs}, roots)
    return one, two, [*three, *outline([*one, *two], PACKAGE)]


def _divided(
    order: list[ast.stmt], now: Container[str], roots: Iterable[str]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements of which the functions run now, and those of which they run later."""
    homes: dict[str, list[ast.stmt]] = {}
    for statement in order:
        for name in _bound(statement):
            homes.setdefault(name, []).append(statement)
    waits = _Waits(order, now)
    values = frozenset(_values(order))
    kept: dict[int, tuple[ast.stmt, list[ast.stmt]]] = {}
    later: set[str] = set()
    tested: set[str] = set()
    waiting = [*roots]
    for statement in order:
        if not _bound(statement):
            waiting += (name for name, _, _ in _read(statement))
    while waiting:
        name = waiting.pop()
        later.discard(name)
        for statement in homes.pop(name, ()):
            stays, goes = _parts(statement, now, values)
            if id(statement) in kept:
                continue
            kept[id(statement)] = stays, goes
            for other, within, for_test in _read(stays):
                if for_test and other in homes and waits(other):
                    tested.add(other)
                elif within and other in homes and waits(other):
                    later.add(other)
                else:
                    waiting.append(other)
    one: list[ast.stmt] = []
    two: list[ast.stmt] = []
    for statement in order:
        stays, goes = kept.get(id(statement), (statement, []))
        if id(statement) in kept or not _bound(statement):
            one.append(_Later(later, tested & homes.keys()).visit(stays))
            two += goes
        else:
            two.append(statement)
    return one, two


def _parts(
    statement: ast.stmt, now: Container[str], values: Container[str]
) -> tuple[ast.stmt, list[ast.stmt]]:
    """Return what stays of a statement in this part, and what goes to a later one.

    A class lacks a method that goes, and gets it later; if the method's name is in `values`, it has a
    stand-in.
    """
    if isinstance(statement, ast.FunctionDef) and statement.name not in now:
        return stand_in(statement.name, statement.name), [statement]
    if not isinstance(statement, ast.ClassDef):
        return statement, []
    of = statement.name
    # What Python asks for a method that the class lacks.
    asked = next((one for one in statement.body if "__getattr__" in _bound(one)), None)
    body: list[ast.stmt] = []
    moved: list[ast.stmt] = []
    for method in statement.body:
        if not isinstance(method, ast.FunctionDef) or _must_stay(method, of, now):
            body.append(method)
            continue
        name = f"{of}__{method.name}"
        is_property = bool(method.decorator_list)
        if is_property and isinstance(asked, ast.FunctionDef):
            body.append(method)
            continue
        moved.append(
            ast.FunctionDef(name, method.args, method.body, method.decorator_list, lineno=0)
        )
        if isinstance(asked, ast.FunctionDef) or (method.name in values and not is_property):
            body.append(stand_in(method.name, name))
        else:
            target = ast.Attribute(ast.Name(of, ast.Load()), method.name, ast.Store())
            moved.append(ast.Assign([target], ast.Name(name, ast.Load())))
    if moved and asked is None:
        body += ast.parse(_COMPLETE).body
    stays = ast.ClassDef(of, statement.bases, statement.keywords, body, statement.decorator_list)
    return stays, moved


def _must_stay(method: ast.FunctionDef, of: str, now: Container[str]) -> bool:
    """Tell whether a method runs now, or means something else outside of its class."""
    nodes = list(ast.walk(method))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        f"{of}.{method.name}" in now
        or method.name[:2] == "__"
        or not set(map(ast.unparse, method.decorator_list)) <= {"property"}
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
        """Yield the methods that tell whether a class has objects: its own, and those that make them."""
        made = self._classes.get(name)
        if made is None:
            return
        own = [one.name for one in made.body if isinstance(one, ast.FunctionDef)]
        yield from (f"{name}.{method}" for method in own)
        for base in made.bases if "__init__" not in own else ():
            if isinstance(base, ast.Name):
                yield from self._methods(base.id)


def _values(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the attributes that are used as values, such as a method that is called by others."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in called:
            yield node.attr


def _is_private(name: str) -> bool:
    return name[:2] == "__" and name[-2:] != "__"


def stand_in(name: str, of: str) -> ast.stmt:
    """Return the statement that binds a name to what stands for a function of a later part."""
    made = ast.Call(ast.Name(_FUNCTION, ast.Load()), [ast.Constant(of)], [])
    return ast.Assign([ast.Name(name, ast.Store())], made)


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module binds; none where it stays in any case."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        if isinstance(statement.targets[0], ast.Attribute) and isinstance(
            statement.value, ast.Name
        ):
            # A class gets a method: this goes where the method is.
            return [statement.value.id]
        return [node.id for node in statement.targets if isinstance(node, ast.Name)]
    return []


def _read(
    node: ast.AST, *, within: bool = False, for_test: bool = False
) -> Iterator[tuple[str, bool, bool]]:
    """Yield the names that are read, whether a function does so once it is called, and for a test of type.

    What it tests values for counts as read at once: to load the second part for a test would be too soon.
    """
    if isinstance(node, ast.Name):
        yield node.id, within and isinstance(node.ctx, ast.Load), for_test
    tests = _tests(node)
    within = within and not tests
    is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        inside = within or (is_function and field == "body")
        for place, child in enumerate(value if isinstance(value, list) else (value,)):
            if isinstance(child, ast.AST):
                types = tests and field == "args" and place == 1
                yield from _read(child, within=inside, for_test=for_test or types)


def _tests(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
    )


class _Later(ast.NodeTransformer):
    """Puts what loads a later part in the place of the names of its classes; no test of types loads it."""

    def __init__(self, names: Container[str], tested: Container[str]) -> None:
        self._names = names
        self._tested = tested

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._names:
            return node
        return ast.Call(ast.Name(_CLASS, ast.Load()), [ast.Constant(node.id)], [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _tests(node) and isinstance(node.args[1], ast.Tuple):
            node.args[1].elts = [*map(self._type, node.args[1].elts)]
        self.generic_visit(node)
        return node

    def _type(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Name) or node.id not in self._tested:
            return node
        found = ast.Call(ast.Name(HERE, ast.Load()), [ast.Constant(node.id)], [])
        return ast.Starred(found, ast.Load())
