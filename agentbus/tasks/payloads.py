"""Converts the parameters and the result of a function to and from JSON data, according to their types."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.queues.retry import Bury

if TYPE_CHECKING:
    from collections.abc import Callable

_AT = re.compile(r"(.*?)(?: - at `(?:key in )?\$?(.*)`)?", re.DOTALL)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PayloadMismatch(InvalidPayload, Bury):
    """Data that does not fit the types of a task; in a worker, this error makes the task dead."""


class _Inner(ValueError):
    """An error of pydantic about a part of the data: the path within that part, and the message."""

    def __init__(self, path: str, words: str) -> None:
        super().__init__(f"{path}\0{words}")


class Payload:
    """The payload of a function: its single object-like parameter, or an object by parameter name."""

    def __init__(self, name: str, function: Callable[..., Any], given: int) -> None:
        self._what = f"the payload of the task {name!r}"
        hints = type_hints(function)
        parameters = [*inspect.signature(function).parameters.values()][given:]
        for parameter in parameters:
            if parameter.kind not in _BY_NAME:
                raise UsageError(
                    f"the task {name!r} has the {parameter.kind.description} parameter {parameter.name!r}",
                    hint="give each parameter a name by which it can be passed",
                )
        self._signature = inspect.Signature(parameters)
        self._names = tuple(parameter.name for parameter in parameters)
        self._positional = sum(parameter.kind is _BY_NAME[0] for parameter in parameters)
        types = [hints.get(parameter.name, Any) for parameter in parameters]
        self._alone = len(types) == 1 and is_object(types[0])
        self._type: Any = types[0] if self._alone else _struct(name, parameters, types)

    def encode(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, reproducible: bool = False
    ) -> Any:
        """Return the payload of a call; if `reproducible`, equal sets yield equal lists in every process.

        Raises `PayloadMismatch` if an argument is missing or invalid.
        """
        value: Any
        if not kwargs and len(args) == len(self._names) == self._positional:
            value = args[0] if self._alone else dict(zip(self._names, args, strict=True))
        else:
            value = self._bound(args, kwargs)
        data = _data(self._what, value)
        if reproducible:
            data = _with_sorted_sets(value, data)
        _fitted(self._what, data, self._type)
        return data

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadMismatch(f"{self._what} is incomplete: {error}") from None
        if not self._alone:
            return given
        name = self._names[0]
        return given[name] if given else self._signature.parameters[name].default

    def decode(self, payload: Any) -> dict[str, Any]:
        """Return the arguments by name. Raises `PayloadMismatch`."""
        typed = _fitted(self._what, payload, self._type)
        if self._alone:
            return {self._names[0]: typed}
        unset = msgspec.UNSET
        return {name: value for name in self._names if (value := getattr(typed, name)) is not unset}

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the payload. Raises `UsageError` for a type that has none."""
        try:
            return _schema(self._type)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self._what} has no JSON Schema: {str(error).partition(chr(10))[0][:200]}",
                hint="use types that JSON has",
            ) from error

    def call(self, function: Callable[..., Any], payload: Any) -> Any:
        """Call the function with the arguments. Raises `PayloadMismatch`."""
        if self._alone and self._positional:
            return function(_fitted(self._what, payload, self._type))
        return function(**self.decode(payload))


def _schema(kind: Any) -> dict[str, Any]:
    model = getattr(kind, "model_json_schema", None)
    schema: dict[str, Any] = (
        msgspec.json.schema(kind, schema_hook=_schema) if model is None else model()
    )
    return schema


class TypedResult:
    """The result of a function, according to its declared return type."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._what = f"the result of the task {name!r}"
        self._type: Any = type_hints(function).get("return", Any)

    def encode(self, value: Any) -> Any:
        """Return the data to store for a result."""
        return None if value is None else _data(self._what, value)

    def decode(self, data: Any) -> Any:
        """Return the result. Raises `PayloadMismatch` if the data does not fit the type."""
        return _fitted(self._what, data, self._type)


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function; None stands for type(None). Raises `UsageError`."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(
            f"the types of {name} cannot be read ({type(error).__name__}: {error})",
            hint="import them where the function is defined, not under TYPE_CHECKING",
        ) from error


def is_object(kind: Any) -> bool:
    """Return whether a type's values are JSON objects with fields that the type declares."""
    kind = typing.get_origin(kind) or kind
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or typing.is_typeddict(kind)
        or hasattr(kind, "__attrs_attrs__")
        or hasattr(kind, "model_validate")
    )


