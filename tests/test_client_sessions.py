"""Sessions of coding agents' clients: each has its own name, and all of its processes know it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import uuid

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.coordination import sessions
from agentbus.core import agent_name, client_session, names
from agentbus.core.client_session import WORDS
from agentbus.core.names import SESSION_VARIABLES
from agentbus.store.sessions import records
from agentbus.store.steps import Command, one_step
from tests.servers import Shell, program

ID = "0f3e2f6a-1111-4222-8333-abcdefabcdef"
NAMED = {"CLAUDE_CODE_SESSION_ID": ID}
NAME, CODEX = "claude-marlin-pzr", "codex-ewe-6qa"
CI = {"GITHUB_RUN_ID": "77", "GITHUB_JOB": "test"}
ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200)


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell whose agent has no name."""
    del real_shell.environment["AGENTBUS_AGENT"]
    return real_shell


@pytest.fixture
def folder(shell: Shell) -> str:
    """Where the shell's user has the files of clients' processes."""
    return client_session.folder_in(str(shell.home / ".local" / "state" / "agentbus"))


@pytest.fixture
def watcher(real_url: str, project: str):
    with agentbus.connect(real_url, project=project, agent="watcher") as opened:
        yield opened


def whoami(shell: Shell, **env: str) -> dict[str, object]:
    (found,) = shell.records("whoami", env=env)
    return found


# -- names --


@given(st.sampled_from(["claude", "codex", "copilot", "gemini", "opencode", "cursor"]), ids)
def test_every_session_has_a_plain_name_that_follows_from_its_id(client, session):
    found = client_session.name(client, session)

    assert re.fullmatch(rf"{client}-[a-z]+-[a-z2-9]{{3}}", found)
    assert len(found) <= 40
    assert names.name("agent", found) == found == client_session.name(client, session)


def test_the_name_of_a_session_is_the_same_in_every_version():
    assert client_session.name("claude", ID) == NAME
    assert client_session.name("codex", "019a7b0c-2222-7000-8000-000000000001") == CODEX


def test_the_words_are_512_different_ones():
    words = WORDS.split()

    assert len(words) == len(set(words)) == 512
    assert all(re.fullmatch("[a-z]{2,7}", word) for word in words)


@pytest.mark.parametrize("form", ["{:08x}-0000-4000-8000-000000000000", "session-{}"])
def test_ids_that_differ_little_have_different_names(form):
    found = [client_session.name("claude", form.format(n)) for n in range(10_000)]

    # Of 16 million names, 10,000 at random share about three.
    assert len(set(found)) > 9_985
    assert len({name.split("-")[1] for name in found}) == 512


@pytest.mark.parametrize(
    ("client", "session"),
    [("", "1"), ("Claude", "1"), ("a-b", "1"), ("x" * 17, "1"), ("claude", ""), ("claude", "a b")],
)
def test_what_is_no_client_or_no_id_has_no_name(client, session):
    with pytest.raises(ValueError, match="is not the"):
        client_session.name(client, session)


# -- where the name comes from --


def test_a_session_is_known_by_the_variable_of_its_client(shell):
    found = whoami(shell, **NAMED)

    assert found["agent_id"] == NAME
    assert found["identity"] == "session"
    assert found["session"] == {"client": "claude", "id": ID, "pid": None}
    assert found["sources"]["agent"] == "CLAUDE_CODE_SESSION_ID"


@pytest.mark.parametrize("variable", list(SESSION_VARIABLES))
def test_each_client_has_a_variable(variable):
    found, source, peers = agent_name.default({variable: ID, **CI})

    assert (found.partition("-")[0], source, peers) == (SESSION_VARIABLES[variable], variable, "")


@pytest.mark.parametrize("session", ["", "a b", "a\nb", "é", "x" * 201])
def test_a_variable_without_a_proper_id_is_passed_over(session):
    assert agent_name.default({"CODEX_THREAD_ID": session, **CI})[1] == "GITHUB_RUN_ID"


def test_the_process_of_a_client_names_those_below_it(shell, folder):
    client_session.write(folder, "gemini", "g-1", client_session.name("gemini", "g-1"), os.getpid())

    found = whoami(shell, **CI)

    assert found["agent_id"] == client_session.name("gemini", "g-1")
    assert found["identity"] == "ancestor"
    assert found["session"] == {"client": "gemini", "id": "g-1", "pid": os.getpid()}
    text = shell.ok("whoami")
    assert f"(from the process {os.getpid()} of gemini)\nsession gemini g-1\n" in text


