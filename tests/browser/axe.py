"""axe-core, an npm package at a fixed version, which looks for what bars people from a page."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import pathlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tests.servers import CACHE

if TYPE_CHECKING:
    from playwright.sync_api import Page

HERE = pathlib.Path(__file__).parent
# What a violation must not have: the two worst of its four impacts.
_WORST = ("serious", "critical")


@functools.cache
def source() -> str:
    """Return the script, which npm fetches the first time."""
    files = [HERE / "package.json", HERE / "package-lock.json"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    folder = CACHE / f"axe-{digest}"
    with (CACHE / "axe.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            npm = shutil.which("npm")
            assert npm, "npm is not on PATH: axe-core is an npm package (tests/README.md)"
            folder.mkdir(exist_ok=True)
            for file in files:
                shutil.copy(file, folder)
            install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / ".ready").touch()
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """Return the serious and critical violations of a page, each with its first element."""
    # As a debugger does: the page's own policy lets no foreign script in.
    page.evaluate(source())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}) on {node['html'][:160]}: {node['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in _WORST
        for node in one["nodes"][:3]
    ]
