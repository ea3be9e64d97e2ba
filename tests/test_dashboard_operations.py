"""The pages of a dashboard about workers, events, health checks, and the files of reports."""

from __future__ import annotations

import os
import pathlib

import orjson
import pytest

from agentbus.admin.health import thresholds
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard, Pages, RowRange, check_list, report_files
from agentbus.errors import AgentBusError, NotFound, UsageError
from tests.servers import ask


def register(bus, worker, queue, *, silent=0.0, state="working", **more):
    """Write what a worker writes of itself."""
    keys = Keys(bus.project)
    seconds, microseconds = map(int, ask(bus, "TIME"))
    now = seconds + microseconds / 1e6
    ask(bus, "ZADD", keys.beats, round((now - silent) * 1000), worker)
    about = {"agent": "mule", "queue": queue, "group": "default", "state": state} | more
    ask(bus, "HSET", keys.beat(worker), *(str(word) for pair in about.items() for word in pair))


def report(bus, role, **figures):
    """Write what a relay or a consumer reports."""
    words = {"kind": "events", "version": 1, "role": role, "stream": "orders"} | figures
    pairs = [word for pair in words.items() for word in pair]
    ask(bus, "XADD", Keys(bus.project).metrics, "*", *pairs)


# -- workers --


def test_workers_are_listed_with_the_lag_of_their_groups(bus):
    bus.queue("mail").publish_many(range(5))
    bus.queue("mail").fetch(count=2)
    register(bus, "w1", "mail", running=2, done=9)
    register(bus, "w2", "mail", silent=60)
    pages = Pages(bus)

    found = pages.workers()

    assert [(one.worker, one.alive, one.running, one.lag) for one in found.workers] == [
        ("w1", True, 2, 5),
        ("w2", False, 0, 5),
    ]
    assert found.states == {"working": 1, "paused": 0, "stopping": 0, "dead": 1}
    assert [one.worker for one in pages.workers(state="dead").workers] == ["w2"]


def test_workers_are_paged_and_filtered(bus):
    for number in range(6):
        register(bus, f"w{number}", "mail" if number < 4 else "other", host=f"HOST{number}")
    pages = Pages(bus)

    assert [one.worker for one in pages.workers(RowRange(match="host5")).workers] == ["w5"]
    found = pages.workers(RowRange(match="mail", offset=2, limit=1))
    assert (found.matching, len(found.workers)) == (4, 1)
    with pytest.raises(UsageError, match="the state is 'idle'"):
        pages.workers(state="idle")


# -- events --


def test_event_streams_have_the_last_reports_and_readers(bus):
    keys = Keys(bus.project)
    ask(bus, "XADD", keys.events("orders"), "*", "type", "paid")
    ask(bus, "HSET", keys.event_readers("orders"), "welcome", "5-0", "reader:archive", "none")
    report(bus, "relay", lag_ms=20, lag_events_count=3)
    report(bus, "welcome", lag_ms=40, lag_events_count=4)

    (found,) = Pages(bus).events().streams

    assert (found.stream, found.events) == ("orders", 1)
    assert found.last is not None
    assert found.relay is not None
    assert (found.relay.lag_events, found.relay.lag_ms) == (3, 20)
    assert [(one.role, one.lag_events) for one in found.consumers] == [("welcome", 4)]
    assert found.readers == {"welcome": "5-0", "reader:archive": "none"}


def test_a_stream_with_a_colon_in_its_name_is_one_stream(bus):
    ask(bus, "XADD", Keys(bus.project).events("shop:orders"), "*", "type", "paid")
    report(bus, "relay", stream="shop:orders", lag_ms=0, lag_events_count=0)

    (found,) = Pages(bus).events().streams

    assert (found.stream, found.events, found.relay is None) == ("shop:orders", 1, False)


def test_a_consumer_is_taken_out_of_quarantine(bus):
    why = {"stream": "orders", "reason": "crash_loop", "quarantined_at": "now", "last_error": "no"}
    key = Keys(bus.project).quarantined
    ask(bus, "HSET", key, "welcome", orjson.dumps(why), "other", "not JSON")
    pages = Pages(bus)

    first, second = pages.events().quarantined
    assert (first.consumer, second.consumer) == ("other", "welcome")
    assert (second.stream, second.reason, second.error) == ("orders", "crash_loop", "no")
    assert pages.release_consumer("welcome") == "welcome"
    assert ask(bus, "HKEYS", key) == [b"other"]
    with pytest.raises(NotFound, match="no consumer welcome is in quarantine"):
        pages.release_consumer("welcome")


# -- health --


