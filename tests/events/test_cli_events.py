"""The verbs of events, through the shell: send, relay, consume, and what they say of bad input."""

from __future__ import annotations

import functools
import json
import pathlib
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from agentbus.events import Ledger
from tests.events.shop import STREAM, entries, expire, payload, rows
from tests.servers import Shell
from tests.tiers import nightly
from tests.torture.events.postgres import Postgres

PASSWORD = "correct-horse"
on_postgresql = pytest.mark.parametrize(
    "database", ["postgresql", nightly("sqlite")], indirect=True
)
MODULE = """
import sqlalchemy as sa
from agentbus.events import consumer


@consumer("shop:orders", name="welcome")
def welcome(event, session):
    if event.payload.get("poison"):
        raise ValueError("poison")
    session.execute(sa.text("INSERT INTO effects (uuid) VALUES (:uuid)"), {"uuid": event.event_uuid})


@consumer("shop:orders", name="audit", on_error="park", attempts=1)
def audit(event, session):
    if event.payload.get("poison"):
        raise ValueError("poison")
    session.execute(
        sa.text("INSERT INTO effects (uuid, note) VALUES (:uuid, 'audit')"), {"uuid": event.event_uuid}
    )
"""


@pytest.fixture(params=["sqlite", nightly("postgresql")])
def database(request: pytest.FixtureRequest) -> str:
    """The verbs on SQLite; each looks at the tables as it starts, which takes PostgreSQL far longer."""
    kind = "sqlite_database" if request.param == "sqlite" else "postgres_database"
    found: str = request.getfixturevalue(kind)
    return found


@pytest.fixture
def shell(real_shell: Shell, database: str) -> Shell:
    """A shell whose database is the test's own, with a module of consumers in its home."""
    real_shell.environment["AGENTBUS_DATABASE"] = database
    (real_shell.home / "shopping.py").write_text(MODULE)
    return real_shell


@pytest.fixture
def components(shop: Shell) -> Shell:
    """A shell with a package whose components declare consumers, and one that breaks if it is imported."""
    for component in ("orders", "mail"):
        folder = shop.home / "components" / component / "internal"
        folder.mkdir(parents=True)
        text = MODULE.replace('name="', f'name="{component}.')
        (folder / "events_pipeline_consumers.py").write_text(text)
        (folder / "migrations.py").write_text("raise ValueError('not to be imported')")
    (shop.home / "components" / "mail" / "__init__.py").write_text("")
    return shop


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_consumers_are_found_in_the_components_of_a_package(components):
    found = components.records("consume", "components", "--once")

    assert [one["consumer"] for one in found] == [
        *("mail.welcome", "mail.audit", "orders.welcome", "orders.audit")
    ]


@pytest.fixture
def shop(shell: Shell, ledger: Ledger) -> Shell:
    """A shell whose database has the tables already."""
    return shell


