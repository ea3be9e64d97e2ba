"""What is linked for each quick verb, and the text of its linked module."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterable, Iterator

from linker.classes import replace, simplify
from linker.divide import divide, stand_in
from linker.fold import DECLARE as _DECLARE, fold
from linker.link import Linker
from linker.rewrite import strip
from linker.sources import PACKAGE, Sources

_CLIENTS = ("claude", "codex", "copilot", "gemini", "cursor", "opencode")
# What a hook that has nothing to say asks of the module of a client.
_OF_CLIENT = ("EVENTS", "context", "edited", "session", "stopped_before")
# The quick verbs, and the modules that each one needs beside those of all.
VERBS: dict[str, tuple[str, ...]] = {
    "speak": ("commands.speak", "coordination.speak"),
    "overhear": ("commands.overhear", "coordination.overhear", "core.timespec", "store.operation"),
    "announce": ("commands.announce", "coordination.announce", "core.timespec"),
    "satisfy": ("commands.satisfy", "coordination.announce"),
    "recall": ("commands.recall", "coordination.recall", "coordination.notes", "core.record"),
    "jot": ("commands.jot", "coordination.notes", "core.record"),
    "await": (
        *("commands.await_", "commands._waiting", "coordination.announce", "coordination.wait"),
        *("coordination.waiters", "core.record", "core.timespec"),
        *("store.operation", "store.sessions"),
    ),
    "hook": (
        *("agents.event", "agents.hook", "agents.stdio", "agents.clients", "agents.clients._given"),
        *(f"agents.clients.{client}" for client in _CLIENTS),
    ),
}
_ALL = (
    *("commands._errors", "commands._main", "commands._declare", "commands._message"),
    "commands._output",
    "commands._parser",
    *("commands._session", "commands._values"),
    *("core.agent_name", "core.client_session", "core.clock", "core.json_text", "core.keys"),
    *("core.names", "core.oplog", "core.repository:_HEX,_SPACE,is_head", "core.settings"),
    *("core.settings_check:make_private", "core.stream", "core.words"),
    *("store.connection", "store.driver", "store.resp", "store.scope", "store.steps"),
)
# What no plain call of a quick verb needs: mistakes, failures, and settings that few have.
_LATE = (
    *("commands._main._as_json", "commands._main._no_settings"),
    *("commands._message.fields", "commands._values.with_old", "commands.overhear._catch_up"),
    *("core.agent_name._of_job", "core.agent_name._user_name", "core.client_session._asked"),
    *("core.names._bad_name", "core.names._bad_payload"),
    *("core.names._shown", "core.oplog._escaped"),
    *("core.timespec._days", "core.timespec._minutes", "core.timespec.parse_rfc3339"),
    *("core.timespec.preceding", "core.timespec.since", "core.timespec.stream_id"),
    *("store.driver.rest", "store.driver.run", "store.operation.MISREAD", "store.resp.source"),
    *("store.operation.misread",),
    *("coordination.announce.over", "coordination.notes.newest", "coordination.notes.notes"),
    *("coordination.overhear.catch_up", "coordination.overhear.skipped"),
)
# What is late, or not, for one verb alone: a hook with other options than those that clients give.
_LATE_IN = {
    "hook": ("commands._main.run", "core.agent_name.default", "store.scope.client_session"),
    "await": ("store.driver.at_once",),
}
_NOT_LATE_IN = {
    "await": (
        *("commands._values.with_old", "core.timespec._days", "core.timespec.parse_rfc3339"),
        "store.driver.run",
    )
}
_RESP = f"{PACKAGE}.store.resp"
_CLIENT = f"{PACKAGE}.agents.clients"
_DIGESTS = "store/lua/digests.txt"
# The functions of `runtime.py` that no plain call runs.
_AT_LAST = frozenset(("_class", "_find"))


def linked(sources: Sources, verb: str, *, whole: bool = False) -> tuple[str, str, str]:
    """Return the texts of the parts of a quick verb's linked module; if `whole`, the first is all."""
    late = {*_LATE, *_LATE_IN.get(verb, ())}.difference(_NOT_LATE_IN.get(verb, ()))
    linker = Linker(
        sources,
        [f"{PACKAGE}.{name}" for name in (*_ALL, *VERBS[verb])],
        late=[(module, name) for module, _, name in map(_parted, late)],
        values={
            # What it would return is in place of the parameters (see fold.py).
            (_DECLARE, "grammar"): "lambda found: found",
            (_DECLARE, "VERBS"): repr((verb,)),
            (_DECLARE, "module"): "_MODULES.__getitem__",
            (_DECLARE, "_prepare"): "_load_second",
            (_CLIENT, "load"): "_MODULES.__getitem__",
            # The intervals of workers: quick verbs use none.
            (f"{PACKAGE}.store.scope", "INTERVALS"): "None",
            (
                _RESP,
                "digest",
            ): f"lambda name: _DIGESTS.get(name) or _late({_RESP!r}, 'digest')(name)",
        },
    )
    main = linker.reach(f"{PACKAGE}.commands._main", "main")
    if verb == "hook":
        modules = [_module(linker, name, f"{_CLIENT}.{name}", _OF_CLIENT) for name in _CLIENTS]
    else:
        modules = [_module(linker, verb, f"{PACKAGE}.{VERBS[verb][0]}", ("VERB", "run"))]
    statements = linker.statements()
    fold(statements, sources, f"{PACKAGE}.{VERBS[verb][0]}")
    simplify(statements, linker.classes)
    digests = _digests(sources, statements)
    rest: list[ast.stmt] = []
    rare: list[ast.stmt] = []
    if not whole:
        used = {
            node.id
            for line in modules
            for node in ast.walk(ast.parse(line))
            if isinstance(node, ast.Name)
        }
        first, second = (_run(verb, name) for name in ("first.txt", "second.txt"))
        statements, rest, rare = divide(statements, first, second, {main, *used})
        replace(statements, rest, rare)
        replace(rest, statements, rare)
    opening, ending = beginning(whole=whole)
    text = "\n".join(
        (
            opening,
            f"_DIGESTS = {digests!r}",
            _text(statements),
            f"_CLASSES.update({linker.classes!r})",
            "builtins.__build_class__ = _class",
            *modules,
            'if __name__ == "__main__":',
            f"    {main}()",
            "",
        )
    )
    return text, f"{_text(rest)}\n", f"{ending}\n{_text(rare)}\n"


