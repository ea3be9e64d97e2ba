"""The table of findings: each has its test, which exists, or a reason."""

from __future__ import annotations

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (TESTS / "findings.md").read_text().splitlines()
    if re.match(r"\| [A-Z]+\d+ \|", line)
]
NUMBERED = {"D": 16, "U": 24, "F": 15, "N": 9, "FD": 4, "S": 24}
WISHES = (1, 3, 9, 11, 12, *range(18, 23), 29, 31)


def test_every_finding_has_one_row_with_a_test_or_a_reason():
    names = [row[0].strip("| ") for row in ROWS]

    assert all(len(row) == 3 and row[2].strip("| ") for row in ROWS)
    assert len(set(names)) == len(names)
    expected = {f"{kind}{at}" for kind, count in NUMBERED.items() for at in range(1, count + 1)}
    expected |= {f"W{at}" for at in WISHES}
    assert expected - set(names) == set()


def test_each_test_that_the_findings_name_exists():
    named = {tuple(each) for row in ROWS for each in re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])}

    assert len(named) > 90
    assert [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (TESTS / path).exists() or name not in _functions(TESTS / path)
    ] == []


def _functions(path: pathlib.Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
