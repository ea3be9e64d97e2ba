"""The versions of an archive that are kept: listed, and chosen by number, time or age."""

from __future__ import annotations

import json
import re

import pytest
from deltalake import DeltaTable

from agentbus.errors import NotFound
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from tests.pipeline.archives import row, write_archive

T = 1_763_640_000_000


@pytest.fixture
def path(tmp_path):
    """An archive of three rounds, whose versions were committed at the seconds of their numbers."""
    write_archive(tmp_path, [row("q:mail", f"{T + n}-0") for n in range(6)], per_commit=2)
    DeltaTable(tmp_path).delete(f"id = '{T}-0'")
    for each in (tmp_path / "_delta_log").glob("*.json"):
        ms = T + 1000 * int(each.stem)
        each.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{ms}', each.read_text()))
    return tmp_path


def test_the_versions_of_an_archive_are_listed(ask, no_spark, path):
    code, out, err = ask("archive", "history", path, "--json")

    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert [(each["version"], each["action"], each["rows"]) for each in said] == [
        (4, "delete", None),
        (3, "append", 2),
        (2, "append", 2),
        (1, "append", 2),
        (0, "create table", None),
    ]
    assert said[0]["at"] == "2025-11-20T12:00:04.000Z"
    assert "delta-rs" in said[0]["engine"]
    assert ask("archive", "history", path)[1].splitlines()[0].split() == [
        *("VERSION", "TIME", "ACTION", "ROWS", "BY")
    ]


@pytest.mark.parametrize(
    ("as_of", "version"),
    [("2", 2), ("0", 0), ("2025-11-20T12:00:02.500Z", 2), ("2025-11-20T12:00:03Z", 3), ("1s", 4)],
)
def test_a_version_is_named_by_its_number_or_a_time(path, as_of, version):
    assert ArchiveTable(place(path)).version_as_of(as_of) == version


@pytest.mark.parametrize("as_of", ["7", "2025-11-20", "20000d"])
def test_a_version_that_is_not_kept_is_told(path, as_of):
    with pytest.raises(NotFound, match="lists its versions"):
        ArchiveTable(place(path)).version_as_of(as_of)


def test_a_replay_publishes_the_rows_of_an_earlier_version(ask, no_spark, path):
    code, out, err = ask("replay", path, "--as-of", "2", "--dry-run", "--json")

    assert (code, err) == (0, "")
    assert json.loads(out)["rows"] == 4


def test_a_report_on_a_version_without_entries_needs_no_spark(ask, no_spark, path):
    assert ask("report", "tasks", path, "--as-of", "0", "--json") == (0, "", "")
    assert ask("report", "tasks", path, "--as-of", "9")[0] == 5