def test_the_order_of_identity(shell, folder):
    """Each takes the place of the next one: a name that was given, a variable, a process, CI, POSIX."""
    told = [(whoami(shell)["identity"], whoami(shell, **CI)["identity"])]
    client_session.write(folder, "gemini", "g-1", "gemini-x", os.getpid())
    told += [(whoami(shell, **CI)["identity"], whoami(shell, **CI, **NAMED)["identity"])]
    given = whoami(shell, **CI, **NAMED, AGENTBUS_AGENT="ada")

    assert told == [("posix", "ci"), ("ancestor", "session")]
    assert (given["identity"], given["agent_id"]) == ("given", "ada")
    # The session is known all the same.
    assert given["session"] == {"client": "claude", "id": ID, "pid": None}


def test_of_a_client_within_another_the_inner_one_counts(shell, folder):
    both = {**NAMED, "CODEX_THREAD_ID": "t-1"}
    client_session.write(folder, "codex", "t-1", client_session.name("codex", "t-1"), os.getpid())

    assert whoami(shell, **both)["agent_id"] == client_session.name("codex", "t-1")


def test_a_process_that_got_the_number_of_a_client_is_not_taken_for_it(shell, folder):
    client_session.write(folder, "gemini", "g-1", "gemini-x", os.getpid())
    file = pathlib.Path(folder, str(os.getpid()))
    began, rest = file.read_text().split("\n", 1)
    file.write_text(f"{int(began) - 1}\n{rest}")

    assert whoami(shell)["identity"] == "posix"
    assert client_session.live(folder) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"1\n2\n3", b"x" * 5000])
def test_a_damaged_file_names_nobody(shell, folder, content):
    os.makedirs(folder)
    pathlib.Path(folder, str(os.getpid())).write_bytes(content)

    assert whoami(shell)["identity"] == "posix"


def test_files_are_private_and_those_of_ended_processes_are_removed(folder):
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    client_session.write(folder, "gemini", "g-1", "gemini-x", ended.pid)
    ended.communicate(b"\n", timeout=60)
    assert client_session.live(folder) == []

    assert client_session.write(folder, "codex", "t-1", "codex-x", os.getpid()) == os.getpid()

    assert os.listdir(folder) == [str(os.getpid())]
    assert os.stat(folder).st_mode & 0o077 == 0
    assert os.stat(f"{folder}/{os.getpid()}").st_mode & 0o077 == 0
    client_session.remove(folder, "other")
    assert [found.id for found in client_session.live(folder)] == ["t-1"]
    client_session.remove(folder, "t-1")
    assert os.listdir(folder) == []


def test_a_process_that_is_gone_gets_no_file(folder):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)

    assert client_session.write(folder, "codex", "t-1", "codex-x", ended.pid) is None
    assert not os.path.exists(folder)


def test_the_client_is_the_nearest_process_that_is_no_shell():
    code = "from agentbus.core import client_session; print(client_session.client_process())"

    told = subprocess.check_output(
        ["sh", "-c", '"$1" -c "$2"; true', "sh", sys.executable, code], text=True
    )

    assert int(told) == os.getpid()


@pytest.mark.skipif(shutil.which("ps") is None, reason="where /proc is, ps need not be")
def test_without_proc_processes_are_asked_for_by_ps():
    above, began = client_session._asked(os.getpid()) or (0, "")

    assert above == os.getppid()
    assert re.search(r"\d\d:\d\d:\d\d", began)


# -- reserved names --


@pytest.mark.parametrize("name", ["human", "User", "SYSTEM", "developer", "assistant", "agentbus"])
def test_an_agent_is_not_called_what_readers_take_for_another_speaker(name):
    with pytest.raises(agentbus.InvalidName, match="is reserved"):
        agentbus.connect(agent=name)


def test_a_user_allows_a_reserved_name_in_the_own_config_file(shell):
    refused = shell.run("whoami", "--agent", "user")
    assert refused.returncode == 2
    assert "agent.reserved: true" in refused.stderr
    own = shell.home / ".config" / "agentbus" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("agent.reserved: true\n")

    assert whoami(shell, AGENTBUS_AGENT="user")["agent_id"] == "user"
    own.write_text("agent.reserved: off\n")
    assert shell.run("whoami", "--agent", "user").returncode == 2


