"""What is masked or dropped when entries are archived is in no file, and stays so."""

from __future__ import annotations

import json
import pathlib

import pyarrow.dataset
import pytest

import agentbus
from agentbus.errors import NotFound, Refused, UsageError
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.forgetting import forget
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.properties import more_masked
from agentbus.pipeline.archives.verify import verify
from agentbus.pipeline.archives.versions import CommitConflict
from agentbus.pipeline.replays.replay import replay
from agentbus.pipeline.rows.decoding import batch
from agentbus.pipeline.rows.masking import masking

SALT = b"5a" * 32
SECRET = "ada@example.org"


@pytest.fixture
def bus(settings):
    with agentbus.connect(settings.url, project=settings.project, agent="ada") as opened:
        yield opened


def hidden(payload, mask, drop=(), **fields):
    """Return the payload and the fields of a task as they are archived."""
    flat = [b"payload", payload] if isinstance(payload, bytes) else []
    flat += [word for name, value in fields.items() for word in (name.encode(), value)]
    rows = masking(mask, drop).hidden(batch([("q:mail", [(b"1-1", flat)])]), SALT).to_pylist()
    return rows[0]["payload"], dict(rows[0]["fields"])


def rows_of(path):
    return pyarrow.dataset.dataset(archive_files(path)).to_table().to_pylist()


def contents(path):
    """Return the bytes of all that Parquet files and commits hold, decompressed."""
    found = str(rows_of(path)).encode()
    return found + b"".join(each.read_bytes() for each in pathlib.Path(path).rglob("*.json"))


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"email": SECRET, "n": 1}, "payload.email"),
        ({"to": [{"email": SECRET}, {"n": 2}]}, "payload.to.email"),
        ({"a": {"b": {"c": [SECRET]}}}, "payload.a.b"),
        ([{"email": SECRET}], "payload.email"),
        (SECRET, "payload"),
        ({"n": 1, "all": {"email": SECRET}}, "payload"),
    ],
)
def test_a_masked_value_is_gone_and_equal_values_have_equal_masks(payload, field):
    data = json.dumps(payload).encode()

    first, _ = hidden(data, [field])
    again, _ = hidden(data, [field])

    assert SECRET not in first
    assert "masked:" in first
    assert first == again
    assert json.loads(first) is not None


def test_the_rest_of_a_payload_is_as_it_was(bus):
    data = b'{"email": "x", "big": 123456789012345678901234567890, "e": 1.5, "u": "\xc3\xb6", "z": null}'

    payload = json.loads(hidden(data, ["payload.email", "payload.z"])[0])

    assert payload | {"email": "x"} == json.loads(data)
    assert hidden(data, ["payload.phone"])[0] == data.decode()


@pytest.mark.parametrize("payload", [b"not JSON " + SECRET.encode(), b"[" * 100_000, b'["\\ud800"'])
def test_a_payload_that_nobody_can_look_into_is_masked_whole(payload):
    assert hidden(payload, ["payload.email"])[0].startswith('"masked:')


def test_an_escaped_surrogate_does_not_keep_an_entry_from_the_archive():
    assert "masked:" in hidden(b'{"email": "x", "s": "\\ud800"}', ["payload.email"])[0]


def test_other_programs_spellings_of_a_payload_are_hidden_too():
    flat = [b"payload", b"\xff" + SECRET.encode(), b"payload", SECRET.encode(), b"x", b"1"]
    rows = batch([("q:mail", [(b"1-1", flat)])])

    masked = masking(["payload.email"], ()).hidden(rows, SALT).to_pylist()[0]
    dropped = masking((), ["payload"]).hidden(rows, SALT).to_pylist()[0]

    assert SECRET not in str(masked)
    assert "base64" not in str(masked)
    assert masked["payload"].startswith('"masked:')
    assert dropped["payload"] is None
    assert [name for name, _ in dropped["fields"]] == ["x", "payload:dropped"]


def test_other_fields_are_masked_whole_or_by_their_members():
    meta = json.dumps({"headers": {"who": SECRET}, "key": "k"}).encode()

    _, fields = hidden(
        b"1", ["fields.error", "fields.meta.headers.who"], error=SECRET.encode(), meta=meta
    )

    assert SECRET not in str(fields)
    assert fields["error"].startswith("masked:")
    assert json.loads(fields["meta"])["key"] == "k"


@pytest.mark.parametrize(
    "field", ["agent", "payload.", "fields", "fields.meta", "fields.of", "a,b"]
)
def test_columns_and_what_accounts_need_are_not_masked(field):
    with pytest.raises(UsageError, match="is not a field that can be masked"):
        masking([field], ())


