"""What is linked for each quick verb, and the text of its linked module."""

from __future__ import annotations

import ast
import pathlib

from linker.link import Linker
from linker.rewrite import strip
from linker.sources import PACKAGE, Sources

# The quick verbs, and the modules that each one needs beside those of all.
VERBS: dict[str, tuple[str, ...]] = {
    "speak": ("commands.speak", "coordination.speak"),
    "overhear": ("commands.overhear", "coordination.overhear", "core.timespec", "store.operation"),
    "announce": ("commands.announce", "coordination.announce", "core.timespec"),
    "satisfy": ("commands.satisfy", "coordination.announce"),
    "recall": ("commands.recall", "coordination.recall", "coordination.notes", "core.record"),
    "jot": ("commands.jot", "coordination.notes", "core.record"),
}
_ALL = (
    *("commands._main", "commands._declare", "commands._message", "commands._output"),
    *("commands._session", "commands._values"),
    *("core.agent_name", "core.clock", "core.json_text", "core.keys", "core.names", "core.oplog"),
    *("core.settings", "core.settings_check:make_private", "core.stream"),
    *("store.connection", "store.driver", "store.resp", "store.scope", "store.steps"),
)
# What no plain call of a quick verb needs: mistakes, failures, and settings that few have.
_LATE = (
    *("commands._main._as_json", "commands._main._no_settings"),
    *("commands._message.fields", "commands._values.with_old", "commands.overhear._catch_up"),
    *("core.agent_name._of_job", "core.agent_name._user_name"),
    *("core.json_text.to_json", "core.names._bad_name", "core.names._bad_payload"),
    *("core.names._shown", "core.oplog._escaped", "core.settings._between"),
    *("core.timespec._days", "core.timespec._minutes", "core.timespec.parse_rfc3339"),
    *("core.timespec.preceding", "core.timespec.since", "core.timespec.stream_id"),
    *("store.driver.rest", "store.driver.run", "store.operation.MISREAD", "store.resp.source"),
    *("store.operation.misread",),
    *("coordination.announce._held", "coordination.announce._not_held"),
    *("coordination.announce.over", "coordination.notes.newest", "coordination.notes.notes"),
    *("coordination.overhear.catch_up", "coordination.overhear.skipped"),
    "coordination.recall.missing",
)
_DECLARE, _RESP = f"{PACKAGE}.commands._declare", f"{PACKAGE}.store.resp"
_DIGESTS = "store/lua/digests.txt"


def linked(sources: Sources, verb: str) -> str:
    """Return the text of a quick verb's linked module."""
    own = f"{PACKAGE}.{VERBS[verb][0]}"
    late = [f"{PACKAGE}.{name}".rpartition(".") for name in _LATE]
    linker = Linker(
        sources,
        [f"{PACKAGE}.{name}" for name in (*_ALL, *VERBS[verb])],
        late=[(module, name) for module, _, name in late],
        values={
            (_DECLARE, "VERBS"): repr((verb,)),
            (_DECLARE, "module"): "_VERBS.__getitem__",
            (
                _RESP,
                "digest",
            ): f"lambda name: _DIGESTS.get(name) or _late({_RESP!r}, 'digest')(name)",
        },
    )
    main = linker.reach(f"{PACKAGE}.commands._main", "main")
    declared, run = (linker.reach(own, name) for name in ("VERB", "run"))
    statements = linker.statements()
    body = ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))
    module = f"_VERBS[{verb!r}]"
    return "\n".join(
        (
            _runtime(),
            f"_DIGESTS = {_digests(sources, statements)!r}",
            body,
            f"_CLASSES.update({linker.classes!r})",
            "builtins.__build_class__ = _class",
            f"{module} = type(sys)({own!r})",
            f"{module}.VERB = {declared}",
            f"{module}.run = {run}",
            'if __name__ == "__main__":',
            f"    {main}()",
            "",
        )
    )


def _digests(sources: Sources, statements: list[ast.stmt]) -> dict[str, str]:
    """Return the digests of the scripts that the statements name."""
    words = sources.data(_DIGESTS).split()
    texts = {
        node.value
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant)
    }
    return {
        name: digest for name, digest in zip(words[::2], words[1::2], strict=True) if name in texts
    }


def _runtime() -> str:
    """Return `runtime.py` without docstrings and types, which would have to be imported."""
    tree = ast.parse(pathlib.Path(__file__).with_name("runtime.py").read_text(encoding="utf-8"))
    kept: list[ast.stmt] = []
    for statement in tree.body[1:]:
        if isinstance(statement, ast.FunctionDef):
            del statement.body[0]
            strip(statement)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            statement = ast.Assign([statement.target], statement.value)
        if not isinstance(statement, ast.ImportFrom):
            kept.append(statement)
    return ast.unparse(ast.fix_missing_locations(ast.Module(kept, [])))
