"""Masks values of entries, or drops payloads, before an archive stores them.

A mask is a keyed hash: equal values have equal masks, and only the holder of the salt can tell
whether a value has a mask.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from agentbus.core.errors import UsageError
from agentbus.pipeline.rows.attempt_rows import OF, PLACE
from agentbus.pipeline.rows.schema import GAP

PAYLOAD = "payload"
# The field of a row that says how many bytes of payload were dropped from it.
DROPPED = f"{PAYLOAD}:dropped"
# The beginning of a payload that is one mask, in JSON.
MASKED_PAYLOAD = '"masked:'
_MASK = re.compile(r"masked:[0-9a-f]{32}")
_FIELD = re.compile(r"(payload|fields\.[^.,\x00-\x1f]+)(\.[^.,\x00-\x1f]+)*")
# A field that is not UTF-8, or that an entry has several times, as decoding names it.
_SUFFIX = re.compile(r"(:\d+)?(:base64)?\Z")
# Fields by which an archive's rows are counted, and replayed.
_NEEDED = (f"fields.{PLACE}", f"fields.{OF}", "fields.meta")

# Returns what stands in place of a value, None to leave it out.
_Hide: TypeAlias = Callable[[Any], str | None]
_Path: TypeAlias = Sequence[str]


@dataclass(frozen=True, slots=True)
class Masking:
    """The fields that an archive masks, and what it drops: nothing, or `payload`.

    A field is `payload`, a member of it such as `payload.customer.email`, or one of the other fields
    of an entry, such as `fields.error` or `fields.meta.headers`.
    """

    mask: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def hides_payloads(self) -> bool:
        """Tell whether a payload may be missing, or be masked as a whole."""
        return bool(self.drop) or any(field.partition(".")[0] == PAYLOAD for field in self.mask)

    def hidden(self, rows: pa.RecordBatch, salt: bytes) -> pa.RecordBatch:
        """Return entries with masks, and without what is dropped."""
        if not (self.mask or self.drop) or not rows.num_rows:
            return rows

        def hide(value: Any) -> str:
            return _mask(salt, value)

        names = (PAYLOAD, "fields")
        columns = [rows.column(name).to_pylist() for name in ("kind", *names)]
        given = zip(*columns, strict=True)
        masked = [self._row(kind, payload, fields, hide) for kind, payload, fields in given]
        for name, values in zip(names, zip(*masked, strict=True), strict=True):
            at = rows.schema.get_field_index(name)
            kind = rows.schema.field(at).type
            rows = rows.set_column(at, name, pa.array([*values], kind))
        return rows

    def blanked(
        self, kind: str, payload: str | None, fields: Mapping[str, str] | None
    ) -> tuple[str | None, dict[str, str]]:
        """Return the payload and fields of a row, masked or not, without all that may be masked."""
        return self._row(kind, payload, (fields or {}).items(), None)

    def _row(
        self,
        kind: str,
        payload: str | None,
        fields: Iterable[tuple[str, str]] | None,
        hide: _Hide | None,
    ) -> tuple[str | None, dict[str, str]]:
        """Return the payload and fields of a row with masks; without a function, left out."""
        named = dict(fields or ())
        if kind == GAP:
            return payload, named
        paths = [field.split(".") for field in self.mask]
        by_name: dict[str, list[_Path]] = {}
        for path in paths:
            if path[0] != PAYLOAD:
                by_name.setdefault(path[1], []).append(path[2:])
        named = _hidden_fields(named, by_name, hide or _left_out)
        members = [path[1:] for path in paths if path[0] == PAYLOAD]
        if not members and not self.drop:
            return payload, named
        blank, drop = hide is None, bool(self.drop)
        return _hidden_payload(payload, named, members, hide or _left_out, drop, blank)


NOTHING = Masking()


def masking(mask: Iterable[str], drop: Iterable[str]) -> Masking:
    """Return a masking. Raises `UsageError` for a field that cannot be masked."""
    mask, drop = set(mask), set(drop)
    for field in mask:
        if not _FIELD.fullmatch(field) or field in _NEEDED:
            raise UsageError(
                f"{field[:80]!a} is not a field that can be masked",
                hint="give payload, payload.MEMBER, fields.NAME or fields.NAME.MEMBER; the columns"
                " by which an archive is read are not masked",
            )
    for part in drop - {PAYLOAD}:
        raise UsageError(f"{part[:40]!a} cannot be dropped", hint=f"what can be is {PAYLOAD}")
    return Masking(tuple(sorted(mask)), tuple(sorted(drop)))


def _left_out(_value: Any) -> None:
    return None


def _mask(salt: bytes, value: Any) -> str:
    text = value if isinstance(value, str) else _dumped(value, sort_keys=True)
    # The value of a task that was replayed from an archive has its mask already.
    if _MASK.fullmatch(text):
        return text
    return "masked:" + hmac.new(salt, text.encode(), hashlib.sha256).hexdigest()[:32]


def _hidden_fields(
    named: dict[str, str], paths: dict[str, list[_Path]], hide: _Hide
) -> dict[str, str]:
    """Return fields with masks; one that is hidden as a whole is text from then on."""
    result = {}
    for name, value in named.items():
        plain = _SUFFIX.sub("", name)
        if plain not in paths:
            result[name] = value
            continue
        whole = name.endswith(":base64")
        text = hide(value) if whole else _hidden_members(value, paths[plain], hide, str)
        if text is not None:
            result[name.removesuffix(":base64")] = text
    return result


def _hidden_payload(
    payload: str | None,
    named: dict[str, str],
    members: Sequence[_Path],
    hide: _Hide,
    drop: bool,
    blank: bool,
) -> tuple[str | None, dict[str, str]]:
    """Return a row's payload and fields; what another program repeated or encoded counts, too."""
    rest: dict[str, str | None] = {}
    size = 0
    for name, value in [(PAYLOAD, payload), *named.items()]:
        if value is None or _SUFFIX.sub("", name) != PAYLOAD or name == DROPPED:
            if name != DROPPED or not blank:
                rest[name] = value
            continue
        size += len(value.encode())
        whole = name.endswith(":base64")
        text = None
        if not drop:
            text = _json(hide(value)) if whole else _hidden_members(value, members, hide, _json)
        if blank and (whole or (text or "").startswith(MASKED_PAYLOAD)):
            text = None
        if text is not None:
            rest[name.removesuffix(":base64")] = text
    if drop and size and not blank:
        rest[DROPPED] = str(size)
    payload = rest.pop(PAYLOAD, None)
    return payload, {name: value for name, value in rest.items() if value is not None}


def _hidden_members(
    text: str, paths: Sequence[_Path], hide: _Hide, shown: Callable[[str | None], str | None]
) -> str | None:
    """Return JSON with members hidden, as it was written without them; other text as a whole."""
    if all(paths):
        try:
            value = json.loads(text)
            if not sum(_hide_member(value, path, hide) for path in paths):
                return text
            result = _dumped(value)
            # An escaped surrogate is JSON, and not text.
            result.encode()
        except (ValueError, RecursionError):
            pass
        else:
            return result
    hidden = hide(text)
    return None if hidden is None else shown(hidden)


def _hide_member(value: Any, path: _Path, hide: _Hide) -> int:
    """Hide the members of a value at a path, in lists that of each element; return their number."""
    if isinstance(value, list):
        return sum(_hide_member(each, path, hide) for each in value)
    if not isinstance(value, dict) or value.get(path[0]) is None:
        return 0
    if len(path) > 1:
        return _hide_member(value[path[0]], path[1:], hide)
    value[path[0]] = hide(value[path[0]])
    if value[path[0]] is None:
        del value[path[0]]
    return 1


def _json(text: str | None) -> str | None:
    return None if text is None else _dumped(text)


def _dumped(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
