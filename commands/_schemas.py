"""events check: compares the schemas of a module with the accepted ones."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, NoReturn

from agentbus.commands import _events, _values
from agentbus.commands._declare import Call
from agentbus.commands._format import count
from agentbus.core import written_path
from agentbus.core.errors import ConfigError, NotFound, Unhealthy, UsageError

if TYPE_CHECKING:
    from agentbus.events.schema_diff import SchemaChange

    Schemas = dict[tuple[str, str], Any]


def check(call: Call) -> int:
    """Print breaking changes, or all changes with --accept; return the exit code."""
    module, path = _events.words(call, "MODULE FILE")
    accept: bool = call.args.accept
    if accept:
        written_path.check(path)
    _events.load(module)
    from agentbus.events.schema_diff import differences  # needs the extra `events`

    new = registered()
    if not new:
        call.out.warn(f"the module {module!r} registers no schemas")
    try:
        old = _agreed(path, missing=accept)
        changes = differences(old or {}, new)
    except RecursionError:
        raise UsageError("the schemas are too deep to compare", hint="flatten them") from None
    if accept:
        _write(path, new)
    for each in changes:
        if each.breaks or accept:
            _tell(call, each)
    if accept:
        return 0
    breaking = sum(each.breaks for each in changes)
    if len(changes) > breaking:
        call.out.warn(
            f"{count(len(changes) - breaking, 'addition')} that {path!a} does not hold yet;"
            " --accept writes them"
        )
    return Unhealthy.exit_code if breaking else 0


def _tell(call: Call, change: SchemaChange) -> None:
    fields = _values.fields(change, "stream", "event_type", "path", "reason")
    call.out.record(fields, f"{change.stream} {change.event_type} {change.path}: {change.reason}")


def registered() -> Schemas:
    """Return the registered schemas in JSON types."""
    from agentbus.events.schemas import REGISTERED  # needs the extra `events`

    try:
        return {
            key: json.loads(json.dumps(schema, allow_nan=False))
            for key, schema in REGISTERED.schemas().items()
        }
    except Exception as error:
        # Some types have no JSON Schema, and each library raises its own error.
        raise ConfigError(
            f"a schema cannot be written as JSON Schema ({str(error).partition(chr(10))[0]})",
            hint="use types that JSON has",
        ) from error


def _agreed(path: str, *, missing: bool) -> Schemas | None:
    """Return the schemas in a file; None if the file is missing and `missing` allows that."""
    from agentbus.events import EventSchemas  # needs the extra `events`

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if missing:
            return None
        raise NotFound(f"the file {path!a} is not there", hint="--accept writes it") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"the file {path!a} cannot be read ({why})", hint="correct it") from None
    hint = "give one that --accept wrote, by stream and event type"
    try:
        read = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise UsageError(f"the file {path!a} is not JSON ({error})", hint=hint) from None
    if not (isinstance(read, dict) and all(isinstance(types, dict) for types in read.values())):
        raise UsageError(f"the file {path!a} does not hold schemas", hint=hint)
    known = EventSchemas()
    for stream, types in read.items():
        for event_type, schema in types.items():
            try:
                known.register(stream, event_type, schema)
            except UsageError as error:
                raise UsageError(
                    f"the file {path!a} does not hold schemas ({error.message})", hint=hint
                ) from error
    return known.schemas()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _write(path: str, schemas: Schemas) -> None:
    """Write schemas into a file atomically, in a stable order."""
    nested: dict[str, dict[str, Any]] = {}
    for (stream, event_type), schema in schemas.items():
        nested.setdefault(stream, {})[event_type] = schema
    # Keep a symbolic link, and replace its target.
    real = os.path.realpath(path)
    beside = f"{real}.{os.getpid()}.new"
    try:
        with open(beside, "x", encoding="utf-8") as file:
            file.write(json.dumps(nested, indent=2, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), os.stat(real).st_mode & 0o777)
        os.replace(beside, real)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if not isinstance(error, OSError):
            raise
        raise UsageError(
            f"the file {path!a} cannot be written ({error.strerror})", hint="choose another place"
        ) from None