def _struct(name: str, parameters: list[inspect.Parameter], types: list[Any]) -> Any:
    # Do not validate default values, which may be of any type.
    absent = partial(msgspec.field, default=msgspec.UNSET)
    fields: list[Any] = [
        (arg.name, kind) if arg.default is arg.empty else (arg.name, kind, absent())
        for arg, kind in zip(parameters, types, strict=True)
    ]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _data(what: str, value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadMismatch(f"{what} cannot be sent as JSON: {error}") from error


def _with_sorted_sets(value: Any, data: Any) -> Any:
    """Return the data of a value with each set sorted, since set order differs between processes."""
    if getattr(value, "__pydantic_root_model__", False):
        value = value.root
    if isinstance(data, dict):
        if isinstance(value, dict) and len(value) == len(data):
            parts = [*value.values()]
        else:
            names = _attributes(type(value))
            parts = [getattr(value, names.get(name, str(name)), None) for name in data]
        pairs = zip(data, parts, data.values(), strict=True)
        return {name: _with_sorted_sets(part, one) for name, part, one in pairs}
    if isinstance(value, msgspec.Struct):
        # With `array_like`, the data is a list that starts with the tag, if there is one.
        tag = value.__struct_config__.tag
        value = (() if tag is None else (tag,)) + msgspec.structs.astuple(value)
    if not isinstance(data, list | tuple) or not isinstance(value, list | tuple | set | frozenset):
        return data
    if len(value) != len(data):
        # A model has converted the value to a different shape.
        return data
    ordered = [_with_sorted_sets(part, one) for part, one in zip(value, data, strict=True)]
    # Sort by JSON text: elements of different types may not be comparable.
    return sorted(ordered, key=as_json) if isinstance(value, set | frozenset) else ordered


def _attributes(kind: Any) -> dict[str, str]:
    """Return the attributes of a type that may be renamed in the data, by their names in the data."""
    if issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    fields = getattr(kind, "__pydantic_fields__", {})
    return {field.serialization_alias: name for name, field in fields.items()}


def as_json(data: Any) -> bytes:
    """Return data as JSON that is the same for equal data."""
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _fitted(what: str, data: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind, dec_hook=_model, str_keys=True)
    except msgspec.ValidationError as error:
        raise PayloadMismatch(f"{what} does not fit: {_words(str(error))}") from None
    except TypeError as error:
        raise UsageError(f"{what} has a type that cannot be checked: {error}") from error


def _words(said: str) -> str:
    """Return an error of msgspec as a path and a description."""
    match = _AT.fullmatch(said)
    text, path = (said, "") if match is None else (match[1], match[2] or "")
    inner, split, rest = text.partition("\0")
    if split:
        return f"${path}{inner}: {rest}"
    text = text[:1].lower() + text[1:]
    plain = text.startswith("expected")
    return f"${path}: {text.replace('`', '' if plain else chr(39))}"


def _plain(value: Any) -> Any:
    """Convert a pydantic model to data."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"objects of the type {type(value).__qualname__} are not data")
    return dump(mode="json")


def _model(kind: Any, data: Any) -> Any:
    """Validate data as a pydantic model, and return it."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"objects of the type {getattr(kind, '__qualname__', kind)} are not data")
    try:
        return validate(data)
    except ValueError as error:
        complaints = getattr(error, "errors", None)
        if complaints is None:
            raise
        first = complaints(include_url=False)[0]
        path = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
        )
        words = first["msg"]
        raise _Inner(path, words[:1].lower() + words[1:]) from None
