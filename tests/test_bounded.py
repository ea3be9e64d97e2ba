"""Bounds on what is printed of others' texts: what does not fit is counted, and nothing is lost."""

from __future__ import annotations

import json
import re

import pytest

from tests import inprocess

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def run(real_url, project, tmp_path):
    environment = {
        "AGENTBUS_URL": real_url,
        "AGENTBUS_PROJECT": project,
        "AGENTBUS_AGENT": "ada",
        "XDG_STATE_HOME": str(tmp_path),
    }

    def _run(*argv):
        with inprocess.environment(environment):
            done = inprocess.run(*argv)
        return done.code, done.out.decode(), done.err.decode()

    return _run


def test_overhear_prints_what_fits_and_leaves_the_rest_unheard(run):
    for at in range(4):
        run("speak", f"{at}" * 400)

    code, out, err = run("overhear", "--max-chars", "1000")

    assert code == 0
    assert re.findall(r"ada (\d)", out) == ["0", "1"]
    assert len(out) <= 1000
    assert "2 more remain" in err
    assert re.findall(r"ada (\d)", run("overhear", "--max-chars", "1000")[1]) == ["2", "3"]
    assert run("overhear")[1] == ""


def test_a_message_that_is_too_long_for_the_bound_is_cut_and_named(run):
    run("speak", "x" * 5000)
    run("speak", "after")

    _, out, err = run("overhear", "--max-chars", "1000")

    assert out.endswith(f"ada {'x' * 940}…\n")
    command = re.search(r"4060 letters of a message were left out; 'agentbus (.*)' prints it", err)
    assert command is not None
    assert "x" * 5000 in run(*command[1].split())[1]
    assert run("overhear")[1].endswith("ada after\n")


def test_a_message_is_cut_in_json_too(run):
    run("speak", "x" * 5000)

    record = json.loads(run("overhear", "--max-chars", "1000", "--json")[1])

    assert (len(record["message"]), record["truncated"]) == (940, 4060)


@pytest.mark.parametrize(
    "argv",
    [
        ["overhear", "--max-chars", "20"],
        ["overhear", "--max-chars", "2000", "--follow"],
        ["overhear", "--max-chars", "2000", "--catch-up"],
        ["recall", "plan", "--max-chars", "0"],
        ["list", "--max", "3"],
    ],
)
def test_a_bound_that_makes_no_sense_is_exit_2(run, argv):
    assert run(*argv)[0] == 2


def test_recall_cuts_a_long_note_and_says_so(run):
    run("jot", "plan", "x" * 5000)

    code, out, err = run("recall", "plan", "--max-chars", "1000")

    assert (code, out) == (0, "x" * 1000)
    assert "4000 letters were left out" in err
    record = json.loads(run("recall", "plan", "--max-chars", "1000", "--json")[1])
    assert (len(record["value"]), record["truncated"]) == (940, 4060)
    assert run("recall", "plan", "--max-chars", "6000")[1:] == ("x" * 5000, "")


def test_recall_of_several_notes_counts_those_that_do_not_fit(run):
    for at in range(3):
        run("jot", f"plan-{at}", "x" * 400, "--tag", "plan")

    _, out, err = run("recall", "--tag", "plan", "--max-chars", "1000")

    assert out.count("\n") == 2
    assert "1 more note left out" in err


def test_list_of_agents_prints_the_newest_and_counts_the_others(run):
    for at in range(4):
        run("speak", "hi", "--agent", f"agent-{at}")

    _, out, err = run("list", "--agents", "--max", "3")

    assert re.findall(r"^agent-(\d)", out, re.MULTILINE) == ["3", "2", "1"]
    assert "1 more agent seen earlier; --max 4 lists all" in err
