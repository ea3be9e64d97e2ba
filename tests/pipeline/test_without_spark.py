"""What can be told without Spark is told without it: nothing new, nothing to report on, what cannot be."""

from __future__ import annotations

import json

import pytest

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.reports import NAMES
from tests.pipeline.archives import write_archive
from tests.pipeline.talk import task

pytestmark = pytest.mark.usefixtures("no_spark")
ENTRY = task("mail", 0)


def test_an_archive_with_nothing_new_says_so(ask, valkey, project, tmp_path):
    write_archive(tmp_path / "bus", [ENTRY], project)
    valkey.ask("XADD", f"{project}:q:mail", ENTRY["id"], "payload", ENTRY["payload"])

    assert ask("archive", tmp_path / "bus") == (0, "nothing new\n", "")
    assert ArchiveTable(place(tmp_path / "bus")).snapshot().rows == 1


def test_a_project_without_streams_makes_an_empty_archive(ask, tmp_path):
    assert ask("archive", tmp_path / "bus") == (0, "nothing new\n", "")

    code, out, err = ask("report", "all", tmp_path / "bus")

    assert (code, err) == (0, "")
    assert out.count("in this time") + out.count("earlier days are known") == len(NAMES)


def test_a_time_without_entries_is_reported_in_every_form(ask, tmp_path):
    write_archive(tmp_path / "bus", [ENTRY], "app")
    words = ("report", "tasks", tmp_path / "bus", "--since", "2100-01-01")

    assert ask(*words, "--json") == (0, "", "")
    assert ask(*words, "--csv", "--table", "causes")[1].startswith("queue,group,cause,")
    assert ask(*words, "--html", tmp_path / "page.html", "--json")[0] == 2
    code, out, _ = ask(*words, "--html", tmp_path / "page.html")
    assert (code, out) == (0, f"{tmp_path}/page.html\n")
    assert "No task was published" in (tmp_path / "page.html").read_text()


def test_what_would_be_compacted_is_told_without_spark(ask, project, tmp_path):
    write_archive(tmp_path / "bus", [ENTRY, task("mail", 1)], project, per_commit=1)

    code, out, err = ask("archive", "compact", tmp_path / "bus", "--dry-run", "--json")

    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["partitions"], said["files_before"], said["files_after"]) == (1, 2, None)
    assert said["dry_run"] is True


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("archive", "/proc/x"), 2, "/proc/x"),
        (("archive", "{bus}/_delta_log/00000000000000000000.json"), 2, "not a directory"),
        (("archive", "{bus}", "--streams", "nonsense"), 2, "nonsense"),
        (("archive", "{bus}", "--project", "another"), 4, "another"),
        (("report", "tasks", "{bus}", "--table", "nonsense"), 2, "outcomes"),
        (("report", "tasks", "{bus}", "--csv"), 2, "--table outcomes"),
        (("report", "tasks", "/proc/1"), 2, "not an archive"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_what_cannot_be_is_refused(ask, project, tmp_path, words, code, told):
    bus = tmp_path / "bus"
    write_archive(bus, [ENTRY], project)

    found, out, err = ask(*(word.format(bus=bus) for word in words))

    assert (found, out) == (code, "")
    assert told in err
