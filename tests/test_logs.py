"""The operations log: one line of JSON for each verb, nothing secret in it, and never in the way."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest

import agentbus
import agentbus.aio
from agentbus.commands._declare import VERBS, module
from agentbus.core import loggers, oplog
from tests.servers import Shell, all_exit, program
from tests.test_races import until
from tests.tiers import nightly

SETTINGS = pathlib.Path(__file__).parent.parent / "docs/reference/settings.md"
KEYS = {"time", "level", "verb", "agent", "project", "key", "duration_ms", "outcome", "code"}


def log_of(shell: Shell) -> pathlib.Path:
    return shell.home / ".local" / "state" / "agentbus" / "agentbus.log"


def lines(shell: Shell) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_of(shell).read_text().splitlines()]


def test_each_verb_leaves_one_line(real_shell, project):
    real_shell.ok("speak", "hi", "--topic", "build")
    real_shell.ok("jot", "how", "make")
    real_shell.ok("announce", "building")
    real_shell.run("recall", "missing")
    real_shell.ok("overhear", "--topic", "x", "--topic", "y")
    real_shell.ok("list", "--flags")

    found = lines(real_shell)

    assert all(set(line) == KEYS for line in found)
    assert [(line["verb"], line["key"], line["outcome"], line["code"]) for line in found] == [
        ("speak", "build", "ok", 0),
        ("jot", "how", "ok", 0),
        ("announce", "building", "ok", 0),
        ("recall", "missing", "NotFound", 5),
        ("overhear", "x,y", "ok", 0),
        ("list", None, "ok", 0),
    ]
    assert {(line["agent"], line["project"]) for line in found} == {("ada", project)}
    assert [line["level"] for line in found] == ["info"] * 3 + ["warning"] + ["info"] * 2
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line["time"]))
        assert isinstance(line["duration_ms"], float)
        assert line["duration_ms"] > 0


# -- verbs that wait --


def test_a_verb_that_waits_leaves_a_line_when_it_begins_and_one_when_it_ends(real_shell):
    real_shell.run("await", "a", "--flag", "b", "--timeout", "0.01")
    real_shell.ok("hold", "deploy", "--", "true")
    real_shell.ok("announce", "taken", "--wait", "1")
    real_shell.ok("overhear", "--follow", "--timeout", "0.01")

    found = lines(real_shell)

    assert [(line["verb"], line["key"], line["outcome"]) for line in found] == [
        *(("await", "a,b", "began"), ("await", "a,b", "TimedOut")),
        *(("hold", "deploy", "began"), ("hold", "deploy", "ok")),
        *(("announce", "taken", "began"), ("announce", "taken", "ok")),
        *(("overhear", "", "began"), ("overhear", "", "ok")),
    ]
    for begun, ended in zip(found[::2], found[1::2], strict=True):
        assert begun["pid"] == ended["pid"]
        assert set(begun) == KEYS - {"duration_ms", "code"} | ({"pid", "timeout"} & set(begun))
        assert set(ended) == KEYS | {"pid"}
    assert found[0]["timeout"] == 0.01


def test_garbage_is_collected_as_often_as_in_any_program_while_a_verb_waits(real_shell):
    (real_shell.home / "handling.py").write_text(
        "import gc\ndef handle(_): return gc.get_threshold()"
    )
    task = real_shell.ok("publish", "mail", "{}").strip()
    real_shell.ok("work", "mail", "--handler", "handling:handle", "--drain")
    own = subprocess.check_output(
        [sys.executable, "-c", "import gc; print(list(gc.get_threshold()))"]
    )

    assert json.loads(real_shell.ok("result", task)) == json.loads(own)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        *(("await never", one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)),
        ("lease zz.py --wait 60 --agent bob", signal.SIGTERM),
        ("task take review --wait 60", signal.SIGTERM),
    ],
)
def test_a_wait_that_a_signal_ends_leaves_a_line(real_shell, line, number):
    if line.startswith("lease"):
        real_shell.ok("lease", "zz.py", "--log-level", "off")
    waiting = real_shell.start(*line.split())
    until(lambda: log_of(real_shell).exists() and lines(real_shell))
    waiting.send_signal(number)
    waiting.communicate(timeout=60)

    begun, ended = lines(real_shell)

    name = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (begun["outcome"], ended["outcome"], ended["code"]) == ("began", name, 128 + number)
    assert waiting.returncode == (130 if number == signal.SIGINT else -number)


@pytest.mark.parametrize(
    "line",
    [
        *("schedule run", "metrics --raw --follow"),
        *map(nightly, ("top --json --timeout 9", "web --timeout 9")),
    ],
)
def test_a_verb_that_runs_until_a_signal_leaves_a_line_when_it_begins(real_shell, line):
    running = real_shell.start(*line.split())
    until(lambda: log_of(real_shell).exists() and lines(real_shell))
    begun = lines(real_shell)[0]
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)

    *_, ended = lines(real_shell)

    assert (begun["verb"], begun["outcome"]) == (line.split()[0], "began")
    assert ended["pid"] == begun["pid"] == running.pid


def test_the_reference_lists_the_verbs_that_wait():
    (listed,) = re.findall(r"A verb that waits \((.*?)\)", SETTINGS.read_text(), re.DOTALL)

    expected = set()
    for verb in (module(name).VERB for name in VERBS):
        if verb.waits is None:
            continue
        options = {param.dest: param.names[0] for param in verb.params if param.names}
        for how in verb.waits.split() or [""]:
            expected.add(f"{verb.name} {options.get(how, how)}".strip())
    assert set(re.findall("`(.+?)`", listed)) == expected


def test_the_line_of_a_worker_counts_what_it_did_and_what_failed(real_shell):
    real_shell.ok("publish", "mail", "--lines", stdin="1\n2\n3\n")
    program = ("--", "sh", "-c", 'read n; [ "$n" != 2 ] || exit 65; cat > /dev/null')
    assert real_shell.run("work", "mail", "--drain", *program).returncode == 8

    *_, ended = (line for line in lines(real_shell) if line["verb"] == "work" and "code" in line)

    assert (ended["done"], ended["failed"]) == (2, 1)


# -- debug --


def test_debug_logs_each_exchange_with_the_server(real_shell, real_url, project):
    real_shell.ok("speak", "sesame-7351", "--log-level", "debug")
    waiting = real_shell.start("await", "built", "--log-level", "debug")
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        until(bus.waiters)
        bus.satisfy("built")
    all_exit([waiting])
    assert waiting.returncode == 0

    found = lines(real_shell)

    (spoke,) = [line for line in found if line.get("step") == "speak"]
    assert (spoke["verb"], spoke["outcome"], spoke["sending"]) == ("speak", "ok", 1)
    assert isinstance(spoke["duration_ms"], float)
    waited = [line for line in found if line.get("step") == "wait"]
    assert waited
    assert all("waits_s" in line for line in waited)
    assert "sesame-7351" not in log_of(real_shell).read_text()


def test_debug_logs_each_retry(real_shell):
    url = "redis://127.0.0.1:1"
    real_shell.run("speak", "hi", "--deadline", "0.3", "--log-level", "debug", "--url", url)

    steps = [line for line in lines(real_shell) if line.get("step") == "speak"]

    sendings = [line["sending"] for line in steps]
    assert sendings == sorted(sendings)
    assert sendings[-1] > 1
    assert {line["outcome"] for line in steps} == {"Connection refused"}


async def test_debug_of_the_library_goes_to_its_logger(real_url, project, caplog, monkeypatch):
    monkeypatch.setenv("AGENTBUS_LOG_LEVEL", "debug")
    caplog.set_level(logging.DEBUG, "agentbus")

    with agentbus.connect(real_url, project=project) as bus:
        bus.speak("hi")
    async with agentbus.aio.connect(real_url, project=project) as abus:
        await abus.jot("how", "make")

    steps = {getattr(record, "step", None) for record in caplog.records}
    assert {"speak", "jot"} <= steps


def test_a_line_holds_no_payload_and_no_password(real_shell, valkey):
    secret = "sesame-7351"
    big = real_shell.home / "big"
    big.write_text(secret * 40_000)
    url = valkey.tcp_url.replace("redis://", f"redis://nobody:{secret}@")
    for words in (
        ("speak", secret),
        ("speak", "--msg", secret),
        ("speak", f"@{big}"),
        ("speak", f"{secret}\udcff"),
        ("jot", "key", secret),
        ("jot", "key", "--value", secret, "--if-absent"),
        ("satisfy", "flag", "--note", secret),
        ("speak", "-", "--json"),
        ("speak", "hi", "--url", url),
        ("speak", "hi", "--url", f"redis://:{secret}@h:port"),
        ("whoami", "--url", url),
    ):
        real_shell.run(*words, stdin=secret)

    assert secret not in log_of(real_shell).read_text()
    assert len(lines(real_shell)) >= 9


def test_the_log_is_private(real_shell):
    real_shell.ok("whoami")

    assert stat.S_IMODE(log_of(real_shell).stat().st_mode) == 0o600
    assert stat.S_IMODE(log_of(real_shell).parent.stat().st_mode) == 0o700


def test_a_log_that_others_could_read_is_made_private(real_shell):
    real_shell.ok("whoami")
    log_of(real_shell).chmod(0o666)

    real_shell.ok("whoami")

    assert stat.S_IMODE(log_of(real_shell).stat().st_mode) == 0o600
    assert len(lines(real_shell)) == 2


def bait(path: pathlib.Path, kind: str) -> pathlib.Path:
    """Put something in the log's place; return the file that must stay as it is."""
    victim = path.parent / "victim"
    victim.write_text("mine")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(path.parent / "created-through-the-link")
    elif kind == "hard link":
        path.hardlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/null")
    return victim


