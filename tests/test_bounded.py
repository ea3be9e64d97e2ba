"""Bounds on what is printed of others' texts: what does not fit is counted, and nothing is lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, strategies as st

from tests import inprocess
from tests.servers import ask

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

    assert len(out) == 1000
    assert re.search(r" ada x+…\n$", out)
    command = re.search(
        r"(\d+) letters of a message were left out; 'agentbus (.*)' prints it whole", err
    )
    assert command is not None
    assert int(command[1]) == 5000 - out.count("x")
    assert "x" * 5000 in run(*command[2].split())[1]
    assert run("overhear")[1].endswith("ada after\n")


def test_a_message_is_cut_in_json_too(run):
    run("speak", "x" * 5000)

    _, out, _ = run("overhear", "--max-chars", "1000", "--json")

    record = json.loads(out)
    assert len(out) == 1000
    assert set(record["message"]) == {"x"}
    assert len(record["message"]) + record["truncated"] == 5000


@pytest.mark.parametrize("options", [("--peek",), ("--since", "0-0"), ("--last", "9")])
def test_what_moves_no_cursor_says_that_there_is_more(run, options):
    for _ in range(3):
        run("speak", "x" * 200)

    _, out, err = run("overhear", "--max-chars", "500", *options)

    assert out.count("\n") == 2
    assert err == "agentbus: more messages do not fit; a larger --max-chars prints more\n"


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)
# Another program may write any name, and any field.
names = st.none() | st.sampled_from(["t", '"' * 90, "\x1b" * 300, "long name " * 40, "…" * 200])
entries = st.tuples(texts, st.integers(1, 60), names, names, st.booleans())


@given(st.lists(entries, min_size=1, max_size=5), st.integers(300, 900), st.booleans())
def test_every_message_is_shown_once_and_no_page_is_longer_than_its_bound(
    valkey, said, most, as_json
):
    valkey.ask("DEL", "bounded:ch:main", "bounded:last:ada", "bounded:heard")
    ids = []
    for text, times, agent, topic, more in said:
        fields = ["message", text * times, "agent_id", agent or "b"]
        fields += ["topic", topic] if topic else []
        fields += ["truncated", "7", "field", "y" * 2000] if more else []
        ids.append(valkey.ask("XADD", "bounded:ch:main", "*", *fields).decode())
    line = ["overhear", "--max-chars", str(most), "--from-start", "--agent", "ada"]
    line += ["--url", valkey.url, "--project", "bounded", *(["--json"] if as_json else [])]
    shown = []
    for _ in said:
        done = inprocess.run(*line)
        assert done.code == 0
        assert len(done.out.decode()) <= most
        shown += done.out.decode().splitlines()

    assert len(shown) == len(said)
    for one, entry_id, (text, times, *_) in zip(shown, ids, said, strict=True):
        if as_json:
            found = json.loads(one)
            assert found["id"] == entry_id
            assert (text * times).startswith(found["message"])
            assert len(found["message"]) + found.get("truncated", 0) == len(text * times)


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


def test_one_message_that_remains_is_one_message(run):
    for number in range(3):
        run("speak", str(number))

    err = run("overhear", "--max", "2", "--from-start")[2]

    assert "1 more remains; --catch-up marks it as heard" in err


def test_one_letter_that_is_left_out_is_one_letter(run):
    run("jot", "tale", "x" * 301)

    assert "1 letter was left out" in run("recall", "tale", "--max-chars", "300")[2]


def test_recall_cuts_a_long_note_and_says_so(run):
    run("jot", "plan", "x" * 5000)

    code, out, err = run("recall", "plan", "--max-chars", "1000")

    assert (code, out) == (0, "x" * 1000)
    assert "4000 letters were left out" in err
    record = json.loads(run("recall", "plan", "--max-chars", "1000", "--json")[1])
    assert 700 < len(record["value"]) == 5000 - record["truncated"] < 1000
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


def test_the_library_bounds_agents_too(bus):
    ask(bus, "ZADD", bus.scope.keys.agents, *(w for n in range(5) for w in (str(n), f"a{n}")))

    assert [one.agent_id for one in bus.agents(limit=2)] == ["a4", "a3"]
    assert bus.agents(limit=0) == []
    assert len(bus.agents()) == 5
