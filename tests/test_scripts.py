"""The Lua scripts: a server is asked for exactly the text that lies in the package."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from agentbus.store import resp
from tests.source_tree import PACKAGE

NAMES = sorted(path.stem for path in (PACKAGE / "store/lua").glob("*.lua"))


def test_the_digests_are_those_of_the_scripts(checkout):
    done = subprocess.run(
        [sys.executable, str(checkout / "scripts/link-scripts"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_script_has_a_digest_and_no_digest_is_left_over():
    lines = (PACKAGE / "store/lua/digests.txt").read_text().splitlines()

    assert sorted(line.split()[0] for line in lines) == NAMES


def test_a_server_computes_the_same_digests(valkey):
    offenders = [
        name
        for name in NAMES
        if not (
            valkey.ask("SCRIPT", "LOAD", resp.source(name)).decode()
            == resp.digest(name)
            == hashlib.sha1(resp.source(name), usedforsecurity=False).hexdigest()
        )
    ]

    assert offenders == []


def test_a_linked_script_includes_each_library_once_and_nothing_unlinked():
    texts = {name: resp.source(name).decode() for name in NAMES}

    assert [
        name
        for name, text in texts.items()
        if "--@include" in text or not text.startswith("#!lua") or text.count("#!lua") != 1
    ] == []