def test_the_salt_is_on_the_server_alone_and_later_runs_mask_as_well(
    run, bus, spark, settings, path, valkey
):
    mail = bus.queue("mail")
    mail.publish({"email": "plain@example.org"})
    run()
    mail.publish({"email": SECRET})
    run(mask=["payload.email"])
    mail.publish({"email": SECRET, "phone": "0123"})
    bus.speak(SECRET)
    # A run that asks for nothing masks what the archive masks.
    run(mask=["fields.error"])

    salt = valkey.ask("GET", f"{settings.project}:salt")
    payloads = [json.loads(row["payload"]) for row in rows_of(path) if row["stream"] == "q:mail"]
    masks = [each["email"] for each in payloads]
    assert len(salt) == 64
    assert salt not in contents(path)
    assert masks.count("plain@example.org") == 1
    assert len({each for each in masks if each.startswith("masked:")}) == 1
    assert {row["payload"] for row in rows_of(path) if row["stream"] == "ch:main"} == {
        json.dumps(SECRET)
    }
    assert ArchiveTable(place(path)).snapshot().masking == masking(
        ["payload.email", "fields.error"], ()
    )
    # Masked rows are not wrong, though one was archived in plain text and the salt is another now.
    bus.queue("mail").publish({"email": "x"})
    valkey.ask("DEL", f"{settings.project}:salt")
    run()
    assert [(each.stream, each.ok) for each in verify(spark, settings, path)] == [
        ("ch:main", True),
        ("q:mail", True),
    ]


def test_verify_of_a_masked_archive_still_finds_what_differs(
    run, bus, spark, settings, path, valkey
):
    mail = bus.queue("mail")
    mail.publish({"email": SECRET, "n": 1})
    run(mask=["payload.email"], drop=())
    (entry,) = valkey.ask("XRANGE", f"{settings.project}:q:mail", "-", "+")
    valkey.ask("XTRIM", f"{settings.project}:q:mail", "MAXLEN", 0)
    valkey.ask("XSETID", f"{settings.project}:q:mail", "0-1")
    other = [
        word.replace(b'"n":1', b'"n":2') if isinstance(word, bytes) else word for word in entry[1]
    ]
    valkey.ask("XADD", f"{settings.project}:q:mail", entry[0], *other)

    (mailed,) = [each for each in verify(spark, settings, path) if each.stream == "q:mail"]

    assert (mailed.missing, mailed.missing_ids) == (1, (entry[0].decode(),))


def test_an_archiver_that_knows_less_does_not_commit(settings, path):
    one, other = ArchiveTable(place(path)), ArchiveTable(place(path))
    state = one.create(settings.project)
    wanted = masking(["payload.email"], ())
    other.set_properties(lambda state: more_masked(state, wanted))

    with pytest.raises(CommitConflict, match="masks other fields since"):
        one.append(state, "0" * 16, [], {})

    assert one.snapshot().round == 0
    assert one.append(one.snapshot(), "1" * 16, [], {}).round == 1


def test_dropped_payloads_are_not_replayed_and_masked_ones_are_told(
    run, bus, ask, settings, path, spark, monkeypatch
):
    mail = bus.queue("mail")
    mail.publish({"email": SECRET})
    run(mask=["payload.email"])
    told = replay(spark, path, settings, queue="copy")
    mail.publish({"n": 2})
    run(drop=["payload"])

    assert (told.published, told.masked) == (1, ("payload.email",))
    assert bus.queue("copy").fetch(count=1)
    with pytest.raises(Refused, match="the payload of 1 entry of q:mail cannot be published"):
        replay(spark, path, settings, streams=["q:mail"], queue="copy")
    first = rows_of(path)[0]["id"]
    done = replay(
        spark, path, settings, streams=["q:mail"], where="payload is not null", queue="copy"
    )
    assert (done.rows, done.published, first != "") == (1, 1, True)
    assert all(each.ok for each in verify(spark, settings, path))
    assert ask("archive", "status", path)[1].splitlines()[1] == (
        "masked: payload.email, payload (dropped)"
    )


def test_verify_can_be_asked_about_an_older_version(run, bus, spark, settings, path, ask):
    mail = bus.queue("mail")
    ids = mail.publish_many({"n": n} for n in range(4))
    (before,) = run()
    mail.publish({"n": 5})
    run()
    forget(path, task=ids[0])

    then = verify(spark, settings, path, version=before.version)
    now = verify(spark, settings, path)

    assert [(each.rows, each.added, each.deleted, each.ok) for each in then] == [(4, 4, 0, True)]
    assert [(each.rows, each.added, each.deleted, each.ok) for each in now] == [(4, 5, 1, True)]
    assert ask("archive", "verify", path, "--as-of", "x")[0] == 2
    assert ask("archive", "status", path, "--as-of", "1")[0] == 2


def test_versions_are_kept_as_long_as_the_archive_says(run, bus, path):
    bus.queue("mail").publish({"n": 1})
    with pytest.raises(UsageError, match="cannot be kept for 3 s"):
        run(retention=3)
    (first,) = run(retention=7 * 86_400)
    bus.queue("mail").publish({"n": 2})
    run()

    table = ArchiveTable(place(path))
    state = table.snapshot()
    assert state.retention == 7 * 86_400
    done = forget(path, where="payload like '%2%'")
    assert done.files_until > done.at[:8]
    table.sweep(6 * 86_400)
    assert len(archive_files(path, version=first.version)) == 1
    with pytest.raises(UsageError, match="is not between 0 and 604800 s"):
        table.sweep(8 * 86_400)
    table.sweep(0)
    with pytest.raises(NotFound, match="is gone"):
        archive_files(path, version=first.version)
