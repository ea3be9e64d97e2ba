"""The options of a write, read and checked on the driver."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.settings import Settings
from agentbus.pipeline.sink import columns
from agentbus.pipeline.source.options import number, resolved
from agentbus.queues import policy
from agentbus.queues.ids import writable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from agentbus.queues.policy import Policy

TARGETS = ("queue", "topic", "notes")
_KNOWN = {
    "queue": ("payloadFormat", "onFull", "bound", "dedupWindow"),
    "topic": (),
    "notes": (),
}
_ALWAYS = ("url", "project", "agent", "timeout", "txnAppId", "txnVersion")
# Options of Spark itself.
_SPARKS = ("path", "header", "checkpointlocation")
# Seconds without progress at a full queue, or without a server, after which a task fails.
TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Sink:
    """The parameters of a Spark task that writes rows: the server, the target, and the options.

    `settings` may hold a password, which is sent only inside the pickled writer. `run` is unique to
    this writer; `app` and `version`, if given, name a save that may be repeated. `bound` and `window`
    are those of the queue.
    """

    settings: Settings
    run: str
    target: str
    name: str
    columns: tuple[str, ...]
    timeout: float = TIMEOUT
    app: str = ""
    version: int = 0
    is_json: bool = True
    on_full: str = "wait"
    bound: int = 0
    window: float = 0.0


def sink(
    given: Mapping[str, str], schema: StructType, settings: Settings | None, *, overwrite: bool
) -> Sink:
    """Check the options and the columns of a write. Raises `UsageError`, `ConfigError`."""
    values = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS}
    if "path" in {name.lower() for name in given}:
        raise UsageError(
            "save and start take no path here", hint=f"give an option, one of {', '.join(TARGETS)}"
        )
    if overwrite:
        raise UsageError(
            "rows can only be appended: tasks and messages that are there may be in use",
            hint="use the mode 'append', and of a query the output mode 'append'",
        )
    target, name = _target(values)
    settings = settings or resolved(values, agent=values.get("agent"))
    if settings.url is not None and settings.url.startswith("memory:"):
        raise ConfigError(
            "a server in memory is within one process, and Spark writes in others",
            hint="give url another server; see the reference of URLs",
        )
    timeout = float(number(values, "timeout") or TIMEOUT)
    app, version = _transaction(values)
    run, columns_ = secrets.token_hex(8), tuple(schema.names)
    found = Sink(settings, run, target, name, columns_, timeout, app, version)
    if target == "topic":
        columns.check(schema, columns.MESSAGE, ("message",), "a topic")
        return found
    if target == "notes":
        columns.check(schema, columns.NOTE, ("key", "value"), "notes")
        return found
    columns.check(schema, columns.TASK, ("payload",), "a queue")
    rules = policy.read(settings).policy_of(name)
    return dataclasses.replace(
        found,
        is_json=_choice(values, "payloadFormat", ("json", "text")) == "json",
        on_full=_on_full(values, rules),
        bound=number(values, "bound") or rules.bound,
        window=number(values, "dedupWindow") or rules.window,
    )


def _target(values: Mapping[str, str]) -> tuple[str, str]:
    """Return the kind and name of the target; raises for options that it does not support."""
    named = [target for target in TARGETS if target in values]
    if len(named) != 1:
        raise UsageError(
            f"the options name {' and '.join(named) if named else 'no target'}",
            hint=f"give one of {', '.join(TARGETS)}: option('queue', 'mail')",
        )
    target = named[0]
    known = (target, *_ALWAYS, *_KNOWN[target])
    unknown = sorted(set(values) - {name.lower() for name in known})
    if unknown:
        raise UsageError(
            f"a write to {'a ' * (target != 'notes')}{target} has no option {unknown[0][:60]!a}",
            hint=f"it has {', '.join(known)}",
        )
    if target == "notes":
        if values["notes"] != "true":
            raise UsageError(
                f"the option notes is {values['notes'][:40]!a}",
                hint="give 'true': keys are a column",
            )
        return target, ""
    name = names.name(target, values[target])
    if target == "queue":
        writable(name)
    return target, name


def _transaction(values: Mapping[str, str]) -> tuple[str, int]:
    """Return the options that name a save: an application's id, and a number that grows."""
    app, version = values.get("txnappid", ""), values.get("txnversion", "")
    if not app and not version:
        return "", 0
    if not (app and version.isascii() and version.isdigit() and len(version) < 16):
        raise UsageError(
            f"txnAppId is {app[:40]!a}, and txnVersion {version[:40]!a}",
            hint="give both: a name, and a whole number that grows with each save",
        )
    return app, int(version)


def _on_full(values: Mapping[str, str], found: Policy) -> str:
    default = "trim" if found.on_full == "trim" else "wait"
    return _choice(values, "onFull", (default, *{"wait", "refuse", "trim"} - {default}))


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return an option with one of the allowed values, by default the first."""
    text = values.get(name.lower(), allowed[0])
    if text not in allowed:
        raise UsageError(
            f"the option {name} is {text[:40]!a}", hint=f"use one of {', '.join(sorted(allowed))}"
        )
    return text
