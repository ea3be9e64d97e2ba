"""Many sessions of coding agents at once, each with its hooks and its MCP server: none fails."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from tests.servers import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux has it")
def test_35_sessions_have_no_failure_and_little_memory(tmp_path: pathlib.Path) -> None:
    found = tmp_path / "figures.json"
    words = [sys.executable, "-m", "scripts.benchmarks.sessions", "--figures", str(found)]

    done = subprocess.run([*words, "--seconds", "30"], cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    _, memory = json.loads(found.read_text())
    mib = {row["label"]: row["spread"]["middle"] for row in memory["rows"]}
    assert mib["all MCP servers, PSS"] <= 500
    assert mib["the embedded server, RSS"] <= 50
