"""Parses the location of an archive: a path, `file://…` or `s3a://bucket/prefix`."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.places import ArchiveTarget, Place

_ENCODED = re.compile(r"\\|%[0-9A-Fa-f]{2}")
_SUPPORTED = "give a path, file:///path or s3a://bucket/prefix"


def place(path: str | os.PathLike[str]) -> Place:
    """Return the place of a path, `file://…` or `s3a://bucket/prefix`, without accessing it."""
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
    if scheme in ("s3", "s3a"):
        parts = urlsplit(text)
        if "@" in parts.netloc:
            raise UsageError(
                "credentials do not belong into the path of an archive",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise UsageError(f"{text[:80]!a} names no bucket", hint=_SUPPORTED)
        prefix = prefix.strip("/")
        return Place(ArchiveTarget("s3", f"{bucket}/{prefix}" if prefix else bucket))
    raise UsageError(f"an archive cannot lie at {scheme[:40]!a}://", hint=_SUPPORTED)


def _directory(path: str) -> Place:
    root = os.path.abspath(path)
    # The library that commits takes a part of these for an encoded character or a separator.
    if _ENCODED.search(root):
        raise UsageError(
            f"an archive cannot lie at {root!a}: a backslash, or % with two digits, is in its path",
            hint="rename the directory",
        )
    return Place(ArchiveTarget("file", root))
