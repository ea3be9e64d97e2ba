"""Rows are deleted from an archive by person, task, key, condition and age; archiving goes on exactly."""

from __future__ import annotations

import contextlib
import json
import pathlib

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from agentbus.errors import NotFound, UsageError
from agentbus.pipeline.archives import forgetting
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.forgetting import expire, forget
from agentbus.pipeline.archives.location import place
from tests.pipeline.archives import data_files, row, write_archive

T = 1_763_640_000_000
DAY = 86_400_000
SECRET = "of-ada-7c1f"
ROWS = [
    *(row("q:mail", f"{T + n}-0", agent="bob", payload=f'"{n}"') for n in range(4)),
    *(row("q:mail", f"{T + n}-1", agent="ada", payload=f'"{SECRET}"') for n in range(3)),
    row("ch:main", f"{T}-0", agent="ada", payload=f'"{SECRET}"'),
    row("ch:main", f"{T + DAY}-0", agent="bob", payload='"hi"'),
    row("metrics", f"{T}-0", agent="ada"),
]


@pytest.fixture
def path(tmp_path):
    write_archive(tmp_path / "bus", ROWS, per_commit=5)
    return tmp_path / "bus"


def ids(path: pathlib.Path) -> list[tuple[str, str]]:
    rows = pyarrow.dataset.dataset(archive_files(path)).to_table(["stream", "id"]).to_pylist()
    return sorted((each["stream"], each["id"]) for each in rows)


def of(rows) -> list[tuple[str, str]]:
    return sorted((each["stream"], each["id"]) for each in rows)


def test_rows_of_an_agent_are_gone_at_once_and_with_now_from_every_file(path):
    done = forget(str(path), agent="ada", now=True)

    assert (done.rows, done.at == done.files_until) == (5, True)
    assert ids(path) == of(each for each in ROWS if each["agent"] != "ada")
    state = ArchiveTable(place(path)).snapshot()
    assert set(data_files(path)) == set(state.files)
    assert state.deleted_rows == 5
    for each in data_files(path):
        assert SECRET not in str(pq.read_table(path / each).to_pylist())


def test_older_versions_have_the_rows_until_their_files_are_deleted(path):
    before = ArchiveTable(place(path)).snapshot()

    done = forget(str(path), agent="ada")

    assert done.version > before.version
    assert len(archive_files(path, version=before.version)) == len(before.files)
    forget(str(path), agent="nobody", now=True)
    with pytest.raises(NotFound, match="is gone"):
        archive_files(path, version=before.version)


def test_what_is_archived_afterwards_is_in_it_and_deleted_rows_stay_counted(path):
    forget(str(path), agent="ada")
    later = [row("q:mail", f"{T + 9}-0", agent="ada", payload='"new"')]

    state = write_archive(path, later)

    assert of(later)[0] in ids(path)
    assert state.deleted_rows == 5


def test_a_round_in_between_is_no_conflict(path, monkeypatch):
    real, others = forgetting._without, [[row("q:mail", f"{T + 9}-0", agent="bob")]]

    def raced(*words):
        if others:
            write_archive(path, others.pop())
        return real(*words)

    monkeypatch.setattr(forgetting, "_without", raced)

    assert forget(str(path), agent="ada").rows == 5
    assert ("q:mail", f"{T + 9}-0") in ids(path)


def test_files_that_others_replaced_meanwhile_are_read_again(path, monkeypatch):
    real, others = forgetting._without, ["bob"]

    def raced(*words):
        kept = real(*words)
        if others:
            other = others.pop()
            monkeypatch.setattr(forgetting, "_without", real)
            forget(str(path), agent=other)
            monkeypatch.setattr(forgetting, "_without", raced)
        return kept

    monkeypatch.setattr(forgetting, "_without", raced)

    assert forget(str(path), agent="ada").rows == 5
    assert archive_files(path) == []


def test_a_task_is_forgotten_with_its_dead_letters_and_attempts(tmp_path):
    task, other = f"{T}-0@mail:high", f"{T}-1@mail:high"
    letter = {"queue": "mail", "fields": {"task_id": task, "original_id": f"{T}-0"}}
    rows = [
        row("q:mail:high", f"{T}-0", queue="mail"),
        row("q:mail", f"{T}-0"),
        row("dlq:mail:default", f"{T + 1}-0", **letter),
        row("attempts", f"{T + 2}-0", fields={"task_id": task}),
        row("attempts", f"{T + 2}-1", fields={"task_id": other}),
    ]
    write_archive(tmp_path, rows)

    assert forget(str(tmp_path), task=task).rows == 3
    assert ids(tmp_path) == of([rows[1], rows[4]])


def test_tasks_are_forgotten_by_their_key(tmp_path):
    rows = [
        row("q:mail", f"{T + n}-0", fields={"meta": json.dumps({"key": key, "x": "user-1"})})
        for n, key in enumerate(["user-1", "user-12", "user-2"])
    ]
    write_archive(tmp_path, rows)

    assert forget(str(tmp_path), key="user-1").rows == 1
    assert ids(tmp_path) == of(rows[1:])


def test_rows_are_forgotten_by_a_condition_and_all_conditions_are_met(path):
    assert forget(str(path), where="payload like '%ada%' and stream = 'ch:main'").rows == 1
    assert forget(str(path), agent="bob", where=f"id = '{T + 1}-0'").rows == 1
    assert forget(str(path), agent="ada", where=f"id = '{T + 1}-0'").rows == 0


@pytest.mark.parametrize("where", ["no such thing", "nothing = 1", "true) OR (kind = 'position'"])
def test_no_condition_touches_the_positions(path, where):
    before = ArchiveTable(place(path)).snapshot().positions
    with contextlib.suppress(UsageError):
        forget(str(path), where=where)

    assert ArchiveTable(place(path)).snapshot().positions == before


@pytest.mark.parametrize("where", ["no such thing", "nothing = 1"])
def test_a_condition_that_is_none_is_told(path, where):
    with pytest.raises(UsageError, match="cannot be evaluated"):
        forget(str(path), where=where)


def test_old_days_expire_of_one_kind_or_of_all(path):
    done = expire(str(path), before="2025-11-21", kinds=["metrics"])
    assert (done.rows, done.files) == (1, 1)

    expire(str(path), before="2025-11-21")

    assert ids(path) == [("ch:main", f"{T + DAY}-0")]
    with pytest.raises(UsageError, match="is not a kind"):
        expire(str(path), before="2025-11-21", kinds=["tasks"])


def test_the_verbs_give_a_receipt(ask, no_spark, path):
    code, out, err = ask("archive", "forget", path, "--agent", "ada", "--json")

    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["rows"], sorted(said)) == (5, ["at", "files", "files_until", "rows", "version"])
    assert ask("archive", "forget", path, "--agent", "ada")[1].startswith("nothing to delete")
    assert ask("archive", "expire", path, "--keep", "1d")[1].startswith("5 rows of ")
    assert ask("archive", "forget", path)[0] == 2
    assert ask("archive", "expire", path)[0] == 2
    assert ask("archive", "verify", path, "--now")[0] == 2
