"""Completion in shells: of verbs, options, actions, and of what is on the bus."""

from __future__ import annotations

import pathlib
import re
import shlex
import socket
import subprocess

import pytest

import agentbus
from agentbus.commands._declare import VERBS, module
from agentbus.tasks import Flows, FlowTask, Schedules, chain
from tests import inprocess
from tests.servers import Server, Shell, client, program


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str):
    with agentbus.connect(real_url, project=project, agent="ada") as made:
        yield made


def completed(shell: Shell, *words: str, kind: str = "bash") -> list[str]:
    """Return what is offered for the last of these words."""
    asked = {
        "_AGENTBUS_COMPLETE": f"{kind}_complete",
        "COMP_WORDS": shlex.join(["agentbus", *words])
        if words[-1]
        else f"agentbus {shlex.join(words[:-1])} ",
        "COMP_CWORD": words[-1] if kind == "fish" else str(len(words)),
    }
    with inprocess.environment({**shell.environment, **asked}):
        done = inprocess.run()
    assert (done.code, done.err) == (0, b"")
    return done.out.decode().split("\n")[:-1] if done.out != b"\n" else []


def offered(shell: Shell, *words: str) -> list[str]:
    return [line.partition(",")[2] for line in completed(shell, *words)]


# -- the script --


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell, kind):
    script = shell.ok("completion", kind)

    assert "agentbus" in script
    assert f"{kind}_complete" in script


