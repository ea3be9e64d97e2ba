"""Runs one verb: parses the command line, calls the verb, reports errors, logs, and exits."""

from __future__ import annotations

# The package `signal` wraps this module's constants in enumerations, which takes a fifth of a quick
# verb's time.
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys
import time
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader

# Modules stay in memory: searching them for garbage would take a twentieth of a quick verb's time.
_THRESHOLDS = gc.get_threshold()
gc.set_threshold(20_000, 10, 10)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from agentbus.commands._declare import Verb
    from agentbus.core.settings import Settings

_GLOBAL_FLAGS = ("agent", "project", "url", "log_level", "config", "deadline")


def _find(name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
    """Find a module of this package in the directory of its parent, as Python itself would.

    Python's own search asks several finders and lists each directory, which takes a twentieth of a
    verb's time.
    """
    if name[:9] != "agentbus." or path is None or len(path) != 1:
        return None
    place = f"{path[0]}/{name[name.rindex('.') + 1 :]}"
    file, package = f"{place}.py", False
    if not os.access(file, os.F_OK):
        file, package = f"{place}/__init__.py", True
        if not os.access(file, os.F_OK):
            return None
    spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=package)
    spec.has_location = True
    if package:
        spec.submodule_search_locations = [place]
    return spec


# Archives and pytest have other loaders, which stay in use.
if __spec__ is not None and isinstance(__spec__.loader, SourceFileLoader):
    _find.find_spec = _find  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _find)  # type: ignore[arg-type]


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    sys.unraisablehook = _interrupt_again
    _fill_descriptors()
    if sys.getfilesystemencoding() != "utf-8":
        sys.argv = list(map(_as_utf8, sys.argv))
    if sys.argv[1:2] == ["hook"]:
        # A hook runs at every turn and tool of an agent, so import nothing that only other verbs
        # need.
        from agentbus.agents import hook

        code = hook.main(sys.argv[2:])
        if code is not None:
            os._exit(code)
    try:
        code = run(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 (the last word to the user)
        from agentbus.commands._errors import json_wished, told

        code, _ = told(error, "agentbus", json=json_wished(sys.argv[1:]))
    if code == 2 and sys.argv[1:2] == ["hook"]:
        # A client would take exit code 2 for a refusal, and stop its agent.
        code = 0
    # Skip the interpreter's shutdown, which takes longer than a verb; nothing is left to flush.
    # Only Spark, if it ran, has a directory of temporary files.
    if scratch := sys.modules.get("agentbus.pipeline.spark.scratch"):
        scratch.clear()
    os._exit(code)


def _as_utf8(word: str) -> str:
    """Return an argument that is UTF-8, though the locale has another encoding, as that text."""
    try:
        return os.fsencode(word).decode()
    except UnicodeDecodeError:
        return word


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Interrupt the main thread again if a callback or a finalizer was interrupted.

    Python drops exceptions raised there. `import` has such callbacks, so that a Ctrl-C could be
    lost while a verb waits.
    """
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    # Python drops an exception that is raised here as well: raise it later, by a timer.
    _signal.signal(_signal.SIGALRM, _signal.default_int_handler)
    _signal.setitimer(_signal.ITIMER_REAL, 0.001)


def _fill_descriptors() -> None:
    # If descriptor 1 were closed, the connection to the server would get its number, and the server
    # would execute printed text as commands. The replacement is opened read-only.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if os.environ.get("_AGENTBUS_COMPLETE"):
        from agentbus.commands._click import root
        from agentbus.commands._completion import complete

        return complete(root())
    from agentbus.commands._parser import parse

    parsed = parse(argv)
    if parsed is None:
        from agentbus.commands._click import read
        from agentbus.commands._errors import json_wished

        outcome = read(argv, json=json_wished(argv))
        if isinstance(outcome, int):
            return outcome
        parsed = outcome
    return call(*parsed)


def call(verb: Verb, values: dict[str, Any], module: Any, settings: Settings | None = None) -> int:
    """Call a verb with its parameters' values, and log the outcome.

    With `settings`, as read by another process, `values` has no global flags.
    """
    from agentbus.commands._declare import Args, Call

    began = time.monotonic()
    flags = {"json": None} if settings is not None else _flags(values)
    try:
        if verb.unconfigured:
            values["flags"] = flags
        if settings is None:
            settings = _settings(verb, flags)
        invocation = Call(Args(**values), settings)
        # Also log values that the verb computes, such as its key and its flags.
        values = vars(invocation.args)
        waits = verb.waits is not None and _waits(verb.waits, values)
        if waits or settings.log_level == "debug":
            from agentbus.commands import _waiting

            # Handlers and long runs produce garbage, so restore Python's own thresholds.
            gc.set_threshold(*_THRESHOLDS)

            def log(values: dict[str, Any], since: float | None, code: int, outcome: str) -> None:
                _log(verb, values, invocation.settings, since, code, outcome)

            code = _waiting.run(verb, module, invocation, began, log, waits=waits)
        else:
            code = int(module.run(invocation) or 0)
        invocation.attend()
        outcome = "ok" if code == 0 else f"exit {code}"
    except BaseException as error:  # noqa: BLE001 (told, logged, and turned into a code)
        from agentbus.commands._errors import told

        json = _as_json(flags) if settings is None else settings.json
        code, outcome = told(error, verb.name, json=json, values=values)
    if settings is not None:
        _log(verb, values, settings, began, code, outcome)
    return code


def _flags(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the global flags from the values, and return them."""
    flags = {key: values.pop(key) for key in _GLOBAL_FLAGS}
    shape = values.pop("format")
    flags["json"] = True if values.pop("json") else None if shape is None else shape == "json"
    return flags


def _settings(verb: Verb, flags: dict[str, Any]) -> Settings:
    from agentbus.core.settings import resolve

    return _no_settings(flags) if verb.unconfigured else resolve(flags)


def _waits(how: str, values: dict[str, Any]) -> bool:
    return not how or any(values.get(name) or values.get("action") == name for name in how.split())


def _no_settings(flags: dict[str, Any]) -> Settings:
    """Return settings for a verb that must work with a wrong configuration, without a log."""
    from agentbus.core.settings import Settings as Made

    return Made(
        agent="",
        project="",
        url=None,
        json=_as_json(flags),
        log_level="off",
        deadline=0.0,
        max_body=0,
        sources={},
    )


def _as_json(flags: dict[str, Any]) -> bool:
    """Tell whether to print JSON if the settings cannot be read."""
    from agentbus.commands._errors import json_wished

    return json_wished(()) if flags["json"] is None else bool(flags["json"])


def _log(
    verb: Verb,
    values: dict[str, Any],
    settings: Settings,
    began: float | None,
    code: int,
    outcome: str,
) -> None:
    """Log the end of a verb, or that it began to wait, without a duration and exit code."""
    from agentbus.core.oplog import write

    key = values.get(verb.subject) if verb.subject else None
    fields: dict[str, object] = {
        "verb": verb.name,
        "agent": settings.agent,
        "project": settings.project,
        "key": ",".join(map(str, key)) if isinstance(key, list) else key,
    }
    if began is not None:
        fields["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    fields["outcome"] = outcome
    if began is not None:
        fields["code"] = code
    elif "timeout" in values:
        fields["timeout"] = values["timeout"]
    # The process id relates the lines of a verb that waits.
    if "pid" in values:
        fields["pid"] = values["pid"]
    fields |= values.get("noted", {})
    write("info" if code == 0 else "warning", settings.log_level, fields)