def _run(verb: str, name: str) -> frozenset[str]:
    """Return the functions that a verb runs, by a file that `tests/first_part.py` wrote."""
    lines = (line.split() for line in _beside(name).splitlines())
    return frozenset(name for name, *verbs in lines if verbs == ["all"] or verb in verbs)


def _beside(name: str) -> str:
    return pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")


def _text(statements: list[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))


def _parted(name: str) -> tuple[str, str, str]:
    return f"{PACKAGE}.{name}".rpartition(".")


def _module(linker: Linker, name: str, module: str, symbols: Iterable[str]) -> str:
    """Return the statement that makes a module with these symbols; others are imported when asked for."""
    found = ", ".join(f"{symbol}={linker.reach(module, symbol)}" for symbol in symbols)
    return f"_MODULES[{name!r}] = _module({module!r}, {found})"


def _digests(sources: Sources, statements: list[ast.stmt]) -> dict[str, str]:
    """Return the digests of the scripts that the statements name."""
    words = sources.data(_DIGESTS).split()
    texts = {
        node.value
        for statement in statements
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "Script"
        for node in ast.walk(call.args[0])
        if isinstance(node, ast.Constant)
    }
    return {
        name: digest for name, digest in zip(words[::2], words[1::2], strict=True) if name in texts
    }


def beginning(*, whole: bool = False) -> tuple[str, str]:
    """Return the texts of `runtime.py` for the first and for the last part."""
    first: list[ast.stmt] = []
    last: list[ast.stmt] = []
    for statement in _runtime():
        if not whole and isinstance(statement, ast.FunctionDef) and statement.name in _AT_LAST:
            first.append(stand_in(statement.name, statement.name))
            last.append(statement)
        else:
            first.append(statement)
    return _text(first), _text(last)


def _runtime() -> Iterator[ast.stmt]:
    """Yield the statements of `runtime.py`, without docstrings and types (to import them takes time)."""
    for statement in ast.parse(_beside("runtime.py")).body[1:]:
        if isinstance(statement, ast.FunctionDef):
            del statement.body[0]
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef):
                    strip(node)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            statement = ast.Assign([statement.target], statement.value)
        if not isinstance(statement, ast.ImportFrom):
            yield statement
