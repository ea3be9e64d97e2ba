"""Health: each finding provoked for real, told with its figure and remedy, and gone once it is mended."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

import agentbus
from agentbus.admin import health, server_health
from agentbus.admin.health import HealthFinding
from agentbus.admin.health.thresholds import Levels
from agentbus.admin.server_health import ServerInfo
from agentbus.core.keys import Keys, pause_field
from agentbus.errors import ConfigError, QueueFull, Refused
from agentbus.queues.ids import PRIORITIES
from agentbus.retry import Bury
from tests.conftest import Connect
from tests.servers import Server, Shell, ask
from tests.small_worker import Registry
from tests.test_cli_housekeeping import Terminal
from tests.test_figures import requests
from tests.test_presence import age
from tests.tiers import on_one_store

Configured = Callable[..., agentbus.Bus]


@pytest.fixture
def configured(
    connect: Connect, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Configured:
    """Return a function that opens a bus with a config file of these settings."""

    def _configured(**settings: Any) -> agentbus.Bus:
        path = tmp_path / "bus.yaml"
        path.write_text(yaml.safe_dump(settings))
        monkeypatch.setenv("AGENTBUS_CONFIG", str(path))
        return connect()

    return _configured


def findings(bus: agentbus.Bus) -> list[HealthFinding]:
    """Return what is not well with the project; how a server is depends on which one it is."""
    return [found for found in bus.health().findings if found.subject != "server"]


def told(bus: agentbus.Bus, check: str) -> HealthFinding:
    """Return the one finding of a check."""
    (found,) = [found for found in findings(bus) if found.check == check]
    return found


def checks(bus: agentbus.Bus) -> list[str]:
    return [found.check for found in findings(bus)]


def now_ms(bus: agentbus.Bus) -> int:
    return int(ask(bus, "TIME")[0]) * 1000


def append_old(bus: agentbus.Bus, seconds: float, queue: str = "mail") -> None:
    """Append a task, as another program would have done so long ago."""
    entry_id = f"{now_ms(bus) - round(seconds * 1000)}-0"
    ask(bus, "XADD", bus.scope.keys.queue(queue), entry_id, "payload", "1")


def make_idle(bus: agentbus.Bus, seconds: float, queue: str = "mail") -> None:
    """Make what is held look as if its holders had been silent for so long."""
    key = bus.scope.keys.queue(queue)
    for entry_id, holder, *_ in ask(bus, "XPENDING", key, "default", "-", "+", 1000):
        words = ("XCLAIM", key, "default", holder, 0, entry_id, "IDLE", round(seconds * 1000))
        ask(bus, *words, "JUSTID")


def tell_events(bus: agentbus.Bus, seconds: float = 0.0, **words: object) -> None:
    """Tell the metrics stream what a consumer of events would have told so long ago."""
    fields = {"kind": "events", "version": 1, "role": "welcome", "stream": "signups", **words}
    pairs = [str(word) for pair in fields.items() for word in pair]
    ask(bus, "XADD", bus.scope.keys.metrics, f"{now_ms(bus) - round(seconds * 1000)}-*", *pairs)


# -- all is well --


def test_a_new_project_is_healthy(bus: agentbus.Bus) -> None:
    assert findings(bus) == []


def test_it_says_how_much_was_looked_at(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.queue("sums").publish(1)
    bus.queue("sums").fetch()
    Registry(bus, "sums", "host:1:a").beat()
    tell_events(bus, lag_ms=0, lag_events_count=0)

    found = bus.health()

    assert (found.queues, found.consumers, found.workers, found.streams) == (2, 1, 1, 1)


async def test_the_asynchronous_bus_finds_the_same(abus: agentbus.AsyncBus) -> None:
    await abus.queue("mail").publish_many(range(101))

    (found,) = [found for found in (await abus.health()).findings if found.subject == "mail"]

    assert (found.check, found.severity, found.figure) == ("lag", "warning", 101)


def test_the_worst_comes_first_and_names_the_whole(bus: agentbus.Bus) -> None:
    bus.queue("alright").publish_many(range(101))
    bus.queue("mail").publish_many(range(501))

    found = bus.health()

    assert [one.subject for one in found.findings if one.check == "lag"] == ["mail", "alright"]
    assert (found.status, found.critical) == ("critical", 1)
    assert found.findings[0].severity == "critical"


# -- queues --


def test_a_backlog_is_told_until_it_is_worked_off(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(101))

    found = told(bus, "lag")

    assert (found.subject, found.severity, found.figure, found.threshold) == (
        *("mail", "warning", 101, 100),
    )
    assert "'mail' has 101 tasks" in found.text
    assert found.remedy == "start a worker: agentbus work mail -- CMD"
    for delivery in queue.fetch(count=101):
        delivery.ack()
    assert findings(bus) == []


@on_one_store
def test_a_backlog_is_told_by_group(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(501))
    for group, number in (("fast", 501), ("slow", 1)):
        for delivery in bus.queue("mail").fetch(group=group, count=number):
            delivery.ack()

    found = told(bus, "lag")

    assert (found.subject, found.severity, found.figure) == ("mail/slow", "warning", 500)
    assert "--group slow" in found.remedy


def test_a_stopped_consumers_tasks_are_told_until_they_are_done(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(3))
    deliveries = bus.queue("mail").fetch(count=3)
    assert findings(bus) == []

    make_idle(bus, 301)
    warned = told(bus, "idle")
    make_idle(bus, 901)
    escalated = told(bus, "idle")

    assert (warned.severity, warned.threshold) == ("warning", 300)
    assert (escalated.severity, escalated.threshold) == ("critical", 900)
    assert escalated.figure is not None
    assert escalated.figure >= 901
    assert "3 tasks of 'mail' (group 'default')" in escalated.text
    assert "the longest for 15 minutes" in escalated.text
    assert escalated.remedy == "start a worker, which reclaims them: agentbus work mail -- CMD"
    for delivery in deliveries:
        delivery.ack()
    assert findings(bus) == []


def test_a_killed_workers_task_is_told_until_another_has_done_it(
    real_shell: Shell, valkey: Server, project: str, tmp_path: pathlib.Path
) -> None:
    # given a worker that is killed while its program runs
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    real_shell.ok("publish", "mail", "1")
    script = f"echo $$ > {begun}; sleep 1000"
    worker = real_shell.start("work", "mail", "--", "sh", "-c", script)
    program = int(begun.read_text())
    worker.kill()
    os.killpg(program, signal.SIGKILL)
    worker.communicate()
    with agentbus.connect(valkey.url, project=project) as bus:
        (registered,) = bus.workers()
        age(bus, registered.worker, 1000)
        make_idle(bus, 1000)

        done = real_shell.run("health", "--json")

        found = {one.get("check"): one for one in map(json.loads, done.stdout.splitlines())}
        assert done.returncode == 6
        assert set(found) - {None} == {"idle", "dead_worker"}
        assert found["idle"]["severity"] == "critical"
        assert registered.worker in found["dead_worker"]["text"]

        # when the remedy is followed
        real_shell.ok("work", "mail", "--drain", "--", "true")

        assert findings(bus) == []
        assert real_shell.run("health").returncode == 0


def test_tasks_that_were_put_aside_are_not_idle(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(3))
    for delivery in bus.queue("mail").fetch(count=3):
        delivery.retry(3600.0)

    make_idle(bus, 7200)

    assert findings(bus) == []


@on_one_store
def test_a_held_task_is_found_behind_many_that_were_put_aside(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(301))
    for delivery in bus.queue("mail").fetch(count=301)[:-1]:
        delivery.retry(3600.0)

    make_idle(bus, 7200)

    assert told(bus, "idle").severity == "critical"


def test_who_may_hold_tasks_for_an_hour_is_not_idle_before(configured: Configured) -> None:
    bus = configured(queues={"mail": {"visibility": "1h"}})
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()

    make_idle(bus, 3500)
    assert findings(bus) == []
    make_idle(bus, 3700)

    assert told(bus, "idle").threshold == 3600


@pytest.mark.parametrize(("number", "severity"), [(51, "warning"), (201, "critical")])
def test_a_consumer_that_holds_much_is_told(bus: agentbus.Bus, number: int, severity: str) -> None:
    bus.queue("mail").publish_many(range(number))
    deliveries = bus.queue("mail").fetch(count=number)

    found = told(bus, "pending")

    assert (found.severity, found.figure) == (severity, number)
    assert found.subject.startswith("mail/default/")
    for delivery in deliveries:
        delivery.ack()
    assert findings(bus) == []


def test_what_a_live_worker_takes_at_once_is_no_finding(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(300))
    key = bus.scope.keys.queue("mail")
    ask(bus, "XGROUP", "CREATE", key, "default", "0")
    ask(bus, "XREADGROUP", "GROUP", "default", "host:1:a", "COUNT", 300, "STREAMS", key, ">")
    Registry(bus, "mail", "host:1:a").beat()
    assert findings(bus) == []

    age(bus, "host:1:a", 60)

    assert sorted(checks(bus)) == ["dead_worker", "pending"]
    found = told(bus, "dead_worker")
    assert (found.severity, found.figure) == ("warning", 300)
    assert "s ago and holds 300 tasks of 'mail'" in found.text


@pytest.mark.parametrize(("seconds", "severity"), [(301, "warning"), (901, "critical")])
def test_a_queue_that_nobody_works_on_starves(
    bus: agentbus.Bus, seconds: int, severity: str
) -> None:
    append_old(bus, seconds)

    found = told(bus, "starving")

    assert (found.subject, found.severity) == ("mail", severity)
    assert "and it has no worker" in found.text
    Registry(bus, "mail", "host:1:a").beat()
    assert findings(bus) == []
    age(bus, "host:1:a", 60)
    assert checks(bus) == ["starving"]


def test_a_group_with_tasks_and_no_worker_is_told_at_once(bus: agentbus.Bus) -> None:
    # given a group whose only worker has died
    bus.queue("mail").publish_many(range(3))
    bus.queue("mail").fetch(count=1)[0].ack()
    (holder,) = bus.queue("mail").groups()[0].consumers
    Registry(bus, "mail", holder.name).beat()
    assert findings(bus) == []
    age(bus, holder.name, 4)

    found = told(bus, "no_worker")

    assert (found.subject, found.severity, found.figure) == ("mail/default", "warning", 2)
    assert found.text == "'mail' (group 'default') has 2 tasks and no live worker"
    assert found.remedy == "start a worker: agentbus work mail -- CMD"
    Registry(bus, "mail", "host:1:b").beat()
    assert findings(bus) == []


def test_a_group_without_tasks_needs_no_worker(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()[0].ack()
    (holder,) = bus.queue("mail").groups()[0].consumers
    Registry(bus, "mail", holder.name).beat()
    age(bus, holder.name, 60)

    assert findings(bus) == []


def test_a_full_queue_names_the_group_that_blocks(configured: Configured) -> None:
    bus = configured(queues={"mail": {"bound": 10}})
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    for delivery in queue.fetch(count=10):
        delivery.ack()
    queue.fetch(group="audit", count=4)

    with pytest.raises(
        QueueFull, match="the group 'audit' has not finished the oldest;"
    ) as refused:
        queue.publish(10)

    found = told(bus, "full")
    assert "publishers are refused now; the group 'audit' has not finished" in found.text
    assert "start workers of the group 'audit'" in str(refused.value.hint)
    # A group may be there by a mistake in its name.
    delete = "agentbus bus delete mail --group audit --force"
    assert str(refused.value.shell_hint).endswith(f"if nobody needs that group: {delete}")
    assert told(bus, "full").remedy.endswith(f"if nobody needs that group: {delete}")
    with pytest.raises(Refused) as kept:
        queue.delete("audit")
    assert str(kept.value.shell_hint).endswith("or drop them with --force")
    Registry(bus, "mail", "host:1:a").beat()
    assert "agentbus work mail --group audit -- CMD" in told(bus, "full").remedy
    with pytest.raises(QueueFull, match="'audit'"):
        queue.publish(10, delay=60)
    with pytest.raises(QueueFull, match="'audit'"):
        queue.publish(10, after=[queue.publish_many([1], on_full="trim")[0]])


def test_whoever_takes_by_hand_works_on_a_queue_too(bus: agentbus.Bus) -> None:
    append_old(bus, 1000)
    append_old(bus, 999)

    bus.queue("mail").fetch(count=1)

    assert findings(bus) == []


def test_a_task_that_was_due_long_ago_starves(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1, delay=1.0)
    assert findings(bus) == []

    (task,) = ask(bus, "ZRANGE", bus.scope.keys.delayed("mail"), 0, -1)
    ask(bus, "ZADD", bus.scope.keys.delayed("mail"), now_ms(bus) - 1_000_000, task)

    assert told(bus, "starving").severity == "critical"


def test_a_retry_that_was_due_long_ago_starves(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()
    delivery.retry(60.0)
    due = bus.scope.keys.retries("mail", "default", "normal")
    (entry,) = ask(bus, "ZRANGE", due, 0, -1)
    ask(bus, "ZADD", due, now_ms(bus) - 1_000_000, entry)
    assert findings(bus) == []

    # Who took it leaves; on which streams it is known depends on the server.
    (consumer,) = bus.queue("mail").groups()[0].consumers
    for priority in PRIORITIES:
        key = bus.scope.keys.queue("mail", priority)
        ask(bus, "XGROUP", "DELCONSUMER", key, "default", consumer.name)

    assert told(bus, "starving").subject == "mail/default"


def test_a_paused_queue_starves_and_says_who_paused_it(bus: agentbus.Bus) -> None:
    append_old(bus, 1000)
    Registry(bus, "mail", "host:1:a").beat()
    bus.pause(queue="mail", why="a bad deploy", wait=0.0)

    found = told(bus, "starving")

    assert "it is paused by ada: a bad deploy" in found.text
    assert found.remedy == "agentbus resume mail"
    bus.resume(queue="mail")
    assert findings(bus) == []


def test_a_project_that_was_halted_starves_until_it_is_resumed(bus: agentbus.Bus) -> None:
    append_old(bus, 1000)
    Registry(bus, "mail", "host:1:a").beat()
    ask(bus, "HSET", bus.scope.keys.paused, pause_field("project"), '{"by": "eve"}')

    found = told(bus, "starving")

    assert "it is paused by eve" in found.text
    assert found.remedy == "agentbus resume"


def test_a_queue_of_paused_workers_starves(bus: agentbus.Bus) -> None:
    append_old(bus, 1000)
    Registry(bus, "mail", "host:1:a").beat()
    bus.pause(worker="host:1:a", wait=0.0)

    assert "all of its workers are paused" in told(bus, "starving").text


@pytest.mark.parametrize(("number", "severity"), [(21, "warning"), (51, "critical")])
def test_a_queue_that_another_program_floods_is_told(
    configured: Configured, number: int, severity: str
) -> None:
    bus = configured(queues={"mail": {"bound": 10}})
    key = bus.scope.keys.queue("mail", "high")
    for n in range(number):
        ask(bus, "XADD", key, "*", "payload", n)

    found = told(bus, "stream_length")

    assert (found.subject, found.severity, found.figure) == ("mail (high)", severity, number)
    assert "times its bound of 10" in found.text
    ask(bus, "XTRIM", key, "MAXLEN", 5)
    assert findings(bus) == []


def test_a_full_queue_is_critical_while_publishers_are_refused(configured: Configured) -> None:
    bus = configured(queues={"mail": {"bound": 10}})
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    with pytest.raises(QueueFull):
        queue.publish(10)

    found = told(bus, "full")

    assert (found.severity, found.figure, found.threshold) == ("critical", 10, 10)
    assert "publishers are refused now" in found.text
    (delivery,) = queue.fetch(count=1)
    assert told(bus, "full")
    delivery.ack()
    assert findings(bus) == []
    queue.publish(10)


def test_what_is_done_and_kept_makes_no_queue_full(configured: Configured) -> None:
    bus = configured(queues={"mail": {"bound": 10}})
    bus.queue("mail").publish_many(range(10))
    for delivery in bus.queue("mail").fetch(count=10):
        delivery.ack()

    assert findings(bus) == []


def test_a_full_queue_that_drops_says_so(configured: Configured) -> None:
    bus = configured(queues={"mail": {"bound": 10, "on_full": "trim"}})
    bus.queue("mail").publish_many(range(10))

    assert "each new task drops the oldest now" in told(bus, "full").text


def test_a_channel_that_another_program_floods_is_told(connect: Connect, project: str) -> None:
    bus = connect()
    bus.scope.channel_bound = 10
    for n in range(21):
        ask(bus, "XADD", Keys(project).channel, "*", "message", n)

    found = told(bus, "stream_length")

    assert (found.subject, found.severity) == ("channel", "warning")
    # Messages that nobody has read may be among them.
    assert "XTRIM" not in found.remedy
    ask(bus, "XTRIM", Keys(project).channel, "MAXLEN", "10")
    assert findings(bus) == []


def test_dead_letters_are_told_until_they_are_dealt_with(bus: agentbus.Bus) -> None:
    def refuse(delivery: agentbus.Delivery) -> None:
        raise Bury("no")

    queue = bus.queue("mail")
    queue.publish_many(range(3))
    bus.subscribe("mail", refuse, drain=True).run()

    found = told(bus, "dead_letters")

    assert (found.subject, found.severity, found.figure) == ("mail/default", "warning", 3)
    assert found.remedy.startswith("agentbus dlq list mail;")
    letters = queue.dead_letters()
    queue.replay(letters[0].id)
    queue.purge(letters[1].id)
    assert told(bus, "dead_letters").figure == 1
    queue.purge(letters[2].id)
    for delivery in queue.fetch():
        delivery.ack()
    assert findings(bus) == []


@pytest.mark.parametrize(
    "name", ["--help", "-g", "a\u200bb", "it's\u2028\\", "\U000e0100"], ids=ascii
)
def test_remedies_can_be_pasted_whatever_a_queue_and_its_group_are_named(
    real_shell: Shell, real_url: str, project: str, name: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        queue = bus.queue(name)
        queue.publish_many(range(600))
        for delivery in queue.fetch(group=name, count=1):
            delivery.bury("no")
    found = [json.loads(line) for line in real_shell.run("health", "--json").stdout.splitlines()]
    subject = f"{name}/{name}"
    remedies = {one["check"]: one["remedy"] for one in found if one.get("subject") == subject}

    listed = _pasted(remedies["dead_letters"].partition("; then")[0])
    start, _, delete = remedies["lag"].partition("; if nobody needs that group: ")
    worked = _pasted(start.partition(": ")[2].replace("CMD", "true"))

    assert "no" in real_shell.run(*listed).stdout
    assert real_shell.run(*worked[:1], "--count", "1", *worked[1:]).returncode == 0
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        assert bus.queue(name).remaining(name) == 598
    assert real_shell.run(*_pasted(delete)).returncode == 0


def _pasted(command: str) -> list[str]:
    """Return the words that a shell makes of a command, past `agentbus`."""
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        check=True,
    )
    first, *words = printed.stdout.decode().split("\0")[:-1]
    assert first == "agentbus"
    return words


@pytest.mark.parametrize("listed", [False, True])
def test_dead_letters_of_a_queue_that_is_gone_are_told(bus: agentbus.Bus, listed: bool) -> None:
    if listed:
        ask(bus, "ZADD", bus.scope.keys.queues, 1, "gone")
    ask(bus, "XADD", bus.scope.keys.dead_letters("gone", "night"), "*", "error", "x")

    found = told(bus, "dead_letters")

    assert (found.subject, found.figure) == ("gone/night", 1)
    assert "--group night" in found.remedy


def test_dead_letters_in_one_place_are_told_once(configured: Configured) -> None:
    bus = configured(queues={"*": {"dead_letters": "all"}})
    for queue in ("mail", "sums"):
        bus.queue(queue).publish(1)
        (delivery,) = bus.queue(queue).fetch()
        delivery.bury("no")

    assert told(bus, "dead_letters").figure == 2


@pytest.mark.parametrize("queue", ["a b; rm -rf x", "$(id)", "a:b", "100%", "*"])
def test_a_remedy_is_safe_to_paste_whatever_the_queue_is_named(
    bus: agentbus.Bus, queue: str
) -> None:
    import shlex

    bus.queue(queue).publish_many(range(101))

    words = shlex.split(told(bus, "lag").remedy.partition(": ")[2])

    assert words == ["agentbus", "work", queue, "--", "CMD"]


def test_a_project_of_many_queues_takes_few_requests(bus: agentbus.Bus) -> None:
    # Those that look through the server take as many as it has keys of others.
    before, _ = requests(bus, health.examine(bus.scope, bus.settings))
    ask(bus, "ZADD", bus.scope.keys.queues, *(w for n in range(1000) for w in (1, f"q{n}")))

    number, found = requests(bus, health.examine(bus.scope, bus.settings))

    assert number - before <= 40
    assert found.queues == 0


# -- events --


@pytest.mark.parametrize(
    ("lag_ms", "events", "check", "severity"),
    [
        (60_001, 3, "lag_ms", "warning"),
        (300_001, 3, "lag_ms", "critical"),
        (59_000, 10_001, "lag_events", "warning"),
    ],
)
def test_a_consumer_of_events_that_lags_is_told(
    bus: agentbus.Bus, lag_ms: int, events: int, check: str, severity: str
) -> None:
    tell_events(bus, 20, lag_ms=5, lag_events_count=1)
    tell_events(bus, 10, lag_ms=lag_ms, lag_events_count=events)
    tell_events(bus, 5, handled=3)

    found = told(bus, check)

    assert (found.subject, found.severity) == ("signups/welcome", severity)
    tell_events(bus, lag_ms=0, lag_events_count=0)
    assert findings(bus) == []


def test_a_consumer_that_lags_is_told_with_its_last_error(bus: agentbus.Bus) -> None:
    lags = {"lag_ms": 70_000, "lag_events_count": 1}
    tell_events(bus, **lags, parked_events=0, last_error="paid 17: KeyError: 'x'\n")

    text = told(bus, "lag_ms").text

    assert text.endswith("ago; its last error: paid 17: KeyError: 'x'\\n")


def test_a_consumer_that_fell_silent_with_work_to_do_is_critical(bus: agentbus.Bus) -> None:
    tell_events(bus, 301, lag_ms=70_000, lag_events_count=40)

    found = told(bus, "silent")

    assert (found.subject, found.severity) == ("signups/welcome", "critical")
    assert "has reported nothing for 5 minutes, and had 40 events left" in found.text
    tell_events(bus, lag_ms=0, lag_events_count=0)
    assert findings(bus) == []


def test_a_consumer_that_has_nothing_to_do_may_be_silent(bus: agentbus.Bus) -> None:
    tell_events(bus, 400, lag_ms=0, lag_events_count=0)
    assert findings(bus) == []

    ask(bus, "XADD", bus.scope.keys.events("signups"), "*", "a", "b")

    assert "events have come since" in told(bus, "silent").text


def test_an_event_of_an_unknown_type_is_told(bus: agentbus.Bus) -> None:
    tell_events(bus, 400, unknown_event_type=7)
    tell_events(bus, 20, lag_ms=5, lag_events_count=1, unknown_event_type=2)
    tell_events(bus, 10, unknown_event_type=3)

    found = told(bus, "unknown_events")

    assert (found.severity, found.figure) == ("warning", 5)


def test_a_consumer_in_quarantine_is_critical(bus: agentbus.Bus) -> None:
    why = {"reason": "crash_loop", "quarantined_at": "2025-11-20T07:00:00Z", "last_error": "a\nno"}
    key = bus.scope.keys.quarantined
    ask(bus, "HSET", key, "welcome", json.dumps(why), "other", "spoilt", "", "life 1")

    first, second = findings(bus)

    assert (first.check, first.subject, first.text) == (
        *("quarantined", "other", "the consumer 'other' was quarantined"),
    )
    assert second.severity == "critical"
    assert second.text.endswith("quarantined at 2025-11-20T07:00:00Z (crash loop): no")
    assert second.remedy.endswith("agentbus quarantine release welcome")
    ask(bus, "HDEL", key, "welcome", "other")
    assert findings(bus) == []


# -- the server --


SOUND = {
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory": 0,
}


@pytest.mark.parametrize(
    ("settings", "check", "severity", "sentence"),
    [
        (
            {"maxmemory-policy": "allkeys-lru"},
            *("eviction", "critical", "the server's eviction policy is allkeys-lru"),
        ),
        ({"appendonly": "no"}, "persistence", "critical", "nothing is stored on disk"),
        (
            {"appendonly": "no", "save": "3600 1"},
            *("persistence", "warning", "only snapshots are kept"),
        ),
        ({"appendfsync": "no"}, "persistence", "warning", "when the system decides"),
        ({"maxmemory": 0.97}, "memory", "critical", "the server's memory: "),
        ({"maxmemory": 0.85}, "memory", "warning", "the server's memory: "),
    ],
)
def test_a_server_that_endangers_data_is_told_until_it_is_mended(
    own_server: Server,
    shell: Shell,
    settings: dict[str, Any],
    check: str,
    severity: str,
    sentence: str,
) -> None:
    words = ("health", "--json", "--url", own_server.url)
    shell.ok("speak", "hi", "--url", own_server.url)
    for name, value in settings.items():
        if isinstance(value, float):
            # A limit that is used to this share; looking takes memory, too.
            own_server.ask("SET", "ballast", b"x" * 20_000_000)
            value = round(used(own_server) / value)
        own_server.ask("CONFIG", "SET", name, value)

    done = shell.run(*words)

    found, summary = map(json.loads, done.stdout.splitlines())
    assert done.returncode == (6 if severity == "critical" else 0)
    assert (found["check"], found["severity"], found["subject"]) == (check, severity, "server")
    assert sentence in found["text"]
    assert found["remedy"]
    assert summary["status"] == severity
    for name, value in SOUND.items():
        own_server.ask("CONFIG", "SET", name, value)
    (summary,) = map(json.loads, shell.ok(*words).splitlines())
    assert summary["status"] == "healthy"


def used(server: Server) -> int:
    info = server.ask("INFO", "memory").decode()
    return int(info.partition("used_memory:")[2].split()[0])


@pytest.mark.parametrize(
    ("seconds", "code", "severity"), [(0, 0, None), (-5, 0, "warning"), (90, 6, "critical")]
)
def test_a_clock_that_is_off_is_told(
    real_shell: Shell, seconds: int, code: int, severity: str | None
) -> None:
    shifted = (
        "import os, sys, time; real = time.time; "
        f"time.time = lambda: real() + {seconds}; "
        "from agentbus.commands._main import run; "
        "os._exit(run(sys.argv[1:]))"
    )

    real_shell.ok("speak", "hi")

    done = subprocess.run(
        [sys.executable, "-c", shifted, "health", "--json"],
        capture_output=True,
        env=real_shell.environment,
        cwd=real_shell.home,
        check=False,
    )

    clocks = [
        record
        for record in map(json.loads, done.stdout.splitlines())
        if record.get("check") == "clock"
    ]
    assert done.returncode == code
    assert [record["severity"] for record in clocks] == ([severity] if severity else [])
    if seconds:
        assert abs(clocks[0]["figure"] - abs(seconds)) < 1
        assert clocks[0]["remedy"] == "set both clocks by NTP"


def test_a_replica_is_no_place_for_a_bus(
    own_server: Server, shell: Shell, tmp_path: pathlib.Path
) -> None:
    with Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(own_server.port)) as replica:
        done = shell.run("health", "--json", "--url", replica.url)

    assert done.returncode == 6
    found = {one.get("check"): one for one in map(json.loads, done.stdout.splitlines())}
    assert found["role"]["remedy"] == "use the URL of the primary"


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        ("ip=10.0.0.2,port=6380,state=online,offset=7,lag=1", None),
        ("ip=10.0.0.2,port=6380,state=online,offset=7,lag=11", (11, 10)),
        ("ip=10.0.0.2,port=6380,state=wait_bgsave,offset=0,lag=0", (None, None)),
        ("ip=10.0.0.2,port=6380,state=online,offset=7", None),
        ("", None),
    ],
)
def test_a_replica_that_is_not_in_sync_is_told(replica: str, expected: Any) -> None:
    said = ServerInfo({"aof_enabled": "1", "role": "master", "slave0": replica}, "", None)

    found = [
        one
        for one in server_health.examine(said, Levels(0.8, 0.95), Levels(10, None))
        if one.severity is not None
    ]

    assert [(one.figure, one.threshold) for one in found] == ([expected] if expected else [])
    assert all(one.check == "replication" and "10.0.0.2:6380" in one.found for one in found)


# -- the shell --


def test_a_healthy_project_says_what_was_checked(real_shell: Shell, project: str) -> None:
    real_shell.ok("publish", "mail", "1")

    assert real_shell.ok("health") == (
        f"project {project} is healthy:"
        " 1 queue, 0 consumers, 0 workers, 0 event streams, the server\n"
    )


def test_warnings_are_exit_6_to_the_strict_alone(real_shell: Shell, project: str) -> None:
    real_shell.ok("publish", "mail", "--lines", stdin="x\n" * 101)

    lax, strict = real_shell.run("health"), real_shell.run("health", "--strict")

    assert (lax.returncode, strict.returncode) == (0, 6)
    assert lax.stdout.startswith("warning   lag: ")
    assert f"\nproject {project} has warnings: 0 critical, 1 warning; 1 queue, " in lax.stdout


def test_findings_are_lines_for_people_and_for_programs(real_shell: Shell, project: str) -> None:
    real_shell.ok("publish", "mail", "--lines", stdin="x\n" * 501)

    text, records = real_shell.run("health"), real_shell.run("health", "--json")

    line, last = text.stdout.splitlines()
    assert (text.returncode, records.returncode) == (6, 6)
    assert line.startswith("critical  lag: 'mail' has 501 tasks that no group has read")
    assert line.endswith("; start a worker: agentbus work mail -- CMD")
    assert last.startswith(f"project {project} is unhealthy: 1 critical, 0 warnings; 1 queue, ")
    found, summary = map(json.loads, records.stdout.splitlines())
    assert list(found) == [
        *("timestamp", "project", "check", "subject", "severity"),
        *("figure", "threshold", "text", "remedy"),
    ]
    assert list(summary) == [
        *("timestamp", "project", "status", "critical", "warnings"),
        *("queues", "consumers", "workers", "streams"),
    ]


def test_without_a_server_it_is_exit_1(real_shell: Shell) -> None:
    done = real_shell.run("health", "--url", "redis://127.0.0.1:1", "--deadline", "0.3")

    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("option", ["--every", "--timeout"])
def test_options_of_the_watch_want_the_watch(real_shell: Shell, option: str) -> None:
    assert real_shell.run("health", option, "1").returncode == 2


def test_a_watch_tells_what_changes_and_what_is_healthy_again(
    own_server: Server, shell: Shell
) -> None:
    watch = shell.start(
        *("health", "--watch", "--every", "0.1", "--json", "--deadline", "1"),
        *("--url", own_server.url),
    )
    assert watch.stdout is not None
    lines = (json.loads(line) for line in watch.stdout)

    assert next(lines)["status"] == "healthy"
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = next(lines)
    assert (found["check"], found["severity"]) == ("eviction", "critical")
    assert next(lines)["status"] == "critical"
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    again = next(lines)
    assert (again["check"], again["severity"]) == ("eviction", "healthy")
    assert next(lines)["status"] == "healthy"
    own_server.kill()
    assert next(lines)["check"] == "unreachable"
    assert next(lines)["status"] == "critical"
    own_server.start()
    assert next(lines)["severity"] == "healthy"
    assert next(lines)["status"] == "healthy"
    watch.send_signal(signal.SIGINT)
    assert watch.wait(30) == 0
    watch.communicate()


def test_a_watch_in_a_terminal_redraws_and_gives_the_terminal_back(real_shell: Shell) -> None:
    real_shell.ok("publish", "mail", "--lines", stdin="x\n" * 101)
    terminal = Terminal(real_shell, "health", "--watch", "--every", "0.1", "--strict")
    try:
        terminal.read_until("warning   lag: 'mail' has 101 tasks")
        terminal.read_until("start a worker: agentbus work mail -- CMD")

        real_shell.ok("work", "mail", "--drain", "--", "true")

        terminal.read_until("healthy: 1 queue")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_to_the_end()
        assert terminal.process.wait(60) == 0
        assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_watch_that_a_signal_ends_gives_the_terminal_back(
    shell: Shell, number: signal.Signals
) -> None:
    terminal = Terminal(shell, "health", "--watch")
    try:
        terminal.read_until("is healthy")

        terminal.process.send_signal(number)

        terminal.read_to_the_end()
        assert terminal.process.wait(60) == -number
        assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")
    finally:
        terminal.close()


def test_an_interrupted_watch_exits_as_its_last_look(real_shell: Shell, project: str) -> None:
    real_shell.ok("publish", "mail", "--lines", stdin="x\n" * 501)
    watch = real_shell.start("health", "--watch")
    assert watch.stdout is not None

    assert watch.stdout.readline().startswith("critical  lag: ")
    assert watch.stdout.readline().startswith(f"project {project} is unhealthy: ")
    watch.send_signal(signal.SIGINT)

    assert watch.wait(30) == 6
    watch.communicate()


def test_a_watch_with_a_timeout_ends_by_itself(real_shell: Shell) -> None:
    done = real_shell.run("health", "--watch", "--every", "0.1", "--timeout", "0.3")

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


# -- the config --


def test_a_project_sets_its_own_thresholds(configured: Configured) -> None:
    bus = configured(
        health={
            "lag": [5, 10],
            "queues": {"agent": {"lag": [1, "off"]}, "agent.bulk": {"lag": False}},
        }
    )
    for queue in ("mail", "agent.ada", "agent.bulk.x", "agents"):
        bus.queue(queue).publish_many(range(6))

    assert {one.subject: (one.severity, one.threshold) for one in findings(bus)} == {
        "mail": ("warning", 5),
        "agent.ada": ("warning", 1),
        "agents": ("warning", 5),
    }


def test_a_state_can_be_made_less_severe_or_left_out(configured: Configured) -> None:
    bus = configured(health={"quarantined": "warning"}, queues={"mail": {"bound": 1}})
    ask(bus, "HSET", bus.scope.keys.quarantined, "welcome", "{}")
    bus.queue("mail").publish(1)

    assert {one.check: one.severity for one in findings(bus)} == {
        "full": "critical",
        "quarantined": "warning",
    }
    assert findings(configured(health={"quarantined": "off", "full": False})) == []


def test_a_mistake_in_the_config_is_exit_2(real_shell: Shell) -> None:
    (real_shell.home / "config.yaml").write_text("health:\n  lagg: [1, 2]\n")
    real_shell.environment["AGENTBUS_CONFIG"] = str(real_shell.home / "config.yaml")

    done = real_shell.run("health")

    assert done.returncode == 2
    assert "the key 'lagg' of 'health' is unknown" in done.stderr
    assert "did you mean 'lag'?" in done.stderr
    # The other verbs do not read it.
    assert real_shell.run("list", "--queues").returncode == 0


def test_a_mistake_is_told_by_the_library_too(configured: Configured) -> None:
    with pytest.raises(ConfigError, match=r"'health\.clock' is"):
        configured(health={"clock": [30, 1]}).health()
