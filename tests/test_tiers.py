"""The tiers of tests: what the smoke tier runs is there, and needs neither Spark nor PostgreSQL."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent


def smoke() -> list[str]:
    return (HERE / "smoke.txt").read_text().splitlines()


def test_each_file_of_the_smoke_tier_is_there():
    assert [name for name in smoke() if not (HERE.parent / name).is_file()] == []


def test_the_smoke_tier_needs_neither_spark_nor_postgresql():
    assert [name for name in smoke() if pathlib.Path(name).parent != pathlib.Path("tests")] == []


def test_the_smoke_tier_names_each_file_once_in_order():
    assert smoke() == sorted(set(smoke()))


def test_the_smoke_tier_checks_the_reference_and_the_help():
    assert {"tests/test_docs.py", "tests/test_help.py"} <= set(smoke())


@pytest.mark.parametrize(
    "words",
    [["tests/x.py"], ["nowhere"], ["-x", "tests/x.py::test_it"], ["-k", "ttl", "./tests/x"]],
)
def test_a_file_that_does_not_exist_is_named_before_anything_is_set_up(words):
    script = HERE.parent / "scripts/test"
    path = words[-1].partition("::")[0]

    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scripts/test: no such file: {path}\n"
