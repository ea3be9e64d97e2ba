"""`events check` and `events demo`, through the shell."""

from __future__ import annotations

import json
import signal
import uuid

import pytest
import sqlalchemy as sa

from agentbus.events import open_ledger
from tests.events.shop import STREAM, rows
from tests.servers import Shell

SCHEMAS = """
from agentbus.events.schemas import REGISTERED

REGISTERED.register("shop", "Placed", {
    "properties": {"order": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["order"],
})
REGISTERED.register("mail", "Sent", {"properties": {"to": {"type": "string"}}})
"""
HANDLERS = """
import sqlalchemy as sa
from agentbus.events import consumer


@consumer("shop:orders", name="welcome")
def welcome(event, session):
    session.execute(sa.text("CREATE TABLE IF NOT EXISTS effects (uuid VARCHAR(64))"))
    session.execute(sa.text("INSERT INTO effects (uuid) VALUES (:uuid)"), {"uuid": event.event_uuid})
"""
KINDS = {"OrderPlaced", "OrderPaid", "OrderShipped", "OrderCancelled"}


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell with a module of schemas in its home, and what was agreed on."""
    (real_shell.home / "kinds.py").write_text(SCHEMAS)
    return real_shell


@pytest.fixture
def agreed(shell: Shell) -> Shell:
    """A shell with the schemas that were agreed on in a file."""
    shell.ok("events", "check", "kinds", "kinds.json", "--accept")
    return shell


def rewrite(shell: Shell, old: str, new: str) -> None:
    """Change the module of schemas."""
    text = (shell.home / "kinds.py").read_text()
    assert old in text
    # Another name, as two writes within a second may leave the compiled file as it was.
    (shell.home / "later.py").write_text(text.replace(old, new))


# -- check --------------------------------------------------------------------------------------


def test_schemas_are_accepted_and_then_fit(shell):
    missing = shell.run("events", "check", "kinds", "kinds.json")
    assert (missing.returncode, missing.stdout) == (5, "")
    assert "--accept" in missing.stderr

    told = shell.ok("events", "check", "kinds", "kinds.json", "--accept")

    assert told == ("mail Sent $: the event type is new\nshop Placed $: the event type is new\n")
    file = shell.home / "kinds.json"
    text = file.read_text()
    assert json.loads(text)["mail"] == {"Sent": {"properties": {"to": {"type": "string"}}}}
    assert text.index('"mail"') < text.index('"shop"')
    file.chmod(0o640)
    assert shell.ok("events", "check", "kinds", "kinds.json", "--accept") == ""
    assert file.read_text() == text
    assert file.stat().st_mode & 0o777 == 0o640
    done = shell.run("events", "check", "kinds", "kinds.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in shell.home.glob("kinds.json*")] == ["kinds.json"]


def test_what_breaks_is_told_and_accepted_on_demand(agreed):
    rewrite(agreed, '{"order": {"type": "integer"}, ', '{"order": {"type": "string"}, "new": {}, ')

    done = agreed.run("events", "check", "later", "kinds.json", "--json")

    assert done.returncode == 6
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {
            "stream": "shop",
            "event_type": "Placed",
            "path": "$.order",
            "reason": 'type changed from "integer" to "string"',
        }
    ]
    assert agreed.ok("events", "check", "later", "kinds.json", "--accept") == (
        "shop Placed $.new: it is new and optional\n"
        'shop Placed $.order: type changed from "integer" to "string"\n'
    )
    assert agreed.ok("events", "check", "later", "kinds.json") == ""


def test_what_only_adds_is_fine_and_the_file_is_said_to_lack_it(agreed):
    rewrite(agreed, '"note": {', '"new": {}, "note": {')

    done = agreed.run("events", "check", "later", "kinds.json")

    assert (done.returncode, done.stdout) == (0, "")
    assert "1 addition" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"shop": {"Placed": {"minimum": NaN}}}', "NaN"),
        ('{"shop": 7}', "does not hold schemas"),
        ('{"shop": {"Placed": {"type": "no-such-type"}}}', "not a JSON Schema"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_a_file_that_holds_no_schemas_is_refused_and_left_alone(shell, text, said):
    file = shell.home / "kinds.json"
    file.write_text(text)

    done = shell.run("events", "check", "kinds", "kinds.json", "--accept")

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert file.read_text() == text


def test_what_cannot_be_loaded_read_written_or_said_is_told(shell):
    (shell.home / "broken.py").write_text(
        "import pydantic\nfrom collections.abc import Callable\n"
        "from agentbus.events.schemas import REGISTERED\n"
        "class Odd(pydantic.BaseModel):\n    act: Callable[[], None]\n"
        "REGISTERED.register('shop', 'Odd', Odd)\n"
    )
    for words, said in (
        (("check", "nowhere", "kinds.json"), "cannot be loaded"),
        (("check", "broken", "kinds.json"), "cannot be written as JSON Schema"),
        (("check", "kinds", "."), "cannot be read"),
        (("check", "kinds", "no/such.json", "--accept"), "cannot be written"),
        (("check", "kinds"), "MODULE FILE"),
        (("demo", "--accept"), "goes with check alone"),
        (("send", "shop", "Placed", "{}", "--rate", "0"), "goes with demo alone"),
    ):
        done = shell.run("events", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr


# -- demo ---------------------------------------------------------------------------------------


def test_the_demos_events_go_through_the_relay_to_a_consumer(shell, database):
    shell.environment["AGENTBUS_DATABASE"] = database
    (shell.home / "handling.py").write_text(HANDLERS)

    sent = shell.records("events", "demo", "--rate", "0", "--count", "40", "--seed", "7")

    assert [sorted(one) for one in sent] == [["event_type", "event_uuid", "payload", "stream"]] * 40
    assert {one["stream"] for one in sent} == {STREAM}
    assert {one["event_type"] for one in sent} == KINDS
    assert len({uuid.UUID(one["event_uuid"]) for one in sent}) == 40
    assert shell.records("outbox", "relay", "--once") == [{"published": 40, "waiting": 0}]
    assert shell.ok("consume", "handling", "--once") == "welcome: 40 handled\n"
    ledger = open_ledger(database)
    with ledger.engine.connect() as connection:
        acted = list(connection.execute(sa.text("SELECT uuid FROM effects")).scalars())
    ledger.engine.dispose()
    assert sorted(acted) == sorted(one["event_uuid"] for one in sent)


def test_the_demo_tells_stories_that_hold_together_and_a_seed_repeats_them(shell):
    def told(number: int) -> list[tuple[str, dict]]:
        words = ("--rate", "0", "--count", str(number), "--seed", "3")
        found = shell.records("events", "demo", *words)
        return [(one["event_type"], one["payload"]) for one in found]

    first = told(40)

    assert told(10) == first[:10]
    totals: dict[int, int] = {}
    paid: set[int] = set()
    for kind, payload in first:
        order = payload["order"]
        if kind == "OrderPlaced":
            # The number of one that was rolled back was given to the next.
            assert order == max(totals, default=order - 1) + 1
            totals[order] = payload["total_cents"]
        elif kind == "OrderPaid":
            assert payload["amount_cents"] == totals[order]
            paid.add(order)
        elif kind == "OrderShipped":
            assert order in paid
        else:
            assert payload["refund_cents"] == (totals[order] if order in paid else 0)


def test_the_demo_ends_when_told_and_has_sent_what_it_printed(shell, tmp_path):
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    words = ("events", "demo", "--rate", "0", "--stream", "mine", "--json", "--database", url)
    process = shell.start(*words)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()

    process.send_signal(signal.SIGTERM)
    # Not communicate(): it passes over what readline() has read ahead.
    with process:
        rest, said = process.stdout.read(), process.stderr.read()

    assert (process.returncode, said) == (0, "")
    printed = [json.loads(line)["event_uuid"] for line in (first + rest).splitlines()]
    ledger = open_ledger(url)
    assert [row.event_uuid for row in rows(ledger, "outbox")] == printed
    assert {row.stream for row in rows(ledger, "outbox")} == {"mine"}
    ledger.engine.dispose()
