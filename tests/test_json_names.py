"""JSON fields have one name for one thing in all verbs; the names of 0.1.0 stay beside for one release."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

import agentbus
from agentbus.commands._bare import actions_of
from agentbus.commands._declare import VERBS, module
from tests.servers import Shell

REFERENCE = pathlib.Path(__file__).parent.parent / "docs/reference"
CLI = (REFERENCE / "cli.md").read_text()
PAGE = REFERENCE / "migration-0.2.md"


def section() -> str:
    found = re.search(
        r"^## JSON fields$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, "the migration page has no section on JSON fields"
    return found[1]


def renamed() -> dict[str, dict[str, str]]:
    """Return by verb the old names, each with its new one, as the page has them."""
    rows = re.findall(r"^\| (`.*?`) \| `(\w+)` \| `(\w+)` \|", section(), re.MULTILINE)
    found: dict[str, dict[str, str]] = {}
    for verbs, old, new in rows:
        for verb in re.findall(r"`([^`]+)`", verbs):
            found.setdefault(verb, {})[old] = new
    return found


@pytest.fixture
def shell(real_shell: Shell, real_url: str, project: str) -> Shell:
    """A shell on a bus that has something of everything."""
    with agentbus.connect(real_url, project=project, agent="eve") as bus:
        bus.jot("how", "make", tags=["make"])
        bus.satisfy("built", note="ok")
        queue = bus.queue("mail")
        queue.publish("bad")
        bus.subscribe("mail", lambda _: 1 / 0, attempts=1, drain=True).run()
        queue.publish("x")
    return real_shell


def records(shell: Shell, *words: str, code: int = 0, **options: Any) -> list[dict[str, Any]]:
    done = shell.run("--json", *words, **options)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


LINES = {
    "jot": ["jot", "key", "value"],
    "recall": ["recall", "how"],
    "list": ["list"],
    "await": ["await", "built"],
    "publish": ["publish", "other", "x"],
    "work": ["work", "mail", "--drain", "--", "true"],
    "bus inspect": ["bus", "inspect", "mail"],
    "dlq list": ["dlq", "list", "mail"],
    "pause": ["pause", "mail"],
    "halt": ["halt"],
    "agent pause": ["agent", "pause", "eve"],
    "whoami": ["whoami"],
    "metrics --raw": ["metrics", "--raw"],
    "health": ["health"],
}


@pytest.mark.parametrize("verb", LINES)
def test_a_field_that_was_renamed_is_there_by_both_names(shell, verb):
    names = renamed()[verb]

    found = records(shell, *LINES[verb])

    assert found
    for record in found:
        assert {old: record[new] for old, new in names.items()} == {
            old: record[old] for old in names
        }


def test_the_results_of_tasks_have_both_names(shell):
    task = shell.ok("publish", "sums", "x").strip()
    shell.ok("work", "sums", "--drain", "--", "echo", "7")

    assert records(shell, "result", task) == [{"task_id": task, "result": 7, "id": task}]
    assert renamed()["result"] == renamed()["ask"] == {"id": "task_id"}


def test_a_worker_is_last_seen_by_both_names(shell, real_url, project):
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        with bus.subscribe("mail", lambda _: None) as worker:
            worker.run_once()
            worker._gate.beat()
            found = [one for one in records(shell, "agent", "list") if "worker" in one]

    assert found
    assert all(one["last_seen"] == one["seen"] for one in found)
    assert renamed()["agent list"] == {"seen": "last_seen"}


def test_no_help_promises_an_old_name():
    old = {
        (verb.split()[0], name): new for verb, names in renamed().items() for name, new in names.items()
    }  # fmt: skip
    # Ids of messages, letters and entries. How a rule was found. Task ids, not times.
    kept = {("dlq", "id"), ("bus", "id"), ("metrics", "id"), ("route", "by"), ("events", "id")}

    assert [
        (verb, name) for verb, name in old if (verb, name) not in kept and name in promised(verb)
    ] == []


def promised(verb: str) -> set[str]:
    """Return the fields that the help of a verb promises, and its section of the reference describes."""
    _, _, told = module(verb).VERB.text.partition("JSON:")
    words = re.findall(r"\b[a-z]+(?:_[a-z]+)*\b", re.sub(r"\(.*?\)", "", told.split(".")[0]))
    described = re.search(rf"^### {verb}$(.*?)(?=^##|\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert described
    actions = {word for usage in actions_of(module(verb).VERB) for word in usage.split()}
    return ({*words} & {*re.findall(r"`(\w+)`", described[1])}) - actions


def test_the_page_lists_every_field_of_every_verb():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section(), re.MULTILINE))

    assert [
        (verb, name)
        for verb in VERBS
        for name in promised(verb)
        if f"`{name}`" not in rows.get(verb, "")
    ] == []
