"""`dumps` and `loads` of `orjson`, which a process imports only if it encodes many values, or large ones.

The import takes longer than the rest of a verb. Call both as attributes of this module: those of `orjson`
take their places.
"""

from __future__ import annotations

from sys import modules

from agentbus.core.json_text import compact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Default = Callable[[object], object]

# OPT_PASSTHROUGH_SUBCLASS and OPT_PASSTHROUGH_DATACLASS: refuse both, unless there is a default for them.
PLAIN = 1 << 8 | 1 << 11
# So many values a process encodes without `orjson`, if it can.
_FEW = 8
_encoded = 0


def _sparingly(
    value: object, default: Default | None = None, option: int | None = None, /
) -> bytes:
    """Encode one of the first values of a process; raises `TypeError`."""
    global _encoded, dumps  # noqa: PLW0603 (a test in each call would cost all later ones more)
    _encoded += 1
    if _encoded <= _FEW and "orjson" not in modules:
        found = compact(value)
        if found is not None:
            return found
    import orjson

    dumps = orjson.dumps
    return orjson.dumps(value, default, option)


def _load(data: bytes | str, /) -> Any:
    global loads  # noqa: PLW0603 (as above)
    import orjson

    loads = orjson.loads
    return orjson.loads(data)


dumps: Callable[[object, Default | None, int | None], bytes] = _sparingly
loads: Callable[[bytes | str], Any] = _load
