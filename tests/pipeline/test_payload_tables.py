"""Tables of payloads hold exactly what the archive holds, wherever their writer was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from deltalake import DeltaTable

import agentbus
from agentbus.errors import UsageError
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.forgetting import expire, forget
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.payloads import tables
from agentbus.pipeline.payloads.members import columns_of, values
from agentbus.pipeline.payloads.tables import follow
from tests.pipeline.archives import commit_rows, data_files, row, rows_of, write_archive

T = 1_763_640_000_000
DAY = 86_400_000
MAIL = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "n": {"type": "integer"},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
        "more": {"type": "object"},
    },
    "$defs": {"Tag": {"type": "string"}},
}
TASKS = {("mail", "send"): MAIL}
EVENTS = {("orders", "Placed"): {"properties": {"total": {"type": "number"}}}}


def task(at, agent="bob", **payload):
    meta = json.dumps({"task": "send", "key": str(at)})
    return row(
        "q:mail", f"{T + at}-0", agent=agent, payload=json.dumps(payload), fields={"meta": meta}
    )


def rows(path, table="tasks/mail/send"):
    found = DeltaTable(f"{path}-tables/{table}").to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda each: each["_id"])


def numbers(path):
    return [each["n"] for each in rows(path)]


@pytest.fixture
def path(tmp_path):
    start = [
        *(task(n, to="a", n=n) for n in range(3)),
        row("q:mail", f"{T}-9", payload='{"n": 9}'),
        row("ev:orders", f"{T}-0", topic="orders", event="Placed", payload='{"total": 1.5}'),
        row("ev:orders", f"{T}-1", topic="orders", event="Paid", payload='{"total": 2}'),
    ]
    write_archive(tmp_path / "bus", start)
    return str(tmp_path / "bus")


def compacted(path):
    table = ArchiveTable(place(path))
    files = [*table.snapshot().files]
    commit_rows(table, table.snapshot(), rows_of(table.place, files), COMPACT, removed=files)


def test_each_task_and_event_type_has_a_table_that_follows_the_archive(path):
    first = follow(path, tasks=TASKS, events=EVENTS)
    again = follow(path, tasks=TASKS, events=EVENTS)
    write_archive(path, [task(3, n=3)])
    compacted(path)
    write_archive(path, [task(4, n=4), task(5 + DAY, n=5)])
    then = follow(path, tasks=TASKS, events=EVENTS)

    assert [(each.kind, each.rows, each.added) for each in first] == [
        ("queue", 3, 3),
        ("event", 1, 1),
    ]
    assert [(each.rows, each.added) for each in again] == [(3, 0), (1, 0)]
    assert [each.rows for each in then] == [6, 1]
    assert numbers(path) == [0, 1, 2, 3, 4, 5]
    assert [each["total"] for each in rows(path, "events/orders/Placed")] == [1.5]


def test_what_does_not_fit_a_column_stays_in_the_rest():
    types = columns_of(MAIL)
    payload = {"to": 1, "n": 2**70, "at": "2026-11-20T10:00:00+01:00", "tags": ["a", 1], "x": None}

    row = values(json.dumps(payload | {"_id": "no", "date": "no"}), types)

    assert [*types][5:9] == ["to", "n", "at", "tags"]
    assert row["at"].isoformat() == "2026-11-20T10:00:00+01:00"
    assert json.loads(row["_rest"]) == {
        **{name: payload[name] for name in ("to", "n", "tags", "x")},
        "_id": "no",
        "date": "no",
    }
    assert values('{"tags": ["a", "b"], "n": 1}', types) == {
        "tags": ["a", "b"],
        "n": 1,
        "_rest": None,
    }
    assert values("[1]", types) == {"_rest": "[1]"}
    assert values("not JSON", types) == {"_rest": "not JSON"}
    assert values(None, types) == {"_rest": None}


def test_columns_are_added_and_keep_their_types(path):
    follow(path, tasks=TASKS)
    write_archive(path, [task(3, n="three", cc="c")])
    other = {"properties": {"n": {"type": "string"}, "cc": {"type": "string"}}}

    follow(path, tasks={("mail", "send"): other})

    last = rows(path)[-1]
    assert (last["n"], last["cc"], json.loads(last["_rest"])) == (None, "c", {"n": "three"})
    assert numbers(path) == [0, 1, 2, None]


def test_what_the_archive_forgot_or_expired_is_gone_from_the_tables(path):
    write_archive(path, [task(3, agent="ada", to="of-ada-7c1f", n=3), task(4 - DAY, n=4)])
    follow(path, tasks=TASKS)
    forget(path, agent="ada")
    expire(path, before="2025-11-20")

    (done,) = follow(path, tasks=TASKS, now=True)

    assert (numbers(path), done.rows) == ([0, 1, 2], 3)
    assert len(data_files(done.path.removeprefix("file://"))) == 1
    DeltaTable(path).delete("id like '%0-0' AND kind = 'queue'")
    follow(path, tasks=TASKS)
    assert numbers(path) == [1, 2]


def test_a_table_whose_versions_are_gone_from_the_log_is_written_again(path):
    follow(path, tasks=TASKS)
    write_archive(path, [task(3, n=3)])
    forget(path, where=f"id = '{T}-0'")
    write_archive(path, [task(4, n=4)])
    DeltaTable(path).create_checkpoint()
    for version in range(1, 3):
        (place(path).target.filesystem()[0]).delete_file(f"{path}/_delta_log/{version:020d}.json")

    follow(path, tasks=TASKS)

    assert numbers(path) == [1, 2, 3, 4]


_STEPS = (
    *("tables._opened", "tables._since", "tables._copy", "_Follower.write", "ArchiveTable.follow"),
    *("ArchiveTable._require_round", "ArchiveTable._after", "ArchiveTable.settle"),
)
_KILLED = """
import json, os, signal, sys
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.payloads import tables
step, when, path, tasks = sys.argv[1:]
owner, _, name = step.partition(".")
place = {"tables": tables, "_Follower": tables._Follower, "ArchiveTable": ArchiveTable}[owner]
real = getattr(place, name)
def killed(*args, **options):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(place, name, killed)
tables.follow(path, tasks={tuple(key.split("/")): each for key, each in json.loads(tasks).items()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", _STEPS)
def test_a_kill_at_any_step_leaves_every_row_once(path, step, when):
    follow(path, tasks=TASKS)
    write_archive(path, [task(3, n=3), task(4, agent="ada", n=4)])
    forget(path, agent="ada")
    write_archive(path, [task(5, n=5)])
    given = json.dumps({"/".join(key): value for key, value in TASKS.items()})

    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, step, when, path, given], check=False, capture_output=True
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(path) in ([0, 1, 2], [0, 1, 2, 3, 5])
    follow(path, tasks=TASKS)
    assert numbers(path) == [0, 1, 2, 3, 5]


def test_two_writers_of_a_table_add_each_row_once(path, monkeypatch):
    follow(path, tasks=TASKS)
    write_archive(path, [task(3, n=3)])
    real, entered = tables._copy, []

    def slow(*args):
        real(*args)
        if not entered:
            entered.append(1)
            follow(path, tasks=TASKS)

    monkeypatch.setattr(tables, "_copy", slow)
    (second,) = follow(path, tasks=TASKS)

    assert (numbers(path), second.added) == ([0, 1, 2, 3], 0)
    table = ArchiveTable(place(second.path))
    assert set(data_files(second.path.removeprefix("file://"))) == set(table.snapshot().files)


def test_the_verb_takes_the_schemas_of_typed_tasks_and_of_events(
    ask, no_spark, path, tmp_path, monkeypatch
):
    (tmp_path / "shop_tables.py").write_text(
        "import agentbus\n"
        "from agentbus.events.schemas import REGISTERED\n"
        "REGISTERED.register('orders', 'Placed', {'properties': {'total': {'type': 'number'}}})\n"
        "tasks = agentbus.Tasks()\n"
        "@tasks.task(queue='mail')\n"
        "def send(to: str = '', n: int = 0): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    code, out, err = ask(
        "archive",
        "tables",
        path,
        "--tasks",
        "shop_tables:tasks",
        "--events",
        "shop_tables",
        "--json",
    )

    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert [(each["source"], each["name"], each["rows"], each["added"]) for each in said] == [
        ("mail", "send", 3, 3),
        ("orders", "Placed", 1, 1),
    ]
    assert numbers(path) == [0, 1, 2]
    assert ask("archive", "tables", path)[0] == 2
    with pytest.raises(UsageError, match="no tables were asked for"):
        follow(path)
    assert agentbus.Tasks().schemas() == {}
