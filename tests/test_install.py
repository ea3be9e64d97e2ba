"""Installing in clients by their own commands: the steps, what is refused, and taking it out again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import stat
import subprocess

import pytest

from agentbus.agents import plugin
from agentbus.agents.install import folder
from agentbus.core.version import __version__
from tests.installing import ELSEWHERE, User
from tests.servers import program
from tests.tiers import nightly, sampled

ALL = ("claude", "codex", "copilot", "gemini")
FIRST = {
    "claude": ["plugin marketplace add DIR", "plugin install agentbus@agentbus"],
    "codex": ["plugin marketplace add DIR", "plugin add agentbus@agentbus"],
    "copilot": ["plugin marketplace add DIR", "plugin install agentbus@agentbus"],
    "gemini": ["extensions link DIR/gemini --consent"],
}
LAST = {
    "claude": ["plugin uninstall agentbus@agentbus", "plugin marketplace remove agentbus"],
    "codex": ["plugin remove agentbus@agentbus", "plugin marketplace remove agentbus"],
    "copilot": ["plugin uninstall agentbus@agentbus", "plugin marketplace remove agentbus"],
    "gemini": ["extensions uninstall agentbus"],
}


@pytest.fixture
def user(tmp_path: pathlib.Path) -> User:
    return User(tmp_path, *ALL)


def directory(user: User) -> pathlib.Path:
    return user.home / ".local/share/agentbus/clients" / __version__


def typed(user: User, client: str, commands: dict[str, list[str]]) -> list[str]:
    return [f"{client} {each}".replace("DIR", str(directory(user))) for each in commands[client]]


@pytest.mark.parametrize("client", sampled([*ALL], 4, 0))
def test_installing_three_times_is_installing_once(user, client):
    first = user.install(client)
    assert user.calls() == typed(user, client, FIRST)
    files = user.files()

    assert [line.rpartition(": ")[2] for line in first] == ["done"] * len(first)
    for _ in range(2):
        again = user.install(client)
        assert again == [line.removesuffix("done") + "already" for line in first]
    assert user.calls() == []
    assert user.files() == files


@pytest.mark.parametrize("client", sampled([*ALL], 4, 1))
def test_taking_it_out_leaves_nothing_of_ours(user, client):
    before = user.files()
    user.install(client)
    user.calls()

    assert {line.rpartition(": ")[2] for line in user.uninstall()} == {"done"}
    assert user.calls() == typed(user, client, LAST)
    assert user.files() == before
    assert not (user.home / ".local/share/agentbus").exists()
    user.uninstall(client)
    assert user.calls() == []


def test_without_a_client_it_is_installed_in_those_on_the_path(user):
    lines = user.install()

    assert {line.partition(":")[0] for line in lines} == {"agentbus", *ALL}


def test_what_is_installed_is_taken_out_without_naming_it(user):
    user.install("claude", "codex")
    user.calls()

    user.uninstall()
    assert {line.partition(" ")[0] for line in user.calls()} == {"claude", "codex"}
    assert user.uninstall() == ["nothing is installed"]


@pytest.mark.parametrize("client", ["claude", nightly("codex")])
def test_a_client_that_copies_the_plugin_gets_what_has_changed(user, client, monkeypatch):
    user.install(client)
    user.calls()
    monkeypatch.setattr(folder, "program", lambda: "/elsewhere/bin/agentbus")

    user.install(client)

    remove, *_ = typed(user, client, LAST)
    assert user.calls() == [remove, typed(user, client, FIRST)[1]]
    text = next((user.home / f".{client}").rglob(".mcp.json")).read_text()
    assert "/elsewhere/bin/agentbus" in text


@pytest.mark.parametrize("client", sampled([*ALL], 4, 2))
def test_a_new_version_takes_the_place_of_the_former_one(user, client, monkeypatch):
    user.install(client)
    user.calls()
    monkeypatch.setattr(folder, "__version__", "9.9.9")
    monkeypatch.setattr(plugin, "__version__", "9.9.9")

    user.install(client)

    calls = user.calls()
    assert calls[0] == typed(user, client, LAST)[0]
    assert str(directory(user).with_name("9.9.9")) in calls[-1] + calls[-2]
    assert not directory(user).exists()


def test_a_folder_that_another_client_reads_stays(user, monkeypatch):
    user.install("claude", "gemini")
    monkeypatch.setattr(folder, "__version__", "9.9.9")
    user.install("claude")

    assert (directory(user) / "gemini/GEMINI.md").exists()


@pytest.mark.parametrize("client", ["claude", "codex", "copilot"])
def test_a_marketplace_of_that_name_which_is_not_ours_is_refused(user, client):
    user.fake(f"{client}.json", json.dumps({"market": "/somewhere/else"}))

    done = user.run("install", client)

    assert done.code == 4
    assert b"a marketplace agentbus in /somewhere/else, which is not ours" in done.err
    assert f"{client} plugin marketplace remove agentbus".encode() in done.err
    assert user.calls() == []
    user.uninstall(client)
    assert user.calls() == []


def test_an_extension_of_that_name_which_is_not_ours_is_refused(user):
    user.fake("gemini.json", json.dumps({"market": None, "linked": "/somewhere/else"}))

    assert user.run("install", "gemini").code == 4
    user.uninstall("gemini")
    assert user.calls() == []


def test_a_client_that_is_not_there_is_named_with_the_commands_to_type(user):
    (user.bin / "codex").unlink()

    done = user.run("install", "codex", "claude")

    assert done.code == 5
    assert b"codex is not on the PATH" in done.err
    assert " && ".join(typed(user, "codex", FIRST)).encode() in done.err
    # The folder is there, so that they work; and the other client is installed.
    assert directory(user).exists()
    assert user.calls() == typed(user, "claude", FIRST)


@pytest.mark.parametrize("client", sampled([*ALL], 4, 3))
def test_a_client_that_has_gone_is_named_with_the_commands_that_take_it_out(user, client):
    user.install(client)
    (user.bin / client).unlink()

    done = user.run("uninstall")

    assert done.code == 5
    assert " && ".join(typed(user, client, LAST)).encode() in done.err


def test_without_any_client_it_says_what_can_be_named(user):
    for client in ALL:
        (user.bin / client).unlink()

    done = user.run("install")

    assert done.code == 5
    assert b"no client of a coding agent is on the PATH" in done.err


def test_a_command_that_fails_ends_the_steps_of_its_client_alone(user):
    user.fake("fails", "claude plugin install")

    done = user.run("install", "claude", "codex", "--json")

    assert done.code == 1
    assert b"failed with exit 3: it went wrong" in done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [(line["client"], line["state"]) for line in lines] == [
        ("agentbus", "done"),
        ("claude", "done"),
        ("claude", "failed"),
        ("codex", "done"),
        ("codex", "done"),
    ]
    assert "it went wrong" in lines[2]["error"]
    # It goes on where it stopped.
    user.fake("fails", "nothing")
    user.calls()
    user.install("claude")
    assert user.calls() == typed(user, "claude", FIRST)[1:]


def test_two_that_fail_are_both_told_of(user):
    (user.bin / "codex").unlink()
    (user.bin / "gemini").unlink()

    done = user.run("install", "codex", "gemini")
    assert b"codex is not on the PATH" in done.err
    assert b"gemini is not on the PATH" in done.err


def test_a_list_in_an_unknown_form_is_an_error_and_changes_nothing(user):
    (user.bin / "claude").write_text("#!/bin/sh\necho '[{\"other\": 1}]'\n")

    done = user.run("install", "claude")

    assert done.code == 1
    assert b"is not what is known of it" in done.err


@pytest.mark.parametrize("words", [("install", *ALL, "--dry-run"), ("uninstall", "--dry-run")])
def test_a_dry_run_changes_nothing(user, words):
    if words[0] == "uninstall":
        user.install()
        user.calls()
    before = user.files()

    done = user.run(*words)

    assert done.code == 0
    assert {line.rpartition(b": ")[2] for line in done.out.splitlines()} == {b"planned"}
    assert user.calls() == []
    assert user.files() == before


def test_print_says_what_to_type(user):
    done = user.run("install", "claude", "gemini", "--print")

    wanted = [*typed(user, "claude", FIRST), *typed(user, "gemini", FIRST)]
    assert done.out.decode().splitlines() == wanted
    assert user.calls() == []
    # What they name is there.
    assert (directory(user) / ".claude-plugin/marketplace.json").exists()


def test_print_says_what_to_add_to_the_files_that_are_edited(user):
    printed = user.run("install", "cursor", "--print").out.decode().splitlines()

    paths = [user.home / ".cursor/hooks.json", user.home / ".cursor/mcp.json"]
    for path, line in zip(paths, printed, strict=True):
        before, _, entries = line.partition(": ")
        assert before == f"add to ~/.cursor/{path.name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(entries)
    assert [line[-7:] for line in user.install("cursor")[:2]] == ["already"] * 2


def test_what_print_says_of_the_hook_of_git_can_be_typed(user):
    (line,) = user.run("install", "--git", "--print").out.decode().splitlines()

    program, *words = line.split()
    assert program == "agentbus"
    assert user.run(*words).code == 0
    assert (user.root / ".git/hooks/pre-commit").exists()


def test_codex_is_said_to_wait_for_trust_when_something_was_installed(user):
    assert b"enter /hooks" in user.run("install", "codex").err
    assert user.run("install", "codex").err == b""


def test_a_plugin_for_a_project_is_claudes_alone(user):
    done = user.run("install", "codex", "--scope", "project")

    assert done.code == 2
    assert b"codex has plugins of the user only" in done.err
    user.install("claude", "--scope", "project")
    assert user.calls()[-1] == "claude plugin install agentbus@agentbus --scope project"


def test_a_marketplace_that_another_project_uses_stays(user):
    user.install("claude")
    user.install("claude", "--scope", "project")
    user.calls()

    user.uninstall("claude", "--scope", "project")
    assert "claude plugin marketplace remove agentbus" not in user.calls()


def test_a_damaged_record_is_an_error_that_says_what_to_do(user):
    user.install("claude")
    record = directory(user).parent / "installed.json"
    record.write_text("{")

    done = user.run("install", "claude")
    assert done.code == 1
    assert str(record).encode() in done.err


def test_options_that_exclude_each_other_are_refused(user):
    assert user.run("install", "--check", "--dry-run").code == 2
    assert user.run("install", "--print", "--uninstall").code == 2
    assert user.run("install", "emacs").code == 2


# -- the settings that the clients' commands rewrite --

HAND_MADE = '// mine\n{   "note": "h\u00e9l\u00e8ne" }\n\n'


def written(user: User, client: str, text: str) -> pathlib.Path:
    path = user.home / f".{client}/settings.json"
    path.parent.mkdir()
    path.write_text(text)
    return path


@pytest.mark.parametrize("client", [nightly("claude"), "copilot"])
def test_settings_are_given_back_byte_for_byte(user, client):
    text = HAND_MADE if client == "copilot" else HAND_MADE.removeprefix("// mine\n")
    path = written(user, client, text)

    lines = user.install(client)
    user.install(client)
    assert plugin.NAME in path.read_text()
    assert lines[-1] == (
        "copilot: keep a copy of ~/.copilot/settings.json, which lost its comments: done"
        if client == "copilot"
        else "claude: claude plugin install agentbus@agentbus: done"
    )
    assert user.uninstall()[-1] == f"{client}: give back ~/.{client}/settings.json: done"
    assert path.read_text() == text


def test_settings_that_were_changed_since_stay_as_the_client_leaves_them(user):
    path = written(user, "copilot", HAND_MADE)
    user.install("copilot")
    path.write_text(path.read_text().replace("{", '{"theirs": 1, ', 1))

    user.uninstall()

    assert json.loads(path.read_text())["theirs"] == 1
    assert "note" in path.read_text()


def test_settings_that_were_changed_between_two_versions_stay_changed(user, monkeypatch):
    path = written(user, "copilot", HAND_MADE)
    user.install("copilot")
    path.write_text('{"enabledPlugins": {"agentbus@agentbus": true}, "theirs": 1}')
    monkeypatch.setattr(folder, "__version__", "9.9.9")
    user.install("copilot")

    user.uninstall()
    assert json.loads(path.read_text()) == {
        "theirs": 1,
        "enabledPlugins": {"agentbus@agentbus": False},
    }


def test_settings_that_claude_cannot_change_are_refused_before_anything_is_done(user):
    path = written(user, "claude", HAND_MADE)

    done = user.run("install", "claude")

    assert done.code == 4
    assert b"settings.json is not JSON, so Claude Code does not change it" in done.err
    assert user.calls() == []
    assert path.read_text() == HAND_MADE


def test_what_failed_half_way_is_taken_out_with_the_settings_given_back(user):
    path = written(user, "copilot", HAND_MADE)
    user.fake("fails", "copilot plugin install")
    assert user.run("install", "copilot").code == 1
    user.fake("fails", "nothing")

    user.uninstall("copilot")
    assert path.read_text() == HAND_MADE
    assert not (user.home / ".local/share/agentbus").exists()


@pytest.mark.parametrize(
    ("verb", "command"),
    [("install", "copilot plugin install"), ("uninstall", "copilot plugin marketplace remove")],
)
def test_settings_are_given_back_though_a_process_was_killed_half_way(user, verb, command):
    path = written(user, "copilot", HAND_MADE)
    if verb == "uninstall":
        user.install("copilot")
    user.fake("ends", command)
    environment = {**os.environ, **user.environment}
    for variable in ELSEWHERE:
        environment.pop(variable, None)
    killed = [program(), verb, "copilot"]
    done = subprocess.run(killed, cwd=user.root, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() != HAND_MADE

    user.fake("ends", "nothing")
    user.uninstall("copilot")
    assert path.read_text() == HAND_MADE


def test_copies_of_settings_are_for_their_user_alone(user):
    written(user, "copilot", HAND_MADE)
    user.install("copilot")

    (copy,) = (directory(user).parent / "kept").iterdir()
    assert copy.read_text() == HAND_MADE
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_settings_that_a_list_of_the_client_rewrites_are_given_back_too(user):
    path = written(user, "copilot", HAND_MADE)
    program = user.bin / "copilot"
    # Some versions migrate settings whenever they start.
    program.rename(user.bin / "copilot.real")
    program.write_text(
        '#!/bin/sh\nsed -i "s|^// mine||" ~/.copilot/settings.json\n'
        f'exec {user.bin}/copilot.real "$@"\n'
    )
    program.chmod(0o755)
    (user.bin / "copilot.real").write_text(
        (user.bin / "copilot.real").read_text().replace("sys.argv[0]).name", '"copilot").name')
    )

    user.install("copilot")
    user.uninstall()

    assert path.read_text() == HAND_MADE
