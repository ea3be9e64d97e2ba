"""What errors advise: Python in Python, the shell in a shell."""

from __future__ import annotations

import ast
import json
import re

import pytest

import agentbus
from agentbus.errors import AgentBusError
from tests.servers import Shell
from tests.source_tree import nodes

# These look after the embedded server, or install a package: there is no call for that.
ONLY_IN_A_SHELL = re.compile(r"'agentbus server \w+'|pip install( --upgrade)?")


def advice(keyword: str, *, commands: bool) -> dict[str, str]:
    """Return the texts of all arguments of this name, by where they stand."""
    return {
        f"{module}:{argument.value.lineno}": "".join(
            part.value if isinstance(part, ast.Constant) else " "
            for part in ast.walk(argument.value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
        for module, call in nodes()
        if isinstance(call, ast.Call) and module.startswith("agentbus.commands") is commands
        for argument in call.keywords
        if argument.arg == keyword
    }


CALL = re.compile(r"\bbus\.|\w\(|=True")
# What is put into clients is installed by a command alone, too.
COMMANDS = ("agentbus.agents.install.",)


def test_a_hint_of_the_library_names_no_verb_and_no_option_of_the_shell():
    said = advice("hint", commands=False)

    assert len(said) > 300
    assert {
        place: text
        for place, text in said.items()
        if not place.startswith(COMMANDS)
        and re.search(r"--[a-z]|\bagentbus [a-z]", ONLY_IN_A_SHELL.sub("", text))
    } == {}


def test_a_hint_for_the_shell_names_no_call():
    said = {**advice("shell_hint", commands=False), **advice("hint", commands=True)}

    assert len(advice("shell_hint", commands=False)) > 30
    assert {place: text for place, text in said.items() if CALL.search(text)} == {}


# Only programs in Python meet the errors of these modules.
PROGRAMS = (
    *("agentbus.client.subscriptions", "agentbus.dashboard:"),
    *("agentbus.events.declare", "agentbus.events.guard"),
    *("agentbus.pipeline.sink.", "agentbus.pipeline.source.", "agentbus.queues.delivery"),
    *("agentbus.tasks.", "agentbus.testing.", "agentbus.workers.worker"),
)


def test_a_hint_that_names_a_call_has_another_one_for_the_shell():
    said, shell = advice("hint", commands=False), advice("shell_hint", commands=False)
    lines = {place: int(place.rpartition(":")[2]) for place in said}

    assert {
        place: text
        for place, text in said.items()
        if not place.startswith(PROGRAMS)
        and CALL.search(text)
        and not any(
            f"{place.rpartition(':')[0]}:{line}" in shell
            for line in range(lines[place], lines[place] + 7)
        )
    } == {}


def test_who_finds_a_flag_held_is_not_advised_to_take_it(real_shell, real_url, project):
    """Models do what hints say, and the holder would still be at work."""
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        bob.announce("deploy")
    with (
        agentbus.connect(real_url, project=project, agent="ada") as bus,
        pytest.raises(AgentBusError) as held,
    ):
        bus.announce("deploy")

    said = f"{held.value.hint} {held.value.shell_hint}"
    said += "".join(
        real_shell.run(*line).stderr
        for line in (["announce", "deploy"], ["announce", "deploy", "--wait", "0.01"])
    )
    assert "force" not in said
    assert "agentbus announce deploy --wait 60" in said


def test_a_block_that_finds_a_hold_of_its_own_agent_is_not_advised_to_renew_it(bus):
    bus.announce("deploy")

    with pytest.raises(AgentBusError) as held:
        bus.announce("deploy", renew=False)

    assert "announce" not in f"{held.value.hint} {held.value.shell_hint}"
    assert (held.value.shell_hint or "").endswith("or for your turn with --wait 60")


MISTAKES = {
    "a held flag": (
        lambda bus: bus.announce("deploy"),
        ["announce", "deploy"],
        "bus.await_('deploy')",
        "'agentbus await deploy'",
    ),
    "no such note": (
        lambda bus: bus.recall("how"),
        ["recall", "how"],
        "bus.list_()",
        "'agentbus list'",
    ),
    "no such queue": (
        lambda bus: bus.stats("mail"),
        ["bus", "stats", "mail"],
        "bus.queues()",
        "'agentbus list --queues'",
    ),
    "no such dead letter": (
        lambda bus: bus.queue("mail").letter("1-1"),
        ["dlq", "show", "mail", "1-1"],
        "bus.queue('mail').dead_letters('default')",
        "'agentbus dlq list mail'",
    ),
    "nobody answers": (
        lambda bus: bus.await_("tested", timeout=0.01),
        ["await", "tested", "--timeout", "0.01"],
        "bus.flags()",
        "'agentbus list --flags'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_same_error_advises_python_in_python_and_the_shell_in_a_shell(
    mistake: str, real_shell: Shell, real_url: str, project: str
) -> None:
    call, line, python, words = MISTAKES[mistake]
    with agentbus.connect(real_url, project=project, agent="bob") as bob:
        bob.announce("deploy")
    said = real_shell.run(*line)
    record = json.loads(real_shell.run(*line, "--json").stderr)

    with (
        agentbus.connect(real_url, project=project, agent="ada") as bus,
        pytest.raises(AgentBusError) as raised,
    ):
        call(bus)

    assert python in str(raised.value.hint)
    assert words in said.stderr
    assert python not in said.stderr
    assert words in record["hint"]
