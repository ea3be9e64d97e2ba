"""Links what is reached from some definitions of the package's modules into one module."""

from __future__ import annotations

import ast
import builtins
import os
import posix
from collections.abc import Callable, Iterable, Mapping

from linker.rewrite import Rewriter, called
from linker.sources import Alias, LinkError, Module, Sources

# Given to a class that was linked without some of its methods (see runtime.py).
_COMPLETE = "__getattr__ = _complete"

# What runtime.py has.
AT_HAND = frozenset(("_socket", "builtins", "gc", "os", "posix", "stat", "sys"))

Name = tuple[str, str]


class Linker:
    """Collects the definitions that are reached from some of them, and writes them as one module.

    `modules` are those that are linked (`module:name` for one definition), but for what is `late`: what is
    not linked is imported where it is used. `values` are expressions in place of the definitions of names.
    Exceptions are not linked, nor classes that values are only tested for: as long as their modules are
    not imported, they have no values. A class gets the methods whose names are used on any value.
    """

    def __init__(
        self,
        sources: Sources,
        modules: Iterable[str],
        *,
        late: Iterable[Name] = (),
        values: Mapping[Name, str] = {},
    ) -> None:
        self._sources = sources
        named = [one.partition(":") for one in modules]
        self._modules = frozenset(module for module, _, _ in named)
        self._only = {module: names.split(",") for module, _, names in named if names}
        self._late = frozenset(late)
        self._values = values
        # What values are tested for.
        self._tests: list[tuple[ast.Tuple, list[ast.expr | Alias]]] = []
        self._reached: dict[tuple[str, int], list[ast.stmt]] = {}
        self._methods: dict[tuple[str, int], dict[int, list[ast.stmt]]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._imports: set[str] = set()
        # The attributes that are used, and what includes the methods of other names.
        self._used: set[str] = set()
        self._unused: dict[str, list[Callable[[], None]]] = {}
        self.classes: dict[str, str] = {}

    def reach(self, module: str, name: str) -> str:
        """Include a definition and all that it refers to, and return its name in the linked module."""
        found = self._named(Alias(module, name))
        if found is None:
            raise LinkError(f"{module}.{name} is not linked")
        while self._waiting:
            self._waiting.pop()()
        return found

    def statements(self) -> list[ast.stmt]:
        """Return the statements of the linked module."""
        while self._tests:
            self._fill(*self._tests.pop())
        order = {name: place for place, name in enumerate(self._in_order())}
        found: list[ast.stmt] = [
            ast.Import([ast.alias(name)]) for name in sorted(self._imports - AT_HAND)
        ]
        for key in sorted(self._reached, key=lambda key: (order[key[0]], key[1])):
            statements = self._reached[key]
            if key in self._methods:
                made = statements[-1]
                assert isinstance(made, ast.ClassDef)
                for _, method in sorted(self._methods.pop(key).items()):
                    made.body += method
            found += statements
        return [_System().visit(statement) for statement in found]

    # -- names --

    def _is_linked(self, alias: Alias) -> bool:
        name = str(alias.name)
        return (
            alias.module in self._modules
            and name in self._only.get(alias.module, (name,))
            and (alias.module, name) not in self._late
            and not self._is_exception(alias)
        )

    def _named(self, alias: Alias) -> str | None:
        """Return a symbol's name in the linked module, and note that it is needed; None if not linked."""
        home = self._sources.home(alias)
        if not self._is_linked(home):
            return None
        module, name = self._sources.module(home.module), str(home.name)
        place = module.places[name]
        if (module.name, place) not in self._reached:
            self._reached[module.name, place] = []
            self._waiting.append(lambda: self._include(module, place))
        if isinstance(module.statements[place], ast.ClassDef):
            if self.classes.setdefault(name, module.name) != module.name:
                raise LinkError(f"{module.name} and {self.classes[name]} have a class {name}")
            return name
        return f"{'_'.join(module.name.split('.')[1:])}__{name}"

    def _is_exception(self, alias: Alias) -> bool:
        statement = self._sources.definition(alias)
        if not isinstance(statement, ast.ClassDef):
            return False
        for base in statement.bases:
            if isinstance(base, ast.Name):
                known = getattr(builtins, base.id, None)
                if isinstance(known, type):
                    if issubclass(known, BaseException):
                        return True
                    continue
                module = self._sources.module(alias.module)
                of = module.aliases.get(base.id) or Alias(alias.module, base.id)
                if self._is_exception(self._sources.home(of)):
                    return True
        return False

    def _is_class(self, alias: Alias) -> bool:
        home = self._sources.home(alias)
        return isinstance(self._sources.definition(home), ast.ClassDef)

    def _fill(self, types: ast.Tuple, tested: list[ast.expr | Alias]) -> None:
        """Fill in the types that something is tested for, now that it is known which are linked."""
        for one in tested:
            if not isinstance(one, Alias):
                types.elts.append(one)
                continue
            home = self._sources.home(one)
            if self.classes.get(str(home.name)) == home.module:
                types.elts.append(ast.Name(str(home.name), ast.Load()))
            else:
                types.elts.append(ast.Starred(called("_loaded", home), ast.Load()))

    def _use(self, name: str) -> None:
        """Note that an attribute of this name is used, of whatever class."""
        self._used.add(name)
        self._waiting += self._unused.pop(name, ())

    # -- definitions --

    def _rewriter(self, module: Module) -> Rewriter:
        return Rewriter(
            module,
            self._sources,
            is_linked=self._modules.__contains__,
            named=self._named,
            is_class=self._is_class,
            tested=lambda types, tested: self._tests.append((types, tested)),
            imported=self._imports.add,
            used=self._use,
        )

    def _include(self, module: Module, place: int) -> None:
        statement = module.statements[place]
        value = self._value(module, place)
        if value is not None:
            self._reached[module.name, place] = ast.parse(value).body
        elif isinstance(statement, ast.ClassDef):
            self._include_class(module, place, statement)
        else:
            self._reached[module.name, place] = self._rewriter(module).statement(statement)
        # What the module does when it is imported, such as to set a threshold.
        for other, effect in enumerate(module.statements):
            if isinstance(effect, ast.Expr) and (module.name, other) not in self._reached:
                self._reached[module.name, other] = self._rewriter(module).statement(effect)

    def _include_class(self, module: Module, place: int, statement: ast.ClassDef) -> None:
        """Include a class, and those of its methods whose names are used, now or later."""
        methods = self._methods[module.name, place] = {}
        body: list[ast.stmt] = []
        for number, method in enumerate(statement.body):
            if isinstance(method, ast.FunctionDef) and method.name == "__del__":
                # A quick verb's connections are closed when its process ends.
                continue
            if not isinstance(method, ast.FunctionDef) or _is_special(method):
                body.append(method)
                continue

            def include(number: int = number, method: ast.FunctionDef = method) -> None:
                methods[number] = self._rewriter(module).method(method)

            if method.name in self._used:
                self._waiting.append(include)
            else:
                self._unused.setdefault(method.name, []).append(include)
        bare = ast.ClassDef(
            statement.name, statement.bases, statement.keywords, body, statement.decorator_list
        )
        self._reached[module.name, place] = self._rewriter(module).statement(bare)
        own = {one.name for one in body if isinstance(one, ast.FunctionDef)}
        if len(body) < len(statement.body) and "__getattr__" not in own:
            methods[len(statement.body)] = ast.parse(_COMPLETE).body

    def _value(self, module: Module, place: int) -> str | None:
        for (home, name), value in self._values.items():
            if home == module.name and module.places.get(name) == place:
                return f"{self._named(Alias(home, name))} = {value}"
        return None

    def _in_order(self) -> list[str]:
        """Return the linked modules, each after those that it imports."""
        found: list[str] = []

        def visit(name: str) -> None:
            if name in found or name not in self._modules:
                return
            for alias in self._sources.module(name).aliases.values():
                visit(alias.module)
            found.append(name)

        for name in sorted(self._modules):
            visit(name)
        return found


class _System(ast.NodeTransformer):
    """Takes from `posix` what `os` has from there: in a linked module, `os` has the rest."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        # Linked functions use only `get`, too; a built-in function uses more.
        own = isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)
        given = [one for one in node.args if _is_environment(one) and not own]
        node.args = [one if one in given else self.visit(one) for one in node.args]
        node.func = self.visit(node.func)
        node.keywords = [self.visit(one) for one in node.keywords]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if _is_environment(node):
            raise LinkError("of `os.environ`, linked code has only `get`")
        if not (_is_environment(node.value) and node.attr == "get"):
            self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "os":
            own = vars(posix).get(node.attr)
            if own is not None and own is vars(os)[node.attr]:
                node.value.id = "posix"
        return node


def _is_environment(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "environ"
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def _is_special(method: ast.FunctionDef) -> bool:
    """Tell whether a method must be in its class: Python calls it, or it names the class by `super`."""
    names = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
    return method.name.startswith("__") or not names.isdisjoint(("super", "__class__"))