KINDS = ["link", "dangling link", "hard link", "fifo", "directory", "socket", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_left_alone_and_the_command_succeeds(kind, real_shell):
    path = real_shell.home / "log"
    victim = bait(path, kind)
    before = path.lstat().st_mode

    out = real_shell.ok("speak", "hi", env={"AGENTBUS_LOG": str(path)})

    assert re.fullmatch(r"\d+-\d+\n", out)
    assert victim.read_text() == "mine"
    assert path.lstat().st_mode == before
    assert not (real_shell.home / "created-through-the-link").exists()


def test_a_fifo_that_somebody_reads_gets_nothing(real_shell):
    path = real_shell.home / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    real_shell.ok("speak", "hi", env={"AGENTBUS_LOG": str(path)})

    with contextlib.suppress(BlockingIOError):
        assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_foreign_file_is_left_alone(real_shell):
    path = real_shell.home / "log"
    path.write_text("theirs")
    os.chown(path, 4242, 4242)

    real_shell.ok("speak", "hi", env={"AGENTBUS_LOG": str(path)})

    assert path.read_text() == "theirs"


@pytest.mark.parametrize("place", ["/proc/nowhere/log", "/dev/null/log", "/", "", "x" * 300])
def test_a_log_that_cannot_be_written_fails_no_command(place, real_shell):
    done = real_shell.run("speak", "hi", env={"AGENTBUS_LOG": place})

    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_fails_no_command(real_shell):
    # Nothing can be written to a file of a process that may not make files grow.
    script = 'ulimit -f 0; exec "$0" "$@"'
    real_shell.ok("whoami")
    before = log_of(real_shell).read_text()
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {script}", program(), "whoami"],
        env=real_shell.environment,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert log_of(real_shell).read_text().startswith(before)


def test_a_directory_that_is_read_only_fails_no_command(real_shell):
    # Root may write anywhere, so the place is one where nobody may: a file's place.
    state = real_shell.home / ".local"
    state.write_text("a file where a directory should be")

    assert real_shell.ok("speak", "hi")
    assert state.read_text() == "a file where a directory should be"


def test_a_log_that_grew_too_long_is_set_aside(real_shell):
    real_shell.ok("whoami")
    path = log_of(real_shell)
    with path.open("r+b") as file:
        file.truncate(10 * 1024 * 1024 + 1)

    real_shell.ok("whoami")

    aside = path.with_name("agentbus.log.1")
    assert aside.stat().st_size > 10 * 1024 * 1024
    assert len(lines(real_shell)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_log_goes_where_agentbus_log_says(real_shell):
    path = real_shell.home / "deep" / "er" / "own.log"

    real_shell.ok("whoami", env={"AGENTBUS_LOG": str(path)})

    assert json.loads(path.read_text())["verb"] == "whoami"
    assert not log_of(real_shell).exists()


@pytest.mark.parametrize(
    ("level", "verbs"),
    [
        ("debug", ["whoami", "recall"]),
        ("info", ["whoami", "recall"]),
        ("warning", ["recall"]),
        ("error", []),
        ("off", []),
    ],
)
def test_the_level_says_what_is_kept(level, verbs, real_shell):
    real_shell.ok("whoami", "--log-level", level)
    real_shell.run("recall", "missing", env={"AGENTBUS_LOG_LEVEL": level})

    found = lines(real_shell) if log_of(real_shell).exists() else []
    assert [line["verb"] for line in found if "step" not in line] == verbs
    assert any("step" in line for line in found) == (level == "debug")


@pytest.mark.parametrize("level", ["warning", "off"])
def test_a_verb_of_which_nothing_is_kept_opens_no_log(level, real_shell):
    real_shell.ok("jot", "key", "value", "--log-level", level)
    assert not log_of(real_shell).exists()


def test_hostile_names_stay_on_one_line(real_shell):
    name = 'a"b\\c\u2028d\u202ee'
    real_shell.ok("announce", name, "--agent", name)

    (line,) = lines(real_shell)

    assert (line["key"], line["agent"]) == (name, name)
    assert log_of(real_shell).read_text().isascii()


def test_many_processes_write_whole_lines(real_shell):
    processes = [real_shell.start("jot", f"k{i}", "v") for i in range(20)]
    assert [process.wait() for process in processes] == [0] * 20
    for process in processes:
        process.communicate()

    assert {line["key"] for line in lines(real_shell)} == {f"k{i}" for i in range(20)}


def test_the_library_logs_through_logging(bus, project, tmp_path):
    path = tmp_path / "own.log"
    handler = loggers.json_handler(str(path))
    logger = logging.getLogger("agentbus")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        bus.speak("sesame")
        with pytest.raises(agentbus.NotFound):
            bus.recall("missing")
    finally:
        logger.removeHandler(handler)
        handler.close()
        handler.stream.close()

    said, missed = map(json.loads, path.read_text().splitlines())
    assert (said["verb"], said["outcome"], said["level"]) == ("speak", "ok", "INFO")
    assert (missed["verb"], missed["outcome"], missed["level"]) == ("recall", "NotFound", "WARNING")
    assert said["agent"] == "ada"
    assert said["project"] == project
    assert "sesame" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_publish_is_debug_with_its_queue_and_id(bus, caplog):
    queue = bus.queue("mail to: ada")
    with caplog.at_level("DEBUG", "agentbus"):
        ids = [queue.publish(1), *queue.publish_many([2, 3])]

    told = [one for one in caplog.records if one.verb == "publish"]
    assert [(one.levelname, one.queue, one.id) for one in told] == [
        ("DEBUG", "mail to: ada", task) for task in ids
    ]
    assert told[0].getMessage() == f"publish mail to: ada {ids[0]}"
    caplog.clear()
    with caplog.at_level("INFO", "agentbus"):
        queue.publish(4)
    assert caplog.records == []


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"batch": True}])
def test_each_failed_attempt_is_a_warning_with_its_traceback_and_a_burial_an_error(
    bus, caplog, options
):
    task = bus.queue("mail").publish(1)

    def handle(_delivery):
        raise ValueError("no such mailbox")

    backoff = agentbus.Backoff(0.0, 0.0)
    with caplog.at_level("WARNING", "agentbus"):
        bus.subscribe("mail", handle, attempts=2, backoff=backoff, drain=True, **options).run()

    told = [one for one in caplog.records if getattr(one, "verb", "") == "work"]
    assert [(one.levelname, one.outcome, one.attempt) for one in told] == [
        ("WARNING", "failed", 1),
        ("WARNING", "failed", 2),
        ("ERROR", "dead", 2),
    ]
    assert {(one.queue, one.group, one.id) for one in told} == {("mail", "default", task)}
    assert {one.error for one in told} == {"ValueError: no such mailbox"}
    assert [isinstance(one.exc_info and one.exc_info[1], ValueError) for one in told] == [
        *(True, True, False),
    ]