def test_completion_of_an_unknown_shell_is_a_usage_error(shell):
    assert shell.run("completion", "cmd").returncode == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ov"], ["overhear"]),
        (["a"], ["announce", "await"]),
        (["speak", "--top"], ["--topic"]),
        (["await", "x", "--until", "f"], ["free"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_verbs_options_and_choices_are_completed_quietly(shell, kind, words, expected):
    said = "\n".join(completed(shell, *words, kind=kind))

    assert [word for word in expected if re.search(rf"(?m)(^|,){word}\b", said)] == expected


BASH = """
{script}
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_agentbus_completion agentbus
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "words", "reply"),
    [
        ("agentbus overh", "agentbus overh", "overhear"),
        # Bash breaks words at colons, and replaces only what comes after the last one.
        ("agentbus overhear --topic shop:o", "agentbus overhear --topic shop : o", "orders"),
        ("agentbus overhear --topic shop:", "agentbus overhear --topic shop :", "orders"),
        ("agentbus overhear --topic=shop:o", "agentbus overhear --topic = shop : o", "orders"),
        ("agentbus await x --until=f", "agentbus await x --until = f", "free"),
    ],
)
def test_the_script_completes_in_bash(shell, bus, line, words, reply):
    bus.speak("hi", topic="shop:orders")
    script = BASH.format(script=shell.ok("completion", "bash"), line=shlex.quote(line), words=words)
    path = f"{pathlib.Path(program()).parent}:/usr/bin:/bin"

    done = subprocess.run(
        ["bash", "--norc", "-u", "-c", script],
        env={**shell.environment, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout.split(), done.stderr) == ([reply], "")


# -- values --


def test_what_is_on_the_bus_is_completed(shell, bus):
    bus.speak("green", topic="build")
    bus.announce("building")
    bus.jot("how", "make", tags=["make", "docs"])
    bus.queue("mail").publish("x")
    bus.subscribe("mail", lambda _task: 1 / 0, attempts=1, drain=True).run()
    (letter,) = bus.queue("mail").dead_letters()

    assert offered(shell, "speak", "hi", "--topic", "") == ["build", "coordination", "knowledge"]
    assert offered(shell, "overhear", "--topic", "bu") == ["build"]
    assert offered(shell, "overhear", "--topic", "deploy,bu") == ["deploy,build"]
    assert offered(shell, "await", "") == offered(shell, "satisfy", "bui") == ["building"]
    assert offered(shell, "announce", "--flag", "") == ["building"]
    assert offered(shell, "recall", "h") == offered(shell, "forget", "") == ["how"]
    assert offered(shell, "recall", "--tag", "") == ["docs", "make"]
    assert offered(shell, "recall", "--tag", "docs,m") == ["docs,make"]
    assert offered(shell, "publish", "") == offered(shell, "bus", "inspect", "m") == ["mail"]
    assert offered(shell, "dlq", "show", "mail", "") == [letter.id]
    assert offered(shell, "bus", "inspect", "mail", "--group", "") == ["default"]
    assert offered(shell, "whoami", "--agent", "") == offered(shell, "--agent", "") == ["ada"]


def test_actions_topics_of_help_and_reports_are_completed(shell):
    assert offered(shell, "dlq", "") == ["list", "show", "replay", "purge"]
    assert offered(shell, "events", "parked", "s") == ["show"]
    assert offered(shell, "archive", "comp") == ["compact"]
    assert offered(shell, "report", "l") == ["lag"]
    assert {"speak", "exit-codes"} <= set(offered(shell, "help", ""))
    assert completed(shell, "route", "x") == ["file,x"]


def test_the_options_before_and_after_the_verb_choose_the_project(shell, bus, real_url):
    with agentbus.connect(real_url, project=f"{bus.project}-2", agent="eve") as other:
        other.announce("deploying")
    project = ["--project", f"{bus.project}-2"]

    assert offered(shell, *project, "await", "") == ["deploying"]
    assert offered(shell, "await", *project, "") == ["deploying"]
    assert offered(shell, "await", "") == []


def test_the_projects_on_the_server_are_completed(shell, bus, real_url):
    bus.speak("hi")
    with agentbus.connect(real_url, project=f"{bus.project}-two", agent="eve") as other:
        other.speak("hi")
    both = [bus.project, f"{bus.project}-two"]

    assert sorted(offered(shell, "--project", bus.project)) == both
    assert offered(shell, "bus", "list", "--project-prefix", f"{bus.project}-") == both[1:]
    assert set(both) <= set(offered(shell, "speak", "--project", ""))


@pytest.mark.parametrize("name", ["$(reboot)", "a b", "`id`", "x;y", "-f", "é\u202e", "a'b", 'a"b'])
def test_a_name_that_a_shell_would_not_take_as_one_word_is_not_offered(shell, bus, name):
    bus.speak("hi", topic=name)
    bus.speak("hi", topic="build")

    assert offered(shell, "speak", "--topic", "") == ["build"]


def test_completion_changes_nothing_on_the_bus(shell, bus, real_url):
    bus.announce("building")
    with client(real_url) as plain:
        before = {key: plain.dump(key) for key in plain.keys(f"{bus.project}:*")}

        for words in (["await", ""], ["publish", ""], ["speak", "--topic", ""], ["recall", ""]):
            completed(shell, *words)

        assert {key: plain.dump(key) for key in plain.keys(f"{bus.project}:*")} == before


def test_the_names_of_schedules_are_completed(shell, bus):
    Schedules(bus).add("nightly", "mail", cron="@daily")

    assert offered(shell, "schedule", "pause", "") == ["nightly"]


def test_the_ids_of_flows_are_completed(shell, bus):
    Flows(bus).publish(chain(FlowTask(1, queue="mail")), id="order-17")

    assert offered(shell, "flow", "show", "") == ["order-17"]


def test_every_queue_and_flag_of_a_verb_is_completed():
    params = [(verb, param) for verb in VERBS for param in module(verb).VERB.params]

    assert [
        (verb, param.dest)
        for verb, param in params
        if param.metavar in ("QUEUE", "Q") and param.values != "queue"
    ] == []
    assert [
        (verb, param.dest)
        for verb, param in params
        if "--topic" in param.names and param.values != "topic"
    ] == []


# -- without a server --


def test_without_a_server_nothing_is_offered_and_nothing_is_started(tmp_path):
    shell = Shell(tmp_path / "home")

    assert completed(shell, "speak", "--topic", "") == []
    assert not (shell.home / ".local").exists()


def test_the_embedded_server_is_asked_where_it_runs(shell, project):
    away = {**shell.environment}
    del away["AGENTBUS_URL"]
    shell.environment = away
    shell.ok("announce", "building")
    try:
        assert offered(shell, "await", "") == ["building"]
    finally:
        shell.ok("server", "stop")


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "unix:///nowhere",
        "nonsense://",
        "redis://nowhere.invalid",
        "memory://x",
    ],
)
def test_a_server_that_is_away_is_no_error(shell, url):
    shell.environment["AGENTBUS_URL"] = url

    assert completed(shell, "await", "") == []


def test_a_server_that_never_answers_does_not_hold_the_shell_up(shell):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shell.environment["AGENTBUS_URL"] = f"redis://127.0.0.1:{silent.getsockname()[1]}"

        assert completed(shell, "await", "") == []


def test_a_server_that_does_not_know_the_password_is_no_error(own_server: Server, shell):
    own_server.ask("CONFIG", "SET", "requirepass", "sesame")
    shell.environment["AGENTBUS_URL"] = own_server.url

    assert completed(shell, "await", "") == []


@pytest.mark.parametrize(
    "words", [["speka", ""], ["speak", "--topik", ""], ["dlq", "lst", ""], ["--x", ""]]
)
def test_a_mistake_on_the_line_is_no_error(shell, words):
    completed(shell, *words)


def test_settings_that_are_wrong_are_no_error(shell):
    (shell.home / "wrong.yaml").write_text("no: such: thing")
    shell.environment["AGENTBUS_CONFIG"] = str(shell.home / "wrong.yaml")

    assert completed(shell, "await", "") == []
    assert offered(shell, "ov") == ["overhear"]
