"""The documentation as a site of several versions, as `scripts/docs versions` builds it."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from tests.source_tree import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_has_the_newest_patch_of_each_release_beside_the_present_commit(
    tmp_path: pathlib.Path,
):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-local", ROOT, clone], check=True)
    for tag in ("v0.1.0", "v0.1.1"):
        subprocess.run(["git", "tag", tag], cwd=clone, check=True)

    subprocess.run(["scripts/docs", "versions"], cwd=clone, check=True)

    site = clone / "site"
    listed = json.loads((site / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [
        ("0.1", ["latest"]),
        ("dev", []),
    ]
    assert {path.name for path in site.iterdir()} == {
        *("0.1", "dev", "latest", "index.html", "versions.json")
    }
    for version in ("0.1", "dev", "latest"):
        page = (site / version / "reference/cli/index.html").read_text()
        assert '"provider":"mike"' in page
        assert (
            f'href="https://agentbus-toolkit.github.io/agentbus/{"dev" if version == "dev" else "0.1"}/'
            in page
        )
        index = json.loads((site / version / "search.json").read_text())
        assert any("dead letter" in json.dumps(item).lower() for item in index["items"])
