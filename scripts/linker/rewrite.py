"""Rewrites one definition of a module so that it can stand in another one, with what it refers to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from linker.formatted import as_calls
from linker.sources import Alias, LinkError, Module, Sources, aliases, is_for_types, is_text

# What a name of a scope is: a local, or what an import binds that is linked.
Scope = dict[str, Alias | None]
# Returns the name that a symbol has in the linked module; None for one that is imported when it is needed.
Named = Callable[[Alias], str | None]
# Reads an attribute of objects: a method of that name may be called.
_BY_NAME = frozenset(("getattr", "hasattr", "setattr"))


class Rewriter(ast.NodeTransformer):
    """Rewrites the definitions of one module.

    `named` is asked for the name of each symbol of the package, and notes that it is needed; `imported`
    notes a module from elsewhere. Annotations and docstrings are left out, and imports of linked modules.
    """

    def __init__(
        self,
        module: Module,
        sources: Sources,
        *,
        is_linked: Callable[[str], bool],
        named: Named,
        is_class: Callable[[Alias], bool],
        tested: Callable[[ast.Tuple, list[ast.expr | Alias]], None],
        imported: Callable[[str], None],
        used: Callable[[str], None],
    ) -> None:
        self._module = module
        self._sources = sources
        self._is_linked = is_linked
        self._named = named
        self._is_class = is_class
        self._tested = tested
        self._imported = imported
        self._used = used
        self._scopes: list[tuple[bool, Scope]] = []
        # How many functions are around the node at hand.
        self._depth = 0

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the rewritten statements for one of the module's own."""
        return self._body([_copied(statement)])

    def method(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the rewritten statements for a method of one of the module's classes."""
        self._scopes.append((True, {}))
        found = self._body([_copied(node)])
        self._scopes.pop()
        return found

    # -- names --

    def _found(self, name: str) -> Alias | None:
        """Return the symbol or the module that a name stands for; None for a local or a builtin name."""
        for depth, (is_class, scope) in enumerate(reversed(self._scopes)):
            # A class's own names are not seen in its methods.
            if name in scope and not (is_class and depth):
                return scope[name]
        if name in self._module.aliases:
            return self._module.aliases[name]
        return Alias(self._module.name, name) if name in self._module.places else None

    def _symbol(self, alias: Alias) -> ast.expr:
        """Return what stands for a symbol: its name, or what imports it there and then."""
        name = self._named(alias)
        if name is not None:
            return ast.Name(name, ast.Load())
        if not self._depth:
            raise LinkError(
                f"{self._module.name} needs {alias.module}.{alias.name}, which is not linked,"
                " as soon as it is loaded"
            )
        return called("_late", alias)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        alias = self._found(node.id)
        if alias is None:
            return node
        if alias.name is None:
            if self._sources.path(alias.module) is not None:
                raise self._wrong(node, f"the module {alias.module} is used as a value")
            self._imported(alias.module)
            return node
        found = self._symbol(alias)
        if isinstance(found, ast.Name):
            found.ctx = node.ctx
        elif not isinstance(node.ctx, ast.Load):
            raise self._wrong(node, f"{node.id} is not linked, and assigned")
        return found

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name):
            alias = self._found(node.value.id)
            within = alias is not None and alias.name is None
            if alias is not None and within and self._sources.path(alias.module) is not None:
                return self._symbol(Alias(alias.module, node.attr))
        self._used(node.attr)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in _BY_NAME and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self._used(str(node.args[1].value))
        if called == "isinstance" and len(node.args) == 2:
            # The second is a type or a tuple of types.
            types = self._types(node.args[1])
            return ast.Call(node.func, [self.visit(node.args[0]), types], [])
        self.generic_visit(node)
        return node

    def _types(self, node: ast.expr) -> ast.expr:
        """Return the types that a value is tested for; the package's classes are filled in at the end."""
        several = node.elts if isinstance(node, ast.Tuple) else [node]
        types: list[ast.expr | Alias] = []
        for one in several:
            alias = self._alias(one)
            is_class = alias is not None and self._is_class(alias)
            types.append(alias if alias is not None and is_class else self.visit(one))
        plain = [one for one in types if not isinstance(one, Alias)]
        found = ast.Tuple(plain, ast.Load())
        if len(plain) < len(types):
            found.elts = []
            self._tested(found, types)
        return plain[0] if len(several) == len(plain) == 1 else found

    def _alias(self, node: ast.expr) -> Alias | None:
        """Return the symbol that an expression stands for."""
        if isinstance(node, ast.Name):
            return self._found(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            alias = self._found(node.value.id)
            if alias is not None and alias.name is None and self._sources.path(alias.module):
                return Alias(alias.module, node.attr)
        return None

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        if node.type is not None:
            node.type = self._types(node.type)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        self.generic_visit(node)
        return as_calls(node)

    def visit_Global(self, node: ast.Global) -> ast.Global:
        raise self._wrong(node, "a global variable is assigned")

    # -- statements --

    def _body(self, body: list[ast.stmt], *, of_record: bool = False) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            if is_text(statement):
                continue
            if is_for_types(statement):
                assert isinstance(statement, ast.If)
                found += self._body(statement.orelse, of_record=of_record)
                continue
            found += self._rewritten(statement, of_record=of_record)
        return found

    def _rewritten(self, statement: ast.stmt, *, of_record: bool) -> list[ast.stmt]:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            kept = [one for one in statement.names if not self._is_linked_import(statement, one)]
            statement.names = kept
            return [statement] if kept else []
        if isinstance(statement, ast.AnnAssign):
            if of_record:
                statement.annotation = ast.Constant("")
            elif statement.value is None:
                return []
            else:
                plain = ast.Assign([statement.target], statement.value)
                statement = ast.copy_location(plain, statement)
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            is_scope = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(inner, list) and not is_scope:
                # `else: pass` says nothing.
                setattr(statement, field, _Done(self._body(inner) or _nothing(field)))
        for handler in getattr(statement, "handlers", ()):
            handler.body = _Done(self._body(handler.body) or [ast.Pass()])
        self.visit(statement)
        return [statement]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, _Done):
                continue
            if isinstance(value, list):
                value[:] = [
                    self.visit(item) if isinstance(item, ast.AST) else item for item in value
                ]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def _is_linked_import(self, statement: ast.Import | ast.ImportFrom, one: ast.alias) -> bool:
        if isinstance(statement, ast.Import):
            return self._is_linked(one.name)
        return self._is_linked(str(statement.module)) or self._is_linked(
            f"{statement.module}.{one.name}"
        )

    # -- scopes --

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        strip(node)
        self._visit_defaults(node.args)
        if not self._scopes:
            node.name = str(self._named(Alias(self._module.name, node.name)))
        self._scopes.append((False, self._locals(node)))
        self._depth += 1
        node.body = self._body(node.body) or [ast.Pass()]
        self._depth -= 1
        self._scopes.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815 (names of ast)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_defaults(node.args)
        self._scopes.append((False, dict.fromkeys(_parameters(node.args))))
        self._depth += 1
        node.body = self.visit(node.body)
        self._depth -= 1
        self._scopes.pop()
        return node

    def _visit_defaults(self, given: ast.arguments) -> None:
        given.defaults = [self.visit(one) for one in given.defaults]
        given.kw_defaults = [one and self.visit(one) for one in given.kw_defaults]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        of_record = any(isinstance(base, ast.Name) and base.id == "Record" for base in node.bases)
        node.bases = [self.visit(base) for base in node.bases]
        node.keywords = [self.visit(word) for word in node.keywords]
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        is_global = not self._scopes
        self._scopes.append((True, dict.fromkeys(_bound(node.body))))
        node.body = self._body(node.body, of_record=of_record)
        self._scopes.pop()
        if is_global:
            # What reports the class, or looks it up, must not see where it was linked.
            node.body.insert(
                0,
                ast.Assign([ast.Name("__module__", ast.Store())], ast.Constant(self._module.name)),
            )
        node.body = node.body or [ast.Pass()]
        return node

    def _visit_comprehension(self, node: ast.AST) -> ast.AST:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        generators[0].iter = self.visit(generators[0].iter)
        targets = {name for one in generators for name in _stored(one.target)}
        self._scopes.append((False, dict.fromkeys(targets)))
        for at, one in enumerate(generators):
            if at:
                one.iter = self.visit(one.iter)
            one.ifs = [self.visit(test) for test in one.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self._scopes.pop()
        return node

    visit_ListComp = visit_SetComp = _visit_comprehension  # noqa: N815 (names of ast)
    visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def _locals(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Scope:
        """Return the names of a function's scope; what it imports of linked modules stands for these."""
        scope: Scope = dict.fromkeys((*_parameters(node.args), *_bound(node.body)))
        for statement in _own(node.body):
            if isinstance(statement, ast.Global):
                for name in statement.names:
                    scope.pop(name, None)
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            bound = aliases(statement, self._sources)
            for one in statement.names:
                name = one.asname or one.name.partition(".")[0]
                if self._is_linked_import(statement, one):
                    if name in _assigned(node.body):
                        raise self._wrong(statement, f"{name} is imported and assigned")
                    scope[name] = bound[name]
        return scope

    def _wrong(self, node: ast.AST, why: str) -> LinkError:
        return LinkError(f"{self._module.name}, line {getattr(node, 'lineno', '?')}: {why}")


def _copied(value: Any) -> Any:
    """Return a copy of a tree; `copy.deepcopy` takes four times as long."""
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if not isinstance(value, ast.AST):
        return value
    made = type(value).__new__(type(value))
    vars(made).update((key, _copied(one)) for key, one in vars(value).items())
    return made


class _Done(list[ast.stmt]):
    """Statements that were rewritten already."""


def strip(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Remove the annotations of a function."""
    function.returns = None
    for one in _arguments(function.args):
        one.annotation = None


def called(function: str, alias: Alias) -> ast.Call:
    """Return a call with a module and a name in it."""
    given: list[ast.expr] = [ast.Constant(alias.module), ast.Constant(alias.name)]
    return ast.Call(ast.Name(function, ast.Load()), given, [])


def _nothing(field: str) -> list[ast.stmt]:
    return [ast.Pass()] if field == "body" else []


def _arguments(given: ast.arguments) -> Iterator[ast.arg]:
    yield from (*given.posonlyargs, *given.args, *given.kwonlyargs)
    yield from (one for one in (given.vararg, given.kwarg) if one is not None)


def _parameters(given: ast.arguments) -> Iterator[str]:
    return (one.arg for one in _arguments(given))


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of the scopes within it (but for what these assign)."""
    waiting: list[ast.AST] = [one for one in body if not is_for_types(one)]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.comprehension):
            # Its targets are its own.
            waiting += [node.iter, *node.ifs]
            continue
        waiting += [one for one in ast.iter_child_nodes(node) if not is_for_types(one)]  # type: ignore[arg-type]


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Return the names that a scope assigns, apart from imports."""
    found: set[str] = set()
    for node in _own(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler
        ):
            found.update(filter(None, (node.name,)))
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            raise LinkError(f"line {node.lineno}: match is not linked")
    return found


def _bound(body: list[ast.stmt]) -> set[str]:
    """Return the names that a scope binds, in any way."""
    imported = {
        one.asname or one.name.partition(".")[0]
        for node in _own(body)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for one in node.names
    }
    return imported | _assigned(body)


def _stored(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