def test_every_check_is_listed_with_its_thresholds(bus):
    bus.queue("mail").publish_many(range(150))
    bus.queue("mail").fetch(count=1)

    found = Pages(bus).checks()

    by_name = {one.check: one for one in found.checks}
    assert set(thresholds.CHECKS) <= set(by_name) <= set(check_list.ABOUT)
    lag = by_name["lag"]
    assert (lag.warning, lag.critical, lag.state, lag.findings[0].figure) == (
        *(100, 500, "warning"),
        149,
    )
    assert (by_name["idle"].state, by_name["idle"].findings) == ("ok", ())
    assert by_name["clock"].value.endswith("this host's")
    assert {one.text for check in found.checks for one in check.findings} == {
        one.text for one in found.health.findings
    }


def test_a_finding_of_a_check_without_thresholds_is_listed(bus):
    ask(bus, "SET", Keys(bus.project).metrics, "text")

    (first, *_) = Pages(bus).checks().checks

    assert (first.check, first.state, first.warning) == ("foreign_key", "critical", None)


def test_checks_beside_a_dashboard_are_those_of_its_verdict(bus):
    dashboard = Dashboard(bus)
    found = dashboard.snapshot().health

    assert Pages(bus, dashboard).checks().health is found


def test_a_check_that_found_nothing_shows_its_worst_value(bus):
    bus.queue("mail").publish_many(range(7))
    bus.queue("other").publish(1)
    report(bus, "relay", lag_ms=20, lag_events_count=3)

    by_name = {one.check: one for one in Pages(bus).checks().checks}

    assert by_name["lag"].value == "at most 7, in mail"
    assert by_name["dead_letters"].value == "none"
    assert by_name["lag_events"].value == "at most 3 events"


def test_a_check_that_the_config_turns_off_is_off(connect, tmp_path, monkeypatch):
    path = tmp_path / "bus.yaml"
    path.write_text("health: {lag: off, full: off, idle: [5, off]}\n")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(path))

    by_name = {one.check: one for one in Pages(connect()).checks().checks}

    assert (by_name["lag"].state, by_name["full"].state) == ("off", "off")
    assert (by_name["idle"].warning, by_name["idle"].critical) == (5, None)


async def test_an_async_bus_has_the_same_operations(abus):
    pages = Pages(abus)

    assert (await pages.workers()).workers == ()
    assert (await pages.events()).streams == ()
    assert (await pages.checks()).health.queues == 0


# -- reports --


def test_reports_of_a_directory_are_listed_newest_first(tmp_path: pathlib.Path):
    (tmp_path / "old.html").write_text("old")
    (tmp_path / "new.html").write_text("newer")
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "link.html").symlink_to("/etc/passwd")
    os.utime(tmp_path / "old.html", (1, 1))

    found = report_files.listed(str(tmp_path))

    assert [(one.name, one.size) for one in found] == [("new.html", 5), ("old.html", 3)]
    assert report_files.read(str(tmp_path), "new.html") == b"newer"


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.html", "/etc/passwd", "link.html", "folder.html", "pipe.html", "notes.txt"),
        *("deep/inner.html", "", ".", "..", "none.html", "new.html\0", "new.html/"),
    ],
)
def test_nothing_but_a_report_of_the_directory_is_read(tmp_path: pathlib.Path, name):
    directory = tmp_path / "reports"
    (directory / "folder.html").mkdir(parents=True)
    (directory / "deep").mkdir()
    (tmp_path / "secret.html").write_text("secret")
    (directory / "deep/inner.html").write_text("secret")
    (directory / "notes.txt").write_text("secret")
    (directory / "new.html").write_text("new")
    (directory / "link.html").symlink_to(tmp_path / "secret.html")
    os.mkfifo(directory / "pipe.html")

    with pytest.raises(NotFound, match="there is no report"):
        report_files.read(str(directory), name)


def test_a_directory_that_cannot_be_read_is_an_error_in_a_sentence(tmp_path: pathlib.Path):
    for act in (report_files.listed, lambda where: report_files.read(where, "a.html")):
        with pytest.raises(AgentBusError, match="cannot be read"):
            act(str(tmp_path / "none"))


def test_a_file_that_report_did_not_write_is_refused_by_its_size(tmp_path: pathlib.Path):
    (tmp_path / "large.html").write_bytes(b"x" * (report_files.LARGEST + 1))

    with pytest.raises(AgentBusError, match="more than 2,000,000 bytes"):
        report_files.read(str(tmp_path), "large.html")


def test_no_script_but_that_of_report_runs_in_a_report():
    from agentbus.pipeline.reports.templates import _digest
    from tests.source_tree import PACKAGE

    script = (PACKAGE / "pipeline/reports/page.js").read_text()

    assert f"script-src '{_digest(script)}'" in report_files.policy()
    assert report_files.policy().startswith("sandbox allow-scripts; default-src 'none'")
