"""Parses the location of an archive: a path, `file://…`, or a bucket of S3, Google or Azure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.places import ArchiveTarget, Place

_ENCODED = re.compile(r"\\|%[0-9A-Fa-f]{2}")
_BUCKETS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
_SUPPORTED = (
    "give a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
)
# Parts of the names of options that hold a secret, or the name of one.
_SECRET = re.compile(
    r"secret|token|password|credential|sas|_key|key_|service_account", re.IGNORECASE
)
_NO_SECRETS = (
    "set its variable in the environment, or name a file of options in AGENTBUS_STORAGE_FILE"
)


Location: TypeAlias = str | os.PathLike[str] | Place


def place(path: Location, storage_options: Mapping[str, str] | None = None) -> Place:
    """Return the place of a path or a bucket, without accessing it.

    `storage_options` are options of deltalake for a bucket, such as `AWS_REGION`; those that hold a
    secret come from the environment or the file that `AGENTBUS_STORAGE_FILE` names.
    """
    if isinstance(path, Place):
        return path
    text = os.fspath(path)
    if not text:
        raise UsageError("the path of the archive is empty", hint=_SUPPORTED)
    if "\0" in text:
        raise UsageError(f"{text[:60]!a} is not a path", hint=_SUPPORTED)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _directory(text)
    if scheme == "file":
        host, _, inner = rest.partition("/")
        if host not in ("", "localhost") or not inner:
            raise UsageError(f"{text[:80]!a} names another host", hint=_SUPPORTED)
        return _directory("/" + unquote(inner))
    if scheme not in _BUCKETS:
        raise UsageError(f"an archive cannot lie at {scheme[:40]!a}://", hint=_SUPPORTED)
    if "@" in urlsplit(text).netloc:
        raise UsageError(
            "credentials do not belong into the path of an archive",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise UsageError(f"{text[:80]!a} names no bucket", hint=_SUPPORTED)
    prefix = prefix.strip("/")
    return Place(
        ArchiveTarget(
            _BUCKETS[scheme],
            f"{bucket}/{prefix}" if prefix else bucket,
            tuple(sorted(_without_secrets(storage_options or {}).items())),
        )
    )


def _without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by upper-case name. Raises `UsageError` for one that holds a secret."""
    for name in options:
        if _SECRET.search(name):
            raise UsageError(
                f"the storage option {name[:60]!a} may hold a secret, which plans and titles of"
                " processes would show",
                hint=_NO_SECRETS,
            )
    return {name.upper(): value for name, value in options.items()}


def _directory(path: str) -> Place:
    root = os.path.abspath(path)
    # The library that commits takes a part of these for an encoded character or a separator.
    if _ENCODED.search(root):
        raise UsageError(
            f"an archive cannot lie at {root!a}: a backslash, or % with two digits, is in its path",
            hint="rename the directory",
        )
    return Place(ArchiveTarget("file", root))
