"""The text of the Lua scripts, and the digests by which a server identifies them."""

from __future__ import annotations

import os

_HERE = os.path.join(os.path.dirname(__file__), "lua")
_sources: dict[str, bytes] = {}
_digests: dict[str, str] = {}


def digest(name: str) -> str:
    """Return the SHA1 that identifies a script, so that a shell verb need not read its text."""
    if not _digests:
        # Written by scripts/link-scripts, and checked by a test.
        words = _read("digests.txt").decode().split()
        _digests.update(zip(words[::2], words[1::2], strict=True))
    return _digests[name]


def source(name: str) -> bytes:
    """Return the script's text, every `--@include` replaced by that file of `lua/lib/`."""
    text = _sources.get(name)
    if text is None:
        lines = []
        for line in _read(f"{name}.lua").splitlines(keepends=True):
            if line.startswith(b"--@include "):
                lines.append(_read(f"lib/{line.split()[1].decode()}.lua"))
            elif lines or not line.startswith(b"-- "):
                lines.append(line)
        text = _sources[name] = b"".join(lines)
    return text


def _read(path: str) -> bytes:
    # Through the loader, because Spark's executors load this package from a zip.
    return __spec__.loader.get_data(os.path.join(_HERE, path))  # type: ignore[no-any-return,union-attr]