def test_a_failing_handler_is_in_the_operations_log(real_shell):
    (real_shell.home / "handlers.py").write_text(
        "def send(delivery):\n    raise ValueError('no such mailbox')\n"
    )
    task = real_shell.ok("publish", "mail", "1").strip()

    options = ("--attempts", "1", "--drain", "--handler", "handlers:send")
    real_shell.run("work", "mail", *options)

    _, warned, buried, ended = [line for line in lines(real_shell) if line["verb"] == "work"]
    assert (warned["level"], warned["id"], warned["attempt"]) == ("warning", task, 1)
    assert warned["error"] == "ValueError: no such mailbox"
    assert 'handlers.py", line 2, in send' in warned["traceback"]
    assert (buried["level"], buried["outcome"], buried["id"]) == ("error", "dead", task)
    assert "traceback" not in buried
    assert ended["key"] == "mail"


def test_the_library_says_nothing_where_nobody_listens(bus, capsys):
    bus.speak("hi")

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["link", "hard link", "directory"])
def test_a_handler_follows_no_link_either(kind, tmp_path):
    path = tmp_path / "log"
    bait(path, kind)

    with pytest.raises(OSError):  # noqa: PT011 (the operating system says which)
        loggers.json_handler(str(path))


def test_quoted_text_is_json():
    for text in ("", "plain", 'a"b', "a\\b", "a\nb", "\x7f", "é", "\U0001f600", "\u2028", "\ud800"):
        assert json.loads(oplog.quoted(text)) == text
        assert oplog.quoted(text).isprintable()
        assert oplog.quoted(text).encode()


def test_quoted_text_keeps_what_a_reader_can_read():
    assert oplog.quoted("Grüße 🚀 👩\u200d👧") == '"Grüße 🚀 👩\u200d👧"'
