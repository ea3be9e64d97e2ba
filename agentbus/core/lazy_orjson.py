"""`dumps` and `loads` of `orjson`, which a process imports only for many values, or large ones.

The import takes longer than the rest of a verb. Call both as attributes of this module: those of `orjson`
take their places.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agentbus.core.json_text import as_orjson, compact

if TYPE_CHECKING:
    Default = Callable[[object], object]

    class Dumps(Protocol):
        """The type of `orjson.dumps`."""

        def __call__(
            self, value: Any, default: Default | None = None, option: int | None = None, /
        ) -> bytes: ...


# OPT_PASSTHROUGH_SUBCLASS and OPT_PASSTHROUGH_DATACLASS: refuse both, unless there is a default for them.
PLAIN = 1 << 8 | 1 << 11
# So many values a process encodes, and decodes, without `orjson`, if it can: it takes less than the import.
_FEW = 100
_encoded = _decoded = 0


def _encode(value: object, default: Default | None = None, option: int | None = None) -> bytes:
    """Encode one of the first values of a process; raises `TypeError`."""
    global _encoded, dumps  # noqa: PLW0603 (a test in each call would cost all later ones more)
    _encoded += 1
    if _encoded <= _FEW and option in (None, PLAIN) and "orjson" not in modules:
        found = compact(value)
        if found is not None:
            return found
    dumps = orjson.dumps
    return orjson.dumps(value, default, option)


def _decode(data: bytes | str, /) -> Any:
    """Decode one of the first values of a process; raises `ValueError`."""
    global _decoded, loads  # noqa: PLW0603 (as above)
    _decoded += 1
    if _decoded <= _FEW and "orjson" not in modules:
        try:
            return as_orjson(data if isinstance(data, str) else str(data, "utf-8"))
        except ValueError:
            # It is not JSON, and `orjson` says why; or only `orjson` can read it.
            pass
    loads = orjson.loads
    return orjson.loads(data)


dumps: Dumps = _encode
loads: Callable[[bytes | str], Any] = _decode
