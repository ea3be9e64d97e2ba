"""The schemas of events, by stream and event type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import ConfigError, InvalidPayload

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[dict[str, Any]], None]


class EventSchemas:
    """A registry of schemas by stream and event type, for producers and consumers.

    A stream without schemas accepts every event. A stream with schemas accepts only the registered types.
    """

    def __init__(self) -> None:
        self._checks: dict[str, dict[str, Check]] = {}
        self._schemas: dict[tuple[str, str], Any] = {}

    def register(self, stream: str, event_type: str, schema: Any) -> None:
        """Register a pydantic model, or a JSON Schema as a dict; it replaces an earlier one.

        Raises `ConfigError` for anything else, and for an invalid schema.
        """
        names.name("stream", stream)
        names.name("event type", event_type)
        if isinstance(schema, dict):
            check = _json_schema(event_type, schema)
        elif callable(getattr(schema, "model_validate", None)):
            check = _model(event_type, schema)
        else:
            raise ConfigError(
                f"the schema of {event_type!r} is a {type(schema).__name__}",
                hint="give a pydantic model, or a JSON Schema as a dict",
            )
        self._checks.setdefault(stream, {})[event_type] = check
        self._schemas[stream, event_type] = schema

    def schemas(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return all schemas as JSON Schemas, by stream and event type."""
        return {
            key: dict(schema) if isinstance(schema, dict) else schema.model_json_schema()
            for key, schema in self._schemas.items()
        }

    def knows(self, stream: str, event_type: str) -> bool:
        """Tell whether a stream accepts events of a type."""
        checks = self._checks.get(stream)
        return checks is None or event_type in checks

    def check(self, stream: str, event_type: str, payload: dict[str, Any]) -> None:
        """Raise `InvalidPayload` unless a stream accepts a payload of this type."""
        checks = self._checks.get(stream)
        if checks is None:
            return
        check = checks.get(event_type)
        if check is None:
            raise InvalidPayload(
                f"the stream {stream!r} does not accept events of the type {event_type!r}",
                hint=f"register its schema; known are {', '.join(sorted(checks))}",
            )
        check(payload)


# The registry that `send_event` and consumers use by default.
REGISTERED = EventSchemas()


def _model(event_type: str, model: Any) -> Check:
    def check(payload: dict[str, Any]) -> None:
        try:
            model.model_validate(payload)
        except ValueError as error:
            raise _refused(event_type, _first(error)) from error

    return check


def _first(error: ValueError) -> str:
    """Return pydantic's first error in one line, without the value, which may be secret."""
    complaints = getattr(error, "errors", None)
    if complaints is None:
        return str(error).partition("\n")[0]
    complaint = complaints(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, complaint['loc'])) or 'payload'}: {complaint['msg']}"


def _json_schema(event_type: str, schema: dict[str, Any]) -> Check:
    try:
        import jsonschema  # needs the extra `events`
        import referencing  # needs the extra `events`
    except ImportError as error:
        raise ConfigError(
            "a JSON Schema needs jsonschema, which is not installed: it comes with an extra",
            hint="pip install 'agentbus-toolkit[events]'",
        ) from error
    # The library raises these errors for a `$schema` that is not a URI.
    try:
        kind = jsonschema.validators.validator_for(schema)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the schema of {event_type!r} is not a JSON Schema (its $schema is not a URI)",
            hint="correct it",
        ) from error
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(
            f"the schema of {event_type!r} is not a JSON Schema ({error.message})",
            hint="correct it",
        ) from error
    # Use an empty registry: by default, the library would fetch references from their URLs.
    validator = kind(schema, registry=referencing.Registry())

    def check(payload: dict[str, Any]) -> None:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(payload))
        except referencing.exceptions.Unresolvable as missing:
            raise ConfigError(
                f"a reference in the schema of {event_type!r} cannot be resolved ({missing})",
                hint="put its target under $defs",
            ) from missing
        if error is not None:
            place = ".".join(map(str, error.absolute_path)) or "payload"
            raise _refused(event_type, f"{place}: breaks the rule {error.validator!r}") from error

    return check


def _refused(event_type: str, why: str) -> InvalidPayload:
    return InvalidPayload(
        f"the payload does not fit the schema of {event_type!r} ({why})",
        hint="correct the payload, or change the schema so that old events still fit",
    )