def test_a_repository_does_not_allow_a_reserved_name(shell):
    (shell.home / ".agentbus.yaml").write_text("agent.reserved: true\n")

    assert shell.run("whoami", "--agent", "user").returncode == 2


@pytest.mark.parametrize("name", ["human:ada", "users", "user@laptop~7", "the-user"])
def test_a_name_that_holds_a_reserved_one_is_as_good_as_any(name):
    with agentbus.connect(agent=name) as bus:
        assert bus.agent == name


# -- the records of a project --


def test_a_session_and_its_agent_are_found_from_either(bus):
    assert run(bus, sessions.register(bus.scope, "claude", ID)) is None
    assert run(bus, sessions.register(bus.scope, "claude", ID)) is None

    assert run(bus, sessions.agent_of(bus.scope, "claude", ID)) == NAME
    assert run(bus, sessions.session_of(bus.scope, NAME)) == ("claude", ID)
    assert run(bus, sessions.agent_of(bus.scope, "codex", ID)) is None
    assert run(bus, sessions.session_of(bus.scope, "nobody")) is None


def test_the_second_session_of_a_name_learns_of_the_first(bus):
    assert run(bus, sessions.register(bus.scope, "claude", "a:1", "a%:b")) is None
    here = ("HSET", bus.scope.keys.who("a%:b"), "session", "a:1", "state")
    run(bus, one_step(Command(*here, "idle")))

    assert run(bus, sessions.register(bus.scope, "codex", "2", "a%:b")) == "claude:a:1"

    assert run(bus, sessions.session_of(bus.scope, "a%:b")) == ("claude", "a:1")
    assert run(bus, sessions.agent_of(bus.scope, "codex", "2")) == "a%:b"

    run(bus, one_step(Command(*here, "gone")))
    assert run(bus, sessions.register(bus.scope, "codex", "2", "a%:b")) is None
    assert run(bus, sessions.session_of(bus.scope, "a%:b")) == ("codex", "2")


def test_sessions_of_agents_that_were_not_seen_for_a_day_make_room(bus, monkeypatch):
    keys = bus.scope.keys
    monkeypatch.setattr(sessions, "MOST", 4)
    run(bus, one_step(Command("HSET", keys.who("a:b"), "state", "active")))
    for number, agent in enumerate(("a:b", "bob")):
        run(bus, sessions.register(bus.scope, "codex", str(number), agent))

    run(bus, sessions.register(bus.scope, "codex", "2", "carl"))

    kept = run(bus, one_step(Command("HKEYS", keys.client_sessions)))
    assert sorted(kept) == [b"a%3Ab", b"codex:0"]


def run(bus: agentbus.Bus, op):
    return bus.runner.run(op)


# -- the processes that use a name --


def test_the_commands_of_a_client_are_one_session(shell, folder, watcher):
    """A client may start each command in a new POSIX session."""
    client_session.write(folder, "claude", ID, NAME, os.getpid())
    for _ in range(2):
        subprocess.run(
            [program(), "speak", "hi"],
            env={**shell.environment, **NAMED},
            check=True,
            capture_output=True,
            start_new_session=True,
        )

    found = [one[:3] for one in watcher.runner.run(records(watcher.scope)) if one[0] == NAME]
    assert found == [(NAME, os.uname().nodename, os.getpid())]


def test_doctor_warns_where_two_clients_use_one_name(shell, folder):
    code = (
        "import subprocess, sys\n"
        "from agentbus.core import client_session\n"
        "import os\n"
        "client_session.write(sys.argv[1], 'claude', sys.argv[2], 'ada', os.getpid())\n"
        "subprocess.run([sys.argv[3], 'speak', 'hi'], check=True)\n"
        "input()\n"
    )
    clients = []
    try:
        for _ in range(2):
            session = str(uuid.uuid4())
            clients.append(
                subprocess.Popen(
                    [sys.executable, "-c", code, folder, session, program()],
                    env={
                        **shell.environment,
                        "CLAUDE_CODE_SESSION_ID": session,
                        "AGENTBUS_AGENT": "ada",
                    },
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline()

        told = [json.loads(line) for line in shell.run("doctor", "--json").stdout.splitlines()]
        (found,) = [one for one in told if one["check"] == "names"]
        assert all(str(client.pid) in found["found"] for client in clients)
        assert "use the name ada" in found["found"]
    finally:
        for client in clients:
            client.communicate(b"\n", timeout=60)
