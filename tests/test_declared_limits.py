"""Limits that are declared: in the config file, or with a typed task."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.errors import ConfigError, UsageError
from agentbus.queues.policy import Policies
from agentbus.tasks import Limits, QueueLimit, Tasks
from tests.servers import Shell

APP = """
import agentbus
from agentbus.tasks import QueueLimit

tasks = agentbus.Tasks()


@tasks.task(queue="mail", limit=QueueLimit(at_once=3))
def send(to: str) -> None: ...
"""


def limited(*limits: QueueLimit | None) -> Tasks:
    tasks = Tasks()
    for number, limit in enumerate(limits):
        tasks.task(queue="mail", name=f"task-{number}", limit=limit)(lambda: None)
    return tasks


def test_a_worker_of_typed_tasks_sets_the_limits_that_they_declare(bus: agentbus.Bus) -> None:
    tasks = limited(QueueLimit(per_second=5.0), None)

    tasks.worker(bus, drain=True).run()

    assert Limits(bus).list() == {"mail": QueueLimit(per_second=5.0)}


async def test_so_does_a_worker_of_coroutines(abus: agentbus.aio.AsyncBus) -> None:
    await limited(QueueLimit(at_once=2)).worker(abus, drain=True).run()

    assert await Limits(abus).get("mail") == QueueLimit(at_once=2)


def test_the_settings_come_before_the_tasks(bus: agentbus.Bus) -> None:
    queues = {"mail": {"limit": {"at_once": 7}}, "images": {"limit": {"per_second": 1}}}
    bus.runner._policies = Policies(queues, "test")

    limited(QueueLimit(at_once=2)).worker(bus, drain=True).run()

    # The limits of queues that this worker does not serve are left to others.
    assert Limits(bus).list() == {"mail": QueueLimit(at_once=7)}


def test_tasks_of_one_queue_that_disagree_are_refused(bus: agentbus.Bus) -> None:
    tasks = limited(QueueLimit(at_once=2), QueueLimit(at_once=3))

    with pytest.raises(UsageError, match="declare different limits"):
        tasks.worker(bus, drain=True)


def test_a_limit_is_a_queue_limit() -> None:
    with pytest.raises(UsageError, match="the limit is 5"):
        Tasks().task(queue="mail", limit=5)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ({"*": {"limit": {"at_once": 1}}}, "a limit is that of one queue"),
        ({"mail": {"limit": {"at_once": 0}}}, "at_once is 0"),
        ({"mail": {"limit": {"often": 1}}}, "'often'"),
        ({"mail": {"limit": 5}}, "a mapping of at_once"),
        ({"mail": {"limit": {}}}, "no limit is given"),
    ],
    ids=str,
)
def test_a_limit_of_the_settings_that_cannot_be_is_refused(queues: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Policies(queues, "test")  # type: ignore[arg-type]


def test_limit_apply_sets_what_is_declared_and_names_what_is_not(real_shell: Shell) -> None:
    (real_shell.home / "app.py").write_text(APP)
    config = real_shell.home / "config.yaml"
    config.write_text("queues: {crawl: {limit: {per_second: 5, by: tenant}}}\n")
    real_shell.ok("limit", "set", "images", "--at-once", "1")

    done = real_shell.run("limit", "apply", "app:tasks", "--config", str(config))
    again = real_shell.records("limit", "apply", "app:tasks", "--config", str(config))

    assert done.stdout.splitlines() == [
        "mail at most 3 at once",
        "crawl at most 5 a second, for each tenant",
    ]
    assert "these queues have limits that are not declared: images" in done.stderr
    assert [(one["queue"], one["changed"]) for one in again] == [("mail", False), ("crawl", False)]
    listed = {one["queue"]: one["at_once"] for one in real_shell.records("limit", "list")}
    assert listed == {"images": 1, "mail": 3, "crawl": None}


def test_a_worker_of_programs_sets_the_limit_of_its_queue(real_shell: Shell) -> None:
    config = real_shell.home / "config.yaml"
    config.write_text("queues: {mail: {limit: {at_once: 2}}, images: {limit: {at_once: 3}}}\n")
    real_shell.ok("publish", "mail", "1")

    real_shell.ok("work", "mail", "--drain", "--config", str(config), "--", "true")

    (limit,) = real_shell.records("limit", "list")
    assert (limit["queue"], limit["at_once"]) == ("mail", 2)
