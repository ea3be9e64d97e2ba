"""Replaces classes of a linked module, each of which takes a hundredth of a verb's own time to make."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, MutableMapping

from linker.divide import HERE
from linker.fold import OBJECT


def simplify(statements: list[ast.stmt], classes: MutableMapping[str, str]) -> None:
    """Replace classes that are only called by functions, and merge those that only others derive from.

    A class that has only attributes, such as a record, becomes a function that returns an object with
    these, and leaves `classes`: linked code neither compares nor changes them. One that no code names but
    as a base class is copied into the classes that derive from it.
    """
    named = Counter(node.id for node in _nodes(statements) if isinstance(node, ast.Name))
    called = Counter(
        node.func.id
        for node in _nodes(statements)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    bases = {one.name: one for one in statements if isinstance(one, ast.ClassDef)}
    inherited = Counter(
        base.id for one in bases.values() for base in one.bases if isinstance(base, ast.Name)
    )
    for place, statement in enumerate(statements):
        if not isinstance(statement, ast.ClassDef):
            continue
        name = statement.name
        if named[name] == called[name]:
            made = _record(statement) or _of_attributes(statement)
            if made is not None:
                statements[place] = made
                del classes[name]
                continue
        for base in statement.bases:
            if (
                isinstance(base, ast.Name)
                and named[base.id] == inherited[base.id]
                and base.id in bases
                and not bases[base.id].bases
                and _is_plain(statement)
                and _is_plain(bases[base.id])
            ):
                _merge(statement, bases[base.id])


def _record(made: ast.ClassDef) -> ast.stmt | None:
    """Return the function in place of a class of records that has only fields; None if it has more."""
    if [ast.unparse(one) for one in made.bases] != ["Record"]:
        return None
    given = ast.arguments([], [], None, [], [], None, [])
    for statement in made.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            given.args.append(ast.arg(statement.target.id))
            if statement.value is not None:
                given.defaults.append(statement.value)
        elif not _is_of_module(statement):
            return None
    words = [ast.keyword(one.arg, ast.Name(one.arg, ast.Load())) for one in given.args]
    return _making(made.name, given, words)


def _of_attributes(made: ast.ClassDef) -> ast.stmt | None:
    """Return the function in place of a class that only sets attributes; None if it does more."""
    words = _attributes(made)
    if words is None:
        return None
    (begins,) = (one for one in made.body if isinstance(one, ast.FunctionDef))
    del begins.args.args[0]
    return _making(made.name, begins.args, words)


def _attributes(made: ast.ClassDef) -> list[ast.keyword] | None:
    """Return the attributes that a class gives an object when it is made; None if it does more."""
    found: list[ast.keyword] = []
    if made.bases or made.decorator_list:
        return None
    for statement in made.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            itself = statement.args.args[0].arg
            for one in statement.body:
                if not isinstance(one, ast.Assign) or len(one.targets) > 1:
                    return None
                (target,) = one.targets
                if not isinstance(target, ast.Attribute) or itself in _names(one.value):
                    return None
                found.append(ast.keyword(target.attr, one.value))
        elif not _is_of_module(statement):
            return None
    return found


def _is_of_module(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and {"__module__", "__slots__"}.issuperset(
        map(ast.unparse, statement.targets)
    )


def _making(name: str, given: ast.arguments, words: list[ast.keyword]) -> ast.stmt:
    """Return the function that makes an object with these attributes."""
    value = ast.Call(ast.Name(OBJECT, ast.Load()), [], words)
    return ast.FunctionDef(name, given, [ast.Return(value)], [], lineno=0)


def _is_plain(made: ast.ClassDef) -> bool:
    """Tell whether a class means the same where it does not inherit, but has a copy."""
    return (
        not (made.keywords or made.decorator_list)
        and all(isinstance(one, ast.Assign | ast.FunctionDef) for one in made.body)
        and not {"super", "__class__"} & _names(made)
    )


def _merge(made: ast.ClassDef, base: ast.ClassDef) -> None:
    """Copy what a base class has, and the class itself has not, into it."""
    made.bases = []
    own = {name: one for one in made.body for name in _bound(one)}
    slots = own.get("__slots__")
    set_by_itself = ast.literal_eval(slots.value) if isinstance(slots, ast.Assign) else ()
    for statement in base.body:
        (name,) = _bound(statement)
        if (
            name == "__slots__"
            and isinstance(slots, ast.Assign)
            and isinstance(statement, ast.Assign)
        ):
            slots.value = ast.BinOp(slots.value, ast.Add(), statement.value)
        elif name not in own and name not in set_by_itself:
            made.body.append(statement)


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    assert isinstance(statement, ast.Assign)
    return [node.id for node in statement.targets if isinstance(node, ast.Name)]


def _names(value: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def _nodes(statements: Iterable[ast.stmt]) -> Iterable[ast.AST]:
    return (node for statement in statements for node in ast.walk(statement))


def replace(part: list[ast.stmt], *others: list[ast.stmt]) -> None:
    """Replace the classes of one part by functions that make their objects, where no code can tell.

    Such an object is a module with its methods, bound, as attributes (see `_object` in runtime.py). Only
    what Python itself asks of a class, or code tests a value for, needs one. `others` are the statements of
    the other parts; what they add to a class is found by its name, as are its properties.
    """
    needed = _needed([one for each in (part, *others) for one in each])
    for place in range(len(part) - 1, -1, -1):
        statement = part[place]
        if not isinstance(statement, ast.ClassDef) or statement.name in needed:
            continue
        if not _is_simple(statement):
            continue
        part[place : place + 1] = _functions(statement)
        for other in others:
            other[:] = [one for one in other if _added_to(one) != statement.name]


def _needed(statements: list[ast.stmt]) -> set[str]:
    """Return the names that code uses otherwise than to call them, or to add a method to a class.

    Also those of classes of a later part that values are tested for.
    """
    used = Counter[str]()
    tested: set[str] = set()
    for node in _nodes(statements):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used[node.func.id] -= 1
            if node.func.id == HERE:
                tested.add(ast.literal_eval(node.args[0]))
    used.subtract(filter(None, map(_added_to, statements)))
    return {name for name, times in used.items() if times} | tested


def _is_simple(made: ast.ClassDef) -> bool:
    """Tell whether a class has but methods and constants, and Python itself calls only `__init__`."""
    methods = [one for one in made.body if isinstance(one, ast.FunctionDef)]
    return (
        not made.bases
        and _is_plain(made)
        and [one.name for one in methods if one.name[:2] == "__"] == ["__init__"]
        and all(ast.unparse(one) == "property" for each in methods for one in each.decorator_list)
    )


def _functions(made: ast.ClassDef) -> list[ast.stmt]:
    """Return the methods of a class as functions, and the one that makes its objects."""
    found: list[ast.stmt] = []
    methods, values = ast.Dict([], []), ast.Dict([], [])
    begins: ast.FunctionDef | None = None
    for statement in made.body:
        (name,) = _bound(statement)
        if isinstance(statement, ast.FunctionDef):
            if name == "__init__":
                begins = statement
                continue
            statement.name = f"{made.name}__{name}"
            found.append(statement)
            if statement.decorator_list:
                continue
            value: ast.expr = ast.Name(statement.name, ast.Load())
            into = methods
        elif name in ("__module__", "__slots__", "__getattr__"):
            continue
        else:
            assert isinstance(statement, ast.Assign)
            value = statement.value
            into = methods if isinstance(value, ast.Call) else values
        into.keys.append(ast.Constant(name))
        into.values.append(value)
    assert begins is not None
    itself = begins.args.args.pop(0).arg
    given: list[ast.expr] = [ast.Constant(made.name), methods, values]
    new = ast.Call(ast.Name("_object", ast.Load()), given, [])
    begins.name = made.name
    begins.body = [
        ast.Assign([ast.Name(itself, ast.Store())], new),
        *begins.body,
        ast.Return(ast.Name(itself, ast.Load())),
    ]
    return [*found, begins]


def _added_to(statement: ast.stmt) -> str | None:
    """Return the name of the class that a statement gives a method; None if it gives none."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        of = statement.targets[0].value
        return of.id if isinstance(of, ast.Name) else None
    return None
