"""The package's modules, parsed, without what only readers and type checkers need."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterable

PACKAGE = "agentbus"
_COMMANDS = "agentbus.commands"


class LinkError(Exception):
    """Raised for source that the linker cannot link; says where it is."""


class Alias:
    """What an import binds: a module, or a name in a module."""

    def __init__(self, module: str, name: str | None = None) -> None:
        self.module = module
        self.name = name


class Module:
    """A parsed module: its statements in order, and what binds each of its global names."""

    def __init__(self, name: str, tree: ast.Module, sources: Sources) -> None:
        self.name = name
        self.statements = _folded(tree.body)
        self.aliases: dict[str, Alias] = {}
        # The statement that defines a name, by its place.
        self.places: dict[str, int] = {}
        for place, statement in enumerate(self.statements):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.aliases.update(aliases(statement, sources))
            for defined in _defined(statement):
                self.places.setdefault(defined, place)


class Sources:
    """The source tree of the package; each module is parsed once."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._modules: dict[str, Module] = {}
        self._paths: dict[str, pathlib.Path | None] = {}

    def module(self, name: str) -> Module:
        """Return a module of the package."""
        if name not in self._modules:
            path = self.path(name)
            if path is None:
                raise LinkError(f"there is no module {name}")
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            self._modules[name] = Module(name, tree, self)
        return self._modules[name]

    def path(self, name: str) -> pathlib.Path | None:
        """Return the file of a module; None if the package has none of that name."""
        if name not in self._paths:
            self._paths[name] = self._path(name)
        return self._paths[name]

    def _path(self, name: str) -> pathlib.Path | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        if name == _COMMANDS or name.startswith(f"{_COMMANDS}."):
            # The link `agentbus/commands` is not in every copy of the source.
            place = self._root / name.removeprefix(f"{PACKAGE}.").replace(".", "/")
        else:
            place = self._root / name.replace(".", "/")
        found = (place.with_suffix(".py"), place / "__init__.py")
        return next((path for path in found if path.is_file()), None)

    def home(self, alias: Alias) -> Alias:
        """Return where a symbol of the package is defined, which other modules may import in turn."""
        while alias.name is not None and self.path(alias.module) is not None:
            further = self.module(alias.module).aliases.get(alias.name)
            if further is None:
                break
            alias = further
        return alias

    def definition(self, alias: Alias) -> ast.stmt | None:
        """Return the statement that defines a symbol of the package; None for one from elsewhere."""
        if alias.name is None or self.path(alias.module) is None:
            return None
        module = self.module(alias.module)
        if alias.name not in module.places:
            raise LinkError(f"{alias.module} has no {alias.name}")
        return module.statements[module.places[alias.name]]

    def data(self, name: str) -> str:
        """Return the text of a file in the package."""
        return (self._root / PACKAGE / name).read_text(encoding="utf-8")


def aliases(statement: ast.Import | ast.ImportFrom, sources: Sources) -> dict[str, Alias]:
    """Return what an import binds."""
    if isinstance(statement, ast.Import):
        return {
            one.asname or one.name.partition(".")[0]: Alias(
                one.name if one.asname else one.name.partition(".")[0]
            )
            for one in statement.names
        }
    if statement.level or statement.module is None:
        raise LinkError(f"a relative import in line {statement.lineno}")
    found = {}
    for one in statement.names:
        full = f"{statement.module}.{one.name}"
        is_module = sources.path(full) is not None
        alias = Alias(full) if is_module else Alias(statement.module, one.name)
        found[one.asname or one.name] = alias
    return found


def _folded(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Return statements without docstrings, and without what is for type checkers alone."""
    found: list[ast.stmt] = []
    for statement in body:
        if is_for_types(statement):
            assert isinstance(statement, ast.If)
            found += _folded(statement.orelse)
        elif not is_text(statement) and "TYPE_CHECKING" not in _defined(statement):
            found.append(statement)
    return found


def is_for_types(statement: ast.stmt) -> bool:
    """Tell whether a statement is `if TYPE_CHECKING`."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Name)
        and statement.test.id == "TYPE_CHECKING"
    )


def is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, or another constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines, but for imports."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    return {
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
