"""Dead letters of one cause, whose errors differ in what is quoted, in addresses, ids and numbers."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.dashboard import Dashboard
from tests.servers import Shell


def fail(bus: agentbus.Bus, *errors: str) -> list[str]:
    """Bury a task with each error, and return the ids of the tasks."""
    ids = bus.queue("mail").publish_many(list(errors))

    def handle(delivery: agentbus.Delivery) -> None:
        delivery.bury(delivery.payload)

    bus.subscribe("mail", handle, drain=True).run()
    return ids


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "ValueError: 'user368@example.org' is not an address",
            "ValueError: 'u' is not an address",
        ),
        ("ValueError: user368@example.org is unknown", "ValueError: a.b+c@d.example is unknown"),
        ("KeyError: 17", "KeyError: 991"),
        ("OSError: [Errno 2] no file /tmp/a1b2", "OSError: [Errno 2] no file /tmp/77f"),
        ("exit 1: at 2026-11-28T16:37:17.081Z", "exit 1: at 2025-01-02T03:04:05Z"),
        ("X: <T object at 0x7f40ab>", "X: <T object at 0x8c>"),
        ("X: connection to 10.0.0.7:6379 refused", "X: connection to 10.11.0.12:6380 refused"),
        (
            "X: 550e8400-e29b-41d4-abcd-446655440000 is gone",
            "X: 550e8400-aaaa-41d4-bbbb-44665544ffff is gone",
        ),
        ("X: GET https://a.example/x/7 failed", "X: GET http://b.example failed"),
        ('X: no "a" here\nsecond line', 'X: no "bb" here\nanother'),
    ],
)
def test_errors_of_one_cause_are_one_group(bus: agentbus.Bus, one: str, other: str) -> None:
    fail(bus, one, other)

    (group,) = Dashboard(bus).errors().groups

    assert (group.letters, len(group.variants)) == (2, 1 if one == other else 2)
    assert group.error == other.partition("\n")[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: no such address", "KeyError: no such address"),
        ("ValueError: no such address", "ValueError: no such mailbox"),
        ("Py4JError: x", "Py5JError: x"),
        ("", "ValueError: x"),
    ],
)
def test_errors_of_two_causes_are_two_groups(bus: agentbus.Bus, one: str, other: str) -> None:
    fail(bus, one or " ", other)

    assert [group.letters for group in Dashboard(bus).errors().groups] == [1, 1]


def test_sixteen_letters_of_one_cause_are_replayed_together(bus: agentbus.Bus) -> None:
    errors = [f"ValueError: 'user{number}@example.org' is not an address" for number in range(16)]
    fail(bus, *errors, "KeyError: 'x'")
    dashboard = Dashboard(bus)

    first, second = dashboard.errors().groups
    assert (first.letters, len(first.variants), second.letters) == (16, 16, 1)
    assert {line for line, _ in first.variants} == {*errors}
    assert first.fingerprint == "ValueError: '*' is not an address"
    assert len(dashboard.letters(errors[3]).letters) == 16
    assert dashboard.errors(error=first.fingerprint).letters == 16

    page = dashboard.replay_error(errors[5])

    assert (len(page.tasks), page.after) == (16, None)
    assert [group.replayed for group in dashboard.errors().groups] == [16, 0]


def test_letters_like_one_are_listed_replayed_and_purged(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        fail(bus, "ValueError: 1 is odd", "KeyError: 'x'", "ValueError: 3 is odd")
    letters = real_shell.records("dlq", "list", "mail")
    like = ("--like", letters[0]["id"])

    listed = real_shell.records("dlq", "list", "mail", *like)
    assert [letter["payload"] for letter in listed] == [
        "ValueError: 1 is odd",
        "ValueError: 3 is odd",
    ]
    assert len(real_shell.records("dlq", "replay", "mail", *like)) == 2
    assert [one["payload"] for one in real_shell.records("dlq", "list", "mail")] == [
        "KeyError: 'x'"
    ]
    (purged,) = real_shell.records("dlq", "purge", "mail", *like)
    assert purged["purged"] == 2
    assert real_shell.run("dlq", "list", "mail", "--like", "1-1").returncode == 5
