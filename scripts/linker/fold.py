"""Works out what a quick verb declares when it is linked, not each time that it starts."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Container, Iterable, Sequence
from typing import Any

from linker.rewrite import called
from linker.sources import PACKAGE, Alias, LinkError, Sources

DECLARE = f"{PACKAGE}.commands._declare"
# What makes an object of attributes in a linked module (see runtime.py).
OBJECT = "_namespace"
# What only help and completion read of a verb: these import its module.
_DOCUMENTED = frozenset(("examples", "excludes", "goes_with", "summary", "text"))


def fold(statements: Sequence[ast.stmt], sources: Sources, module: str) -> None:
    """Replace declared parameters by what `_declare.grammar` makes of them, and a verb by a plain object.

    A function that passes the verb on imports it from its module.
    """
    folder = _Folder(sources)
    for statement in statements:
        if isinstance(statement, ast.Assign):
            folder.fold(statement)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            _Passed(folder.verbs, module).visit(statement)


class _Folder:
    def __init__(self, sources: Sources) -> None:
        # The declarations' own code, with names of functions in place of the functions.
        self._known: dict[str, Any] = {}
        # The names of verbs.
        self.verbs: set[str] = set()
        for name in ("Param", "Verb", "grammar"):
            definition = sources.definition(Alias(DECLARE, name))
            assert definition is not None
            tree = ast.Module([definition], [])
            flag = __future__.annotations.compiler_flag
            exec(compile(tree, DECLARE, "exec", flags=flag), self._known)

    def fold(self, statement: ast.Assign) -> None:
        """Fold one statement, if it binds a name to parameters or to a verb."""
        if not any(map(_declares, ast.walk(statement.value))):
            return
        (target,) = statement.targets
        found = self._value(statement.value)
        assert isinstance(target, ast.Name)
        self._known[target.id] = found
        if isinstance(found, self._known["Verb"]):
            self.verbs.add(target.id)
            found.params = self._known["grammar"](found.params)
            named = {name: one for name, one in vars(found).items() if name not in _DOCUMENTED}
            words = [ast.keyword(name, _literal(one)) for name, one in named.items()]
            statement.value = ast.Call(ast.Name(OBJECT, ast.Load()), [], words)
        else:
            statement.value = _literal(self._known["grammar"](found))

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression of declarations."""
        if isinstance(node, ast.Call) and _declares(node):
            words = {str(word.arg): self._value(word.value) for word in node.keywords}
            return self._value(node.func)(*self._values(node.args), **words)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self._values(node.elts))
        if isinstance(node, ast.Dict):
            keys = (key for key in node.keys if key is not None)
            return dict(zip(self._values(keys), self._values(node.values), strict=True))
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._known.get(node.id, _Name(node.id))
        raise LinkError(f"a declaration has {ast.unparse(node)}, which the linker cannot work out")

    def _values(self, nodes: Iterable[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self._value(node.value)
            else:
                found.append(self._value(node))
        return found


class _Passed(ast.NodeTransformer):
    """Puts what imports a verb in the place of its name."""

    def __init__(self, verbs: Container[str], module: str) -> None:
        self._verbs = verbs
        self._module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return called("_late", Alias(self._module, "VERB")) if node.id in self._verbs else node


def _declares(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Param", "Verb")
    )


class _Name(str):
    """The name of a function of the linked module, in place of the function."""

    __slots__ = ()


def _literal(value: Any) -> ast.expr:
    """Return the expression of a value."""
    if isinstance(value, _Name):
        return ast.Name(str(value), ast.Load())
    if isinstance(value, tuple):
        return ast.Tuple([_literal(one) for one in value], ast.Load())
    if isinstance(value, list):
        return ast.List([_literal(one) for one in value], ast.Load())
    if isinstance(value, dict):
        return ast.Dict([*map(_literal, value)], [*map(_literal, value.values())])
    return ast.Constant(value)
