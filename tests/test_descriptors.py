"""Standard input and output that are closed or full: nothing is lost, and nothing goes astray."""

from __future__ import annotations

import os
import subprocess

import pytest

from agentbus.commands import _unwritten
from agentbus.commands._declare import VERBS, module
from tests.hostile import check_told
from tests.inprocess import Done
from tests.servers import program


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_closed_descriptor_is_no_defect(descriptor, real_shell):
    script = f'exec {descriptor}{"<" if not descriptor else ">"}&-; exec "$0" "$@"'
    words = ["speak", "-"] if descriptor == 0 else ["overhear"]

    done = subprocess.run(
        ["bash", "-c", script, program(), *words],
        env=real_shell.environment,
        capture_output=True,
        check=False,
    )

    assert b"unexpectedly" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode == (2 if descriptor == 0 else 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_written_to_a_closed_descriptor_never_reaches_the_server(
    closed, real_shell, valkey, project
):
    # The next file that is opened takes the number of a closed one: the connection, if nobody cares.
    planted = f"{project}:planted"
    real_shell.ok("jot", "k", "--value", f"\r\nSET {planted} 1\r\n")
    real_shell.ok("speak", f"\r\nSET {planted} 1\r\n")

    for words in (["recall", "k"], ["overhear", "--json"], ["recall", f"\nSET {planted} 1"]):
        subprocess.run(
            ["bash", "-c", f'exec "$0" "$@" {closed}', program(), *words],
            env=real_shell.environment,
            capture_output=True,
            check=False,
        )

    assert valkey.ask("EXISTS", planted) == 0


def test_what_could_not_be_written_is_not_heard(real_shell):
    real_shell.ok("speak", "hi")

    done = subprocess.run(
        ["bash", "-c", 'exec "$0" overhear >/dev/full', program()],
        env=real_shell.environment,
        capture_output=True,
        check=False,
    )

    check_told(Done(done.returncode, done.stdout, done.stderr), 1)
    assert real_shell.ok("overhear").endswith(" hi\n")


@pytest.mark.parametrize("line", [["--help"], ["work", "--help"], ["help", "work"], ["--version"]])
def test_help_whose_reader_has_left_is_exit_141_without_a_word(line, real_shell):
    ours, theirs = os.pipe()
    os.close(ours)

    done = subprocess.run(
        [program(), *line],
        env=real_shell.environment,
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)

    assert (done.returncode, done.stderr) == (141, b"")


def test_help_that_could_not_be_written_says_so(real_shell):
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" work --help >/dev/full', program()],
        env=real_shell.environment,
        capture_output=True,
        check=False,
    )

    check_told(Done(done.returncode, done.stdout, done.stderr), 1)
    assert b"stdout cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("line", "done"),
    [
        (["announce", "f"], "the flag was taken"),
        (["satisfy", "f"], "the flag was satisfied"),
        (["fail", "f"], "the flag was failed"),
        (["speak", "hi"], "the message was spoken"),
        (["jot", "k", "v"], "the note was written"),
        (["publish", "mail", "1"], "the task was published"),
        (["task", "take", "mail"], "the task was taken"),
        (["schedule", "add", "s", "mail", "--every", "60"], "the schedule was added"),
        (["pause", "mail"], "the queue was paused"),
        (["clear", "--force"], "the project's keys were removed"),
        (["await", "f", "--delete"], "the completion was consumed"),
        (["publish", "mail", "--lines"], "a part of it may be done"),
        (["overhear"], "stays unheard"),
        (["pause"], ""),
        (["whoami"], ""),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, list) else None,
)
def test_an_output_that_cannot_be_written_says_what_was_done(real_shell, line, done):
    real_shell.ok("publish", "mail", "0")
    real_shell.ok("speak", "hello")
    real_shell.ok("publish", "other", "0")
    real_shell.ok("pause", "other")
    real_shell.ok("satisfy", "f")

    command = ["bash", "-c", 'exec "$0" "$@" >/dev/full', program(), *line]
    ran = subprocess.run(
        command, env=real_shell.environment, capture_output=True, check=False, input=b"1\n2\n"
    )
    said = ran.stderr.decode()

    assert ran.returncode == 1
    assert "stdout cannot be written" in said
    assert done in said
    assert "cursor" not in said
    if not done:
        assert said.endswith("(No space left on device)\nhint: free space where the output goes\n")
    if done.startswith("the "):
        assert "do not repeat it" in said


def test_what_is_said_of_an_unwritten_output_names_verbs_and_actions_that_exist():
    known = set(VERBS)
    for verb in VERBS:
        for param in module(verb).VERB.params:
            if param.dest == "action":
                known |= {f"{verb} {action}" for action in param.choices}

    done = {*_unwritten._DONE, *_unwritten._DONE_WITH, *_unwritten._STEPWISE, *_unwritten._HEARS}
    assert done - known == set()
    for verb, (option, _) in _unwritten._DONE_WITH.items():
        assert option in {param.dest for param in module(verb).VERB.params}
