"""Warns about resources that other machines cannot reach: a loopback server, a local path."""

from __future__ import annotations

import urllib.parse

from agentbus.pipeline.spark.session import is_local, on_loopback


def warnings(
    master: str | None,
    remote: str | None,
    *,
    url: str | None = None,
    path: str | None = None,
) -> list[str]:
    """Return a sentence for each resource that a cluster's machines probably cannot reach.

    `url` is the Redis server's, None for the embedded server; `path` is that of an archive. A Spark
    on this machine, or a cluster on loopback, causes no warnings.
    """
    if remote is not None:
        # The part after a semicolon may hold a token.
        where = remote.partition(";")[0]
        near = urllib.parse.urlsplit(remote).hostname in _THIS_MACHINE
    else:
        where = master or ""
        near = master is None or is_local(master) or on_loopback(master)
    if near:
        return []
    found = []
    if url is None or _only_here(url):
        server = "the embedded server" if url is None else "a server on this machine alone"
        found.append(
            f"the executors of {where} cannot reach {server}:"
            " give --url with a host name that they know"
        )
    if path is not None and urllib.parse.urlsplit(path).scheme in ("", "file"):
        found.append(
            f"the executors of {where} see {path} only if it lies on storage that all of them share"
        )
    return found


_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def _only_here(url: str) -> bool:
    """Tell whether a URL names a Unix socket or a loopback address."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ("unix", "memory") or parts.hostname in (None, *_THIS_MACHINE)