@pytest.fixture
def started_with() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a verb in a shell, which ends with the test at the latest."""
    running: list[subprocess.Popen[str]] = []

    def _start(shell: Shell, *words: str, **options: Any) -> subprocess.Popen[str]:
        running.append(shell.start(*words, **options))
        return running[-1]

    yield _start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def started(shop: Shell, started_with: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts a verb in the shop, which ends with the test at the latest."""
    return functools.partial(started_with, shop)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, to be stopped."""
    with Postgres() as server:
        yield server


def send(shell: Shell, *given: str) -> str:
    """Send an event, and return its UUID."""
    return shell.ok("events", "send", STREAM, "Placed", *(given or ('{"order": 7}',))).strip()


def acted(ledger: Ledger) -> list[tuple[str, str | None]]:
    """Return what the consumers wrote."""
    with ledger.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT uuid, note FROM effects ORDER BY uuid, note")
        return sorted((row.uuid, row.note or "") for row in found)


# -- end to end ---------------------------------------------------------------------------------


@on_postgresql
def test_an_event_goes_from_the_shell_through_the_relay_to_every_consumer(shop, ledger):
    sent = sorted(send(shop) for _ in range(3))

    assert shop.records("outbox", "relay", "--once") == [{"published": 3, "waiting": 0}]
    found = shop.records("consume", "shopping", "--once")

    assert [(one["consumer"], one["handled"]) for one in found] == [("welcome", 3), ("audit", 3)]
    assert acted(ledger) == sorted((one, note) for one in sent for note in ("", "audit"))
    again = shop.records("consume", "shopping", "--once")
    assert [one["handled"] for one in again] == [0, 0]
    assert len(acted(ledger)) == 6


def test_a_relay_and_consumers_run_until_they_are_told_to_stop(shop, started, ledger):
    relay = started("outbox", "relay", "--json")
    consumers = started("consume", "shopping", "--json")
    assert relay.stdout is not None
    assert consumers.stdout is not None

    sent = send(shop)
    assert json.loads(relay.stdout.readline()) == {"published": 1}
    told = [json.loads(consumers.stdout.readline()) for _ in range(2)]

    assert {(one["consumer"], one["handled"]) for one in told} == {("welcome", 1), ("audit", 1)}
    assert acted(ledger) == [(sent, ""), (sent, "audit")]
    relay.send_signal(signal.SIGTERM)
    consumers.send_signal(signal.SIGINT)
    for process in (relay, consumers):
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert [line for line in said.splitlines() if " INFO agentbus: " not in line] == []
    # The leases were given back.
    assert all(row.owner == "" for row in rows(ledger, "lease"))


def test_one_consumer_can_be_chosen(shop, ledger):
    sent = send(shop)
    shop.ok("outbox", "relay", "--once")

    assert shop.ok("consume", "shopping", "--name", "audit", "--once") == "audit: 1 handled\n"

    assert acted(ledger) == [(sent, "audit")]
    refused = shop.run("consume", "shopping", "--name", "nobody", "--once")
    assert refused.returncode == 2
    assert "audit, welcome" in refused.stderr


def test_an_event_that_fails_blocks_one_consumer_and_is_parked_by_the_other(shop, ledger):
    send(shop, '{"poison": true}')
    shop.ok("outbox", "relay", "--once")

    done = shop.run("consume", "shopping", "--once", "--json")

    assert done.returncode == 1
    assert "welcome: ValueError: poison" in done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["failed"], first["parked"]) == (1, 0)
    assert (second["failed"], second["parked"]) == (1, 1)
    (stream,) = shop.records("outbox", "status")
    roles = {lease["role"]: lease for lease in stream["leases"]}
    assert (roles["welcome"]["lag"], roles["welcome"]["parked"]) == (1, 0)
    assert (roles["audit"]["lag"], roles["audit"]["parked"]) == (0, 1)


def test_a_relay_that_is_killed_leaves_its_work_to_the_next(shop, ledger, valkey, project):
    sent = [send(shop), send(shop)]

    killed = shop.run("outbox", "relay", "--once", env={"AGENTBUS_TEST_KILL": "relay.added"})

    assert killed.returncode == -signal.SIGKILL
    # Its lease holds yet, and the next says so.
    waits = shop.run("outbox", "relay", "--once")
    assert waits.stdout == "0 events published, 2 wait\n"
    assert "another relay has the stream" in waits.stderr
    expire(ledger)
    shop.ok("outbox", "relay", "--once")
    assert {entry["event_uuid"] for entry in entries(valkey, project)} == set(sent)
    (told,) = shop.records("consume", "shopping", "--once", "--name", "welcome")
    assert told["handled"] == 2
    assert acted(ledger) == sorted((one, "") for one in sent)


def test_a_second_signal_ends_a_consumer_at_once_and_nothing_is_committed(shop, started, ledger):
    (shop.home / "endless.py").write_text(
        "import threading\n"
        "import sqlalchemy as sa\n"
        "from agentbus.events import consumer\n"
        "@consumer('shop:orders', name='endless')\n"
        "def endless(event, session):\n"
        "    session.execute(sa.text(\"INSERT INTO effects (uuid) VALUES ('no')\"))\n"
        "    print('begun', flush=True)\n"
        "    threading.Event().wait()\n"
    )
    send(shop)
    shop.ok("outbox", "relay", "--once")
    process = started("consume", "endless")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=60)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert "what was not committed has not happened" in said
    assert acted(ledger) == []
    assert rows(ledger, "processed") == []


def test_a_relay_waits_for_a_server_that_is_away_and_tells_so_once(shop, started):
    send(shop)
    relay = started("outbox", "relay", env={"AGENTBUS_URL": "redis://:pw-1234@127.0.0.1:1"})
    assert relay.stderr is not None
    assert "relay started: " in relay.stderr.readline()

    said = relay.stderr.readline()

    assert "127.0.0.1" in said
    assert "pw-1234" not in said
    relay.terminate()
    relay.communicate(timeout=60)
    assert relay.returncode == 0
    (stream,) = shop.records("outbox", "status")
    assert stream["waiting"] == 1


@pytest.mark.parametrize("verb", [("outbox", "relay"), ("consume", "shopping")])
def test_a_database_that_is_away_at_the_start_is_waited_for(real_shell, started_with, verb):
    (real_shell.home / "shopping.py").write_text(MODULE)
    away = "postgresql://ada:pw-1234@127.0.0.1:1/shop"
    process = started_with(real_shell, *verb, "--database", away)

    said = process.stderr.readline()

    assert "127.0.0.1:1" in said
    assert "pw-1234" not in said
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_process_that_waited_for_its_database_goes_on(real_shell, started_with, own_postgres):
    url = own_postgres.url
    real_shell.ok("outbox", "init", "--database", url)
    real_shell.ok("events", "send", STREAM, "Placed", "{}", "--database", url)
    own_postgres.stop()
    relay = started_with(real_shell, "outbox", "relay", "--database", url)
    assert "did not serve" in relay.stderr.readline()

    own_postgres.start()

    assert relay.stdout.readline() == "1 event published\n"


@pytest.mark.parametrize("verb", [("outbox", "relay"), ("consume", "shopping")])
def test_once_ends_where_the_database_is_away(real_shell, verb):
    (real_shell.home / "shopping.py").write_text(MODULE)

    done = real_shell.run(*verb, "--once", "--database", "postgresql://ada@127.0.0.1:1/shop")

    assert done.returncode == 1
    assert "did not serve" in done.stderr


def test_a_lease_can_be_made_shorter_and_not_too_short(shop, started, ledger):
    send(shop)
    relay = started("outbox", "relay", "--lease", "1000")
    relay.stdout.readline()
    consumers = started("consume", "shopping", "--lease", "1000")
    consumers.stdout.readline()
    consumers.stdout.readline()

    now = ledger.now()
    left = [row.expires_at_ms - now for row in rows(ledger, "lease")]
    assert len(left) == 3
    assert all(900_000 < each <= 1_000_000 for each in left)
    assert shop.run("outbox", "relay", "--lease", "0.1").returncode == 2


# -- the outbox ---------------------------------------------------------------------------------


@on_postgresql
def test_init_says_what_it_made_and_what_was_there(shell):
    (made,) = shell.records("outbox", "init")
    (again,) = shell.records("outbox", "init")

    assert "agentbus_outbox" in made["created"]
    assert len(made["created"]) == 5
    assert again == {"database": made["database"], "created": []}
    assert shell.ok("outbox", "init").endswith(": all tables were there\n")
    (other,) = shell.records("outbox", "init", "--prefix", "other_")
    assert "other_outbox" in other["created"]
    assert shell.records("outbox", "status", "--prefix", "other_") == []


@pytest.mark.slow
def test_the_status_tells_what_waits_and_who_is_how_far(shop):
    for _ in range(2):
        send(shop)
    (before,) = shop.records("outbox", "status")
    shop.ok("consume", "shopping", "--once")
    shop.ok("outbox", "relay", "--once")
    send(shop)

    (after,) = shop.records("outbox", "status")

    assert (before["stream"], before["waiting"], before["published"]) == (STREAM, 2, 0)
    assert before["oldest"] >= 0
    assert before["leases"] == []
    assert (after["waiting"], after["published"]) == (1, 2)
    lags = {lease["role"]: lease["lag"] for lease in after["leases"]}
    assert lags == {"relay": 1, "welcome": 3, "audit": 3}
    assert all(lease["expires"] is None for lease in after["leases"])
    streams, leases = shop.ok("outbox", "status").split("\n\n")
    assert streams.split()[:4] == ["STREAM", "WAITING", "PUBLISHED", "OLDEST"]
    assert leases.splitlines()[1].split()[:2] == [STREAM, "audit"]


def test_without_a_database_a_file_of_the_project_is_used(real_shell, project):
    refused = real_shell.run("events", "send", STREAM, "Placed", "{}")
    assert refused.returncode == 2
    assert "agentbus outbox init" in refused.stderr

    (made,) = real_shell.records("outbox", "init")

    place = pathlib.Path(made["database"])
    assert place.is_relative_to(real_shell.home / ".local/state/agentbus/events")
    assert project in place.name
    assert place.parent.stat().st_mode & 0o077 == 0
    send(real_shell)


def test_tables_that_are_missing_are_told(shell):
    Ledger(sa.create_engine(shell.environment["AGENTBUS_DATABASE"], poolclass=sa.NullPool)).now()

    for verb in (["outbox", "relay", "--once"], ["outbox", "status"], ["consume", "shopping"]):
        refused = shell.run(*verb)
        assert refused.returncode == 2
        assert "run 'agentbus outbox init'" in refused.stderr


# -- what is sent -------------------------------------------------------------------------------


def test_a_payload_comes_from_stdin_with_metadata_beside_it(shop, ledger, valkey, project):
    found = shop.ok(
        *("events", "send", STREAM, "Placed", "-", "--metadata", '{"by": "ada"}'),
        stdin='{"name": "Zo\\u00eb"}',
    )

    assert uuid.UUID(found.strip())
    shop.ok("outbox", "relay", "--once")
    (entry,) = entries(valkey, project)
    assert payload(entry) == {"name": "Zoë"}
    assert json.loads(entry["metadata"])["by"] == "ada"


@pytest.mark.parametrize(
    "given",
    [
        *("", "{", "[1]", "7", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": "\\u0000"}'),
        *('{"a": 123456789012345678901234567890}', '{"a": ' * 2000 + "1" + "}" * 2000),
        '{"a": "' + "x" * 300_000 + '"}',
    ],
    ids=lambda given: given[:12],
)
def test_what_is_no_event_is_refused_and_nothing_sent(real_shell, sqlite_database, given):
    real_shell.environment["AGENTBUS_DATABASE"] = sqlite_database
    real_shell.ok("outbox", "init")

    for words, stdin in ((["-"], given), (["{}", "--metadata", given[:10_000]], None)):
        if stdin is None and given[-2:] == '"}':
            continue
        refused = real_shell.run("events", "send", STREAM, "Placed", *words, stdin=stdin)
        assert refused.returncode == 2, refused.stderr
        assert refused.stdout == ""
        assert refused.stderr.startswith("agentbus: the ")
    assert real_shell.records("outbox", "status") == []


# -- what is wrong with a database or a module --------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{PASSWORD}@127.0.0.1:1/shop",
        *(
            pytest.param(url, marks=pytest.mark.slow)
            for url in (
                f"postgresql://ada:{PASSWORD}@127.0.0.1:port/shop",
                f"postgresql://127.0.0.1:1/shop?no_such_option={PASSWORD}",
                f"postgresql://127.0.0.1:1/shop?password={PASSWORD}",
                f"mysql://ada:{PASSWORD}@127.0.0.1:1/shop",
                PASSWORD,
            )
        ),
    ],
)
def test_a_password_is_told_to_nobody(real_shell, url):
    (real_shell.home / "shopping.py").write_text(MODULE)
    for verb in (
        ["outbox", "init"],
        ["outbox", "relay", "--once"],
        ["consume", "shopping", "--once"],
        ["events", "send", STREAM, "Placed", "{}"],
    ):
        for given in ([*verb, "--database", url], [*verb, "--database", url, "--json"]):
            refused = real_shell.run(*given)
            assert refused.returncode in (1, 2), refused.stderr
            assert "unexpectedly" not in refused.stderr
            assert PASSWORD not in refused.stdout + refused.stderr
    log = real_shell.home / ".local/state/agentbus/agentbus.log"
    assert PASSWORD not in log.read_text()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///no/such/folder.db"])
def test_a_database_that_keeps_nothing_is_refused(real_shell, url):
    refused = real_shell.run("outbox", "init", "--database", url)

    assert refused.returncode in (1, 2)
    assert "unexpectedly" not in refused.stderr


def test_a_schema_is_for_postgresql(real_shell, sqlite_database):
    refused = real_shell.run("outbox", "init", "--database", sqlite_database, "--schema", "x")

    assert refused.returncode == 2
    assert "no schemas" in refused.stderr


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("nowhere", None, "nowhere"),
        ("broken", "raise ValueError('no luck')", "no luck"),
        ("empty", "", "declares no consumer"),
    ],
)
def test_a_module_that_has_no_consumers_is_refused(real_shell, name, text, told):
    if text is not None:
        (real_shell.home / f"{name}.py").write_text(text)

    refused = real_shell.run("consume", name, "--once")

    assert refused.returncode == 2
    assert told in refused.stderr


def test_once_is_for_the_relay(real_shell):
    assert real_shell.run("outbox", "status", "--once").returncode == 2


def test_the_extra_is_told_where_it_is_missing(real_shell, tmp_path):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'sqlalchemy' else found(name, *a)\n"
    )
    path = f"{tmp_path / 'hide'}:{real_shell.environment.get('PYTHONPATH', '')}"

    refused = real_shell.run("outbox", "status", env={"PYTHONPATH": path})

    assert refused.returncode == 2
    assert "pip install 'agentbus-toolkit[events]'" in refused.stderr


def test_words_that_an_action_does_not_take_are_told(shop: Shell):
    refused = shop.run("events", "send", STREAM, "Placed")

    assert refused.returncode == 2
    assert "'send' takes STREAM TYPE PAYLOAD, not 2 words" in refused.stderr


def test_a_parked_event_is_seen_tried_again_and_dropped(shop: Shell, ledger: Ledger):
    sent = send(shop, '{"poison": true}')
    shop.ok("outbox", "relay", "--once")
    shop.records("consume", "shopping", "--name", "audit", "--once")

    (one,) = shop.records("events", "parked", "list", "--name", "audit")
    assert one.pop("timestamp").endswith("Z")
    number = one.pop("id")
    assert one == {
        "consumer": "audit",
        "stream": STREAM,
        "event_uuid": sent,
        "event_type": "Placed",
        "attempts": 1,
        "error": "ValueError: poison",
        "retrying": False,
    }
    (whole,) = shop.records("events", "parked", "show", number)
    assert whole["payload"] == {"poison": True}
    assert "ValueError: poison" in shop.ok("events", "parked", "show", number)
    assert shop.ok("events", "parked", "retry", number) == "1 event will be tried again\n"
    assert "(to be tried again)" in shop.ok("events", "parked", "list")
    (tried,) = shop.records("consume", "shopping", "--name", "audit", "--once")
    assert tried["failed"] == 1
    assert shop.records("events", "parked", "list")[0]["attempts"] == 2
    assert shop.records("events", "parked", "drop", number) == [{"events": 1}]
    assert shop.ok("events", "parked", "list") == ""
    assert shop.run("events", "parked", "drop", number).returncode == 5


@pytest.mark.parametrize("words", [(), ("lose",), ("show",), ("drop",), ("retry", "x")])
def test_what_parked_does_not_take_is_a_usage_error(shop: Shell, words):
    refused = shop.run("events", "parked", *words)

    assert refused.returncode == 2
    assert any(f"agentbus {verb}" in refused.stderr for verb in ("events", "help events"))


def test_status_tells_who_is_behind_and_where_somebody_is_needed(shop: Shell, ledger: Ledger):
    send(shop)
    shop.ok("outbox", "relay", "--once")
    shop.records("consume", "shopping", "--once", "--name", "welcome")
    send(shop, '{"poison": true}')
    shop.ok("outbox", "relay", "--once")
    shop.records("consume", "shopping", "--once", "--name", "audit")

    found = {one["role"]: one for one in shop.records("events", "status")}

    assert {role: one["lag"] for role, one in found.items()} == {
        "relay": 0,
        "audit": 0,
        "welcome": 1,
    }
    assert found["welcome"]["lag_ms"] > 0
    assert found["relay"]["lag_ms"] == found["audit"]["lag_ms"] == 0
    assert found["audit"]["parked"] == 1
    assert {role: one["alert"] for role, one in found.items()} == {
        "relay": None,
        "audit": "warn",
        "welcome": "page",
    }
    (row,) = shop.ok("events", "status", "--name", "welcome").splitlines()[1:]
    assert row.split()[:3] == [STREAM, "welcome", "-"]
    assert row.endswith("page")


@on_postgresql
def test_the_sql_of_the_tables_is_printed_and_not_run(shell: Shell, database: str):
    said = shell.ok("outbox", "init", "--sql", "--prefix", "b_")

    assert said.startswith("CREATE TABLE b_attempts (\n")
    assert said.rstrip().endswith(";")
    assert len(shell.records("outbox", "init")[0]["created"]) == 5
    assert shell.run("outbox", "relay", "--sql").returncode == 2
