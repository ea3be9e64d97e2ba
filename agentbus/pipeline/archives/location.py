"""Parses the location of an archive: a path, `file://…` or `s3a://bucket/prefix`."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from agentbus.core.errors import ConfigError, UsageError
from agentbus.pipeline.archives.directory import Directory
from agentbus.pipeline.archives.places import Place

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
        return Directory(text)
    if scheme == "file":
        host, _, inner = rest.partition("/")
        if host not in ("", "localhost") or not inner:
            raise UsageError(f"{text[:80]!a} names another host", hint=_SUPPORTED)
        return Directory("/" + unquote(inner))
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
        try:
            from agentbus.pipeline.archives.bucket import Bucket  # needs the extra `s3`
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"an archive in the bucket {bucket!a} needs the extra s3",
                hint="pip install 'agentbus-toolkit[pipeline,s3]'",
            ) from error
        return Bucket(bucket, prefix.strip("/"))
    raise UsageError(f"an archive cannot lie at {scheme[:40]!a}://", hint=_SUPPORTED)
