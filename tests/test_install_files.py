"""What is installed as files: settings that others write, too, keep all that is theirs, to the byte."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys

import pytest

from agentbus.agents import plugin
from agentbus.agents.clients import CLIENTS
from agentbus.agents.install import block, edit, folder, settings_json
from agentbus.core.errors import AgentBusError, Refused
from tests.installing import ELSEWHERE, User
from tests.servers import program

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

OWN = "Written by `agentbus install`"
OTHERS = '{"command": "./format.sh", "timeout": 30}'
# Settings as people and programs write them: hooks, and servers.
_SETTINGS = [
    "",
    "\n",
    "{}",
    "{}\n",
    " {\n }\n\n",
    '{"version": 1}',
    '{"version":1,"hooks":{}}',
    '{"version": 1, "hooks": {"stop": []}}\n',
    '{\n    "version": 1,\n    "hooks": {"stop": [OTHERS]}\n}\n',
    '{\n\t"hooks": {\n\t\t"preToolUse": [OTHERS]\n\t},\n\t"version": 1\n}',
    '{\r\n  "version": 1,\r\n  "hooks": {\r\n    "stop": [OTHERS]\r\n  }\r\n}\r\n',
    '\ufeff{"version": 1, "hooks": {"stop": [OTHERS]}}',
    '{\n   "version": 2,\n   "hooks": {"afterFileEdit": [OTHERS, OTHERS]}\n}',
    '{"name": "h\\u00e9l\\u00e8ne", "hooks": {"stop": [OTHERS]}}\n',
    '{"name": "h\u00e9l\u00e8ne \U0001f642", "hooks": {"stop": [OTHERS]}}\n',
    '{"lone": "\\ud83d", "hooks": {"stop": [OTHERS]}}',
    '{"large": 123456789012345678901234567890, "small": 1.10, "more": 1e3, "hooks": {}}',
    '{"hooks": {"stop": [{"command": "/usr/bin/agentbus-notify hook cursor stop"}]}}',
    '{"hooks": {"stop": [{"command": "it\'s not shell", "nested": [{"deep": [1, null, true]}]}]}}',
    '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "files"]}}, "hooks": {}}\n',
    '{"mcpServers": {"zeta": {"url": "https://x.example"}, "alpha": {}}}',
]
SETTINGS = [text.replace("OTHERS", OTHERS) for text in _SETTINGS]
REFUSED = {
    '{\n  // mine\n  "version": 1\n}': "it is not strict JSON",
    '{"version": 1,}': "it is not strict JSON",
    "{": "it is not strict JSON",
    '{"a": 1, "a": 2}': "it is not strict JSON: the name 'a' is there twice",
    '{"a": NaN}': "it is not strict JSON: NaN is not JSON",
    '{"a": 1e999}': "it is not strict JSON: the number 1e999 is too large",
    "[]": "it is not a JSON object",
    '{"hooks": []}': "its hooks are not lists of an object",
    '{"hooks": {"stop": {}}}': "its hooks are not lists of an object",
}


@pytest.fixture
def user(tmp_path: pathlib.Path) -> User:
    return User(tmp_path)


def cursor(user: User, hooks: bytes | None = None, servers: bytes | None = None) -> pathlib.Path:
    """Write Cursor's settings, and return their directory."""
    place = user.home / ".cursor"
    place.mkdir(exist_ok=True)
    for name, data in (("hooks.json", hooks), ("mcp.json", servers)):
        if data is not None:
            (place / name).write_bytes(data)
    return place


def loaded(data: bytes) -> dict[str, object]:
    text = data.decode("utf-8-sig").strip()
    found = json.loads(text) if text else {}
    assert isinstance(found, dict)
    return found


def without_ours(found: dict[str, object]) -> dict[str, object]:
    """Return settings without our entries, and without what is empty where they were."""
    hooks = found.get("hooks")
    assert hooks is None or isinstance(hooks, dict)
    if hooks is not None:
        left = {
            event: [one for one in entries if f"{program()} hook cursor" not in one["command"]]
            for event, entries in hooks.items()
        }
        found = found | {"hooks": {event: entries for event, entries in left.items() if entries}}
    servers = found.get("mcpServers")
    if isinstance(servers, dict):
        servers.pop("agentbus", None)
    return {name: value for name, value in found.items() if value not in ({}, 1)}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_keep_what_is_theirs_and_become_what_they_were(user, text):
    place = cursor(user, text.encode(), text.encode())
    user.install("cursor")
    after = {path.name: path.read_bytes() for path in place.iterdir()}
    user.install("cursor")
    user.install("cursor")

    assert {path.name: path.read_bytes() for path in place.iterdir()} == after
    for name in ("hooks.json", "mcp.json"):
        assert without_ours(loaded(after[name])) == without_ours(loaded(text.encode()))
        assert len([each for each in after if each.startswith(f"{name}.agentbus-backup-")]) == 1
    hooks = loaded(after["hooks.json"])["hooks"]
    assert isinstance(hooks, dict)
    assert set(CLIENTS["cursor"].events) <= set(hooks)
    user.uninstall("cursor")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {
        "hooks.json": text.encode(),
        "mcp.json": text.encode(),
    }


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_that_somebody_changed_since_lose_our_entries_alone(user, text):
    place = cursor(user, text.encode(), text.encode())
    user.install("cursor")
    for name in ("hooks.json", "mcp.json"):
        changed = loaded((place / name).read_bytes()) | {"theirs": [name]}
        (place / name).write_text(json.dumps(changed))
    user.uninstall("cursor")

    for name in ("hooks.json", "mcp.json"):
        left = loaded((place / name).read_bytes())
        assert left.pop("theirs") == [name]
        assert without_ours(left) == without_ours(loaded(text.encode()))
        assert program() not in (place / name).read_text()


def test_what_somebody_adds_between_two_installations_stays(user, monkeypatch):
    place = cursor(user, b'{"version": 1}\n')
    user.install("cursor")
    changed = loaded((place / "hooks.json").read_bytes()) | {"theirs": 1}
    (place / "hooks.json").write_text(json.dumps(changed))
    monkeypatch.setattr(folder, "program", lambda: "/elsewhere/agentbus")

    user.install("cursor")
    user.uninstall("cursor")

    left = loaded((place / "hooks.json").read_bytes())
    assert left["theirs"] == 1
    assert "agentbus" not in json.dumps(left)


def test_the_layout_of_settings_stays(user):
    tabs = b'{\n\t"version": 1,\n\t"hooks": {}\n}'
    place = cursor(user, tabs, b'{\r\n    "mcpServers": {}\r\n}\r\n')
    user.install("cursor")

    assert b'\n\t"hooks": {\n\t\t"sessionStart": [\n' in (place / "hooks.json").read_bytes()
    assert (place / "mcp.json").read_bytes().count(b"\r\n") == 10
    assert b'\r\n    "mcpServers": {\r\n        "agentbus"' in (place / "mcp.json").read_bytes()


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_strict_json_is_refused_unchanged(user, text):
    place = cursor(user, text.encode())

    done = user.run("install", "cursor")

    assert done.code == 4
    assert f"hooks.json cannot be merged into: {REFUSED[text]}".encode() in done.err
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {
        "hooks.json": text.encode()
    }


def test_text_that_is_not_utf8_is_refused(user):
    cursor(user, b'{"name": "\xe9"}')

    assert b"it is not UTF-8" in user.run("install", "cursor").err


def test_a_server_of_that_name_which_is_not_ours_is_refused(user):
    text = b'{"mcpServers": {"agentbus": {"command": "npx", "args": ["agent-bus"]}}}'
    place = cursor(user, servers=text)

    assert user.run("install", "cursor").code == 4
    assert not (place / "hooks.json").exists()
    user.uninstall("cursor")
    assert (place / "mcp.json").read_bytes() == text


def test_what_a_user_added_to_our_server_stays(user, monkeypatch):
    place = cursor(user)
    user.install("cursor")
    servers = json.loads((place / "mcp.json").read_text())
    servers["mcpServers"]["agentbus"]["env"] = {"AGENTBUS_URL": "redis://box"}
    (place / "mcp.json").write_text(json.dumps(servers))
    monkeypatch.setattr(folder, "program", lambda: "/elsewhere/agentbus")

    user.install("cursor")
    own = json.loads((place / "mcp.json").read_text())["mcpServers"]["agentbus"]
    assert own["env"] == {"AGENTBUS_URL": "redis://box"}
    assert own["command"] == "/elsewhere/agentbus"


def test_settings_that_did_not_exist_are_removed_with_their_directory(user):
    before = user.files()
    user.install("cursor")
    user.uninstall("cursor")

    assert user.files() == before
    assert not (user.home / ".cursor").exists()
    assert not (user.root / ".cursor").exists()


def test_a_umask_of_0_lets_nobody_else_write_what_clients_read(tmp_path):
    user = User(tmp_path, *CLIENTS)
    before = {*tmp_path.rglob("*")}
    umask = os.umask(0)
    try:
        for client in (*CLIENTS, "agents-md"):
            user.install(client)
        for client in ("cursor", "opencode"):
            user.install(client, "--scope", "project")
    finally:
        os.umask(umask)

    # These are written by the programs that stand in for clients.
    theirs = {".fake", ".claude", ".codex", ".copilot", ".gemini"}
    made = {path for path in {*tmp_path.rglob("*")} - before if not theirs & {*path.parts}}
    closed = [path for path in made if stat.S_IMODE(path.stat().st_mode) == 0o700]
    reached = [path for path in made if not any(top in path.parents for top in closed)]
    assert {path.name for path in reached} >= {".cursor", ".opencode", "hooks.json", "AGENTS.md"}
    assert [str(path) for path in reached if path.stat().st_mode & 0o022] == []


def test_a_file_keeps_its_mode_and_its_link(user):
    place = cursor(user)
    target = user.home / "dotfiles.json"
    target.write_text('{"version": 1}')
    target.chmod(0o640)
    (place / "hooks.json").symlink_to(target)

    user.install("cursor")

    assert (place / "hooks.json").is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert b"hook cursor stop" in target.read_bytes()
    user.uninstall("cursor")
    assert target.read_text() == '{"version": 1}'
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in user.home.glob("dotfiles*")] == ["dotfiles.json"]


def test_cursor_for_a_project_is_in_the_repository(user):
    user.install("cursor", "--scope", "project")

    assert (user.root / ".cursor/hooks.json").exists()
    assert not (user.home / ".cursor").exists()
    user.uninstall("--scope", "project")
    assert not (user.root / ".cursor").exists()


def test_a_file_that_changes_before_it_is_written_is_left_alone(tmp_path):
    path = tmp_path / "AGENTS.md"
    path.write_text("one\n")
    step = edit.merge(str(path), block.put(str(path), "ours"), block.drop(str(path)), {})
    path.write_text("two\n")

    with pytest.raises(AgentBusError, match="was changed meanwhile"):
        step.perform()
    assert path.read_text() == "two\n"


# Installs in Cursor, and is killed when it would put a file in its place.
KILLED = """
import os, signal, sys

def stops(event, given):
    if event == "os.rename" and os.fsdecode(given[1]).endswith(f"/.cursor/{os.environ['AT']}"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(stops)
from agentbus.commands._main import main

sys.argv[1:] = ["install", "cursor"]
main()
"""


@pytest.mark.parametrize("at", ["hooks.json", "mcp.json"])
@pytest.mark.parametrize("again", [True, False])
def test_settings_become_what_they_were_after_an_installation_that_was_killed(user, at, again):
    before = {"hooks.json": '{ "version":1, "hooks":{} }\n', "mcp.json": '{"mcpServers":{ } }'}
    for name, text in before.items():
        (cursor(user) / name).write_text(text)
    environment = {**os.environ, **user.environment, "AT": at}
    for variable in ELSEWHERE:
        environment.pop(variable, None)
    killed = [sys.executable, "-c", KILLED]
    done = subprocess.run(killed, cwd=user.root, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL

    if again:
        user.install("cursor")
    user.uninstall("cursor")

    assert {name: (cursor(user) / name).read_text() for name in before} == before
    assert {path.name for path in cursor(user).iterdir()} == {*before}


def test_what_another_process_is_writing_just_now_is_left_alone(tmp_path):
    path = tmp_path / "hooks.json"
    running, gone = os.getppid(), 2**22 + 1
    for name in (f"agentbus-{running}", f"agentbus-{gone}", "agentbus-mine", "agentbus-backup-1"):
        (tmp_path / f"hooks.json.{name}").write_text("half")

    edit.put_back(str(path), b"{}")

    assert {one.name for one in tmp_path.iterdir()} == {
        "hooks.json",
        f"hooks.json.agentbus-{running}",
        "hooks.json.agentbus-mine",
        "hooks.json.agentbus-backup-1",
    }


def test_processes_that_install_at_once_record_all_of_it(user):
    environment = {**os.environ, **user.environment}
    for variable in ELSEWHERE:
        environment.pop(variable, None)
    running = [
        subprocess.Popen(
            [program(), "install", *words],
            cwd=user.root,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        for words in (("cursor",), ("agents-md",), ("--git",), ("cursor",))
    ]

    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert {line.partition(":")[0] for line in user.uninstall()} == {"cursor", "agents-md", "git"}
    assert user.files() == {}


def is_waited_for(descriptor: int, pid: int) -> bool:
    """Tell whether a process waits for the lock of a file."""
    locks = pathlib.Path("/proc/locks").read_text().splitlines()
    inode = os.fstat(descriptor).st_ino
    return any("->" in one and f" {pid} " in one and f":{inode} " in one for one in locks)


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux says who waits")
def test_one_process_at_a_time_installs_though_the_directory_goes_in_between(tmp_path):
    place = tmp_path / "agentbus"
    locked = []
    for _ in range(2):
        place.mkdir()
        locked.append(os.open(place, os.O_RDONLY))
        fcntl.flock(locked[-1], fcntl.LOCK_EX)
        if len(locked) == 1:
            waits = (
                "from agentbus.agents.install import folder\nwith folder.alone(): print('alone')"
            )
            waiting = subprocess.Popen(
                [sys.executable, "-c", waits],
                env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
                stdout=subprocess.PIPE,
            )
            while not is_waited_for(locked[0], waiting.pid):
                assert waiting.poll() is None
            # The one that installed removes what is empty, and the next one begins.
            place.rmdir()
    os.close(locked[0])

    while not is_waited_for(locked[1], waiting.pid):
        assert waiting.poll() is None
    os.close(locked[1])
    assert waiting.communicate()[0] == b"alone\n"
    assert not place.exists()


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file/AGENTS.md")

    with pytest.raises(AgentBusError, match="cannot be"):
        edit.merge(path, block.put(path, "ours"), block.drop(path), {}).perform()


def test_settings_stay_as_they_are_where_the_record_cannot_be_written(user):
    place = cursor(user, b"{}")
    record = user.home / ".local/share/agentbus/clients"
    record.parent.mkdir(parents=True)
    record.touch()

    done = user.run("install", "cursor")
    assert (done.code, done.out) == (1, b"")
    assert b"installed.json cannot be written (File exists)" in done.err
    assert (place / "hooks.json").read_bytes() == b"{}"


def test_a_file_that_cannot_be_removed_is_an_error(tmp_path):
    path = tmp_path / "agentbus.js"
    path.write_text(f"// {OWN}\n")
    made = {
        "backup": None,
        "existed": False,
        "folders": [],
        "digest": edit.digest(path.read_bytes()),
    }
    steps = [
        edit.remove_own(str(path), OWN),
        edit.restore(str(path), block.drop(str(path)), {os.path.realpath(path): made}),
    ]
    path.unlink()
    path.mkdir()

    for step in steps:
        with pytest.raises(AgentBusError, match="cannot be written"):
            step.perform()


def test_a_merge_of_what_is_there_already_changes_no_order():
    ours = plugin.hooks("cursor", "/bin/agentbus")
    hooks = {"stop": [ours["hooks"]["stop"][0], {"command": "theirs"}]}
    text = json.dumps({"version": 1, "hooks": ours["hooks"] | hooks}).encode()

    assert settings_json.add_hooks("hooks.json", ours)(text) == text


# -- AGENTS.md --


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"# Rules\n",
        b"# Rules",
        b"# Rules\n\n\n",
        b"# Rules\r\n\r\nBe kind.\r\n",
        "# R\u00e8gles\n".encode("latin-1"),
        b"\xef\xbb\xbf# Rules\n",
    ],
)
def test_agents_md_gets_a_few_lines_and_becomes_what_it_was(user, text):
    path = user.root / "AGENTS.md"
    if text is not None:
        path.write_bytes(text)

    user.install("agents-md")
    after = path.read_bytes()
    user.install("agents-md")

    assert path.read_bytes() == after
    assert after.startswith(text or b"<!-- agentbus:begin -->")
    ours = after[after.index(b"<!-- agentbus:begin") :].splitlines()
    assert len(ours) <= 8
    assert ours[-1] == b"<!-- agentbus:end -->"
    user.uninstall("agents-md")
    assert (path.read_bytes() if path.exists() else None) == text
    assert [path.name for path in user.root.glob("AGENTS*")] == (
        [] if text is None else [path.name]
    )


def test_agents_md_is_never_written_unless_it_is_named(user):
    user.run("install")
    user.install("cursor")

    assert not (user.root / "AGENTS.md").exists()


def test_lines_around_ours_that_were_changed_since_stay(user):
    path = user.root / "AGENTS.md"
    path.write_text("# Rules\n")
    user.install("agents-md")
    path.write_text(path.read_text().replace("# Rules", "# Our rules") + "\nMore.\n")

    user.uninstall("agents-md")

    assert path.read_text() == "# Our rules\n\nMore.\n"


def test_older_lines_of_ours_are_replaced_where_they_are(user):
    path = user.root / "AGENTS.md"
    path.write_text("One.\n<!-- agentbus:begin -->\nold\n<!-- agentbus:end -->\nTwo.\n")

    user.install("agents-md")

    assert path.read_text().startswith("One.\n<!-- agentbus:begin -->\nOther coding agents")
    assert path.read_text().endswith("<!-- agentbus:end -->\nTwo.\n")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- agentbus:begin -->\n",
        "<!-- agentbus:end -->\n<!-- agentbus:begin -->\n",
        "<!-- agentbus:begin --><!-- agentbus:end -->" * 2,
    ],
)
def test_marks_in_disorder_are_refused(text):
    with pytest.raises(Refused, match="in disorder"):
        block.put("AGENTS.md", "ours")(text.encode())


def test_a_dry_run_shows_what_would_change(user):
    (user.root / "AGENTS.md").write_text("# Rules\n")

    done = user.run("install", "agents-md", "--dry-run")

    assert b"\n+<!-- agentbus:begin -->\n" in done.out
    assert (user.root / "AGENTS.md").read_text() == "# Rules\n"


# -- files of ours --


def test_opencode_gets_a_plugin(tmp_path):
    user = User(tmp_path, "opencode")
    path = user.home / ".config/opencode/plugins/agentbus.js"

    user.install("opencode")
    assert json.dumps(program()) in path.read_text()
    assert user.install("opencode")[1].endswith(": already")
    path.write_text(path.read_text() + "// another version\n")
    assert user.install("opencode")[1].endswith(": done")
    user.uninstall("opencode")
    assert not path.parent.exists()


def test_opencode_for_a_project_is_in_the_repository(tmp_path):
    user = User(tmp_path, "opencode")
    user.install("opencode", "--scope", "project")

    assert OWN in (user.root / ".opencode/plugins/agentbus.js").read_text()


def test_a_plugin_of_that_name_which_is_not_ours_is_refused(tmp_path):
    user = User(tmp_path, "opencode")
    path = user.home / ".config/opencode/plugins/agentbus.js"
    path.parent.mkdir(parents=True)
    path.write_text("export const Mine = 1\n")

    assert user.run("install", "opencode").code == 4
    user.uninstall("opencode")
    assert path.read_text() == "export const Mine = 1\n"


def test_opencode_that_is_not_there_is_named_with_the_commands_to_type(user):
    done = user.run("install", "opencode")

    assert done.code == 5
    assert b"mkdir -p ~/.config/opencode/plugins && cp ~/" in done.err


def git(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    named = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    return subprocess.run(
        ["git", *named, *words],
        cwd=user.root,
        env={**os.environ, **user.environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_commit_of_what_another_agent_has_leased_is_refused(user, real_url, project):
    user.environment |= {"AGENTBUS_URL": real_url, "AGENTBUS_PROJECT": project}
    assert user.install("--git")[0].endswith("pre-commit: done")
    assert user.install("--git")[0].endswith("pre-commit: already")
    (user.root / "db.py").write_text("a\n")
    (user.root / "ui.py").write_text("a\n")
    user.run("lease", "db.py", "--agent", "migrator", "--why", "migration")

    git(user, "add", "db.py")
    refused = git(user, "commit", "-m", "db")
    assert refused.returncode != 0
    assert "db.py is leased by migrator" in refused.stderr
    git(user, "reset")
    git(user, "add", "ui.py")
    assert git(user, "commit", "-m", "ui").returncode == 0
    user.uninstall("--git")
    assert not (user.root / ".git/hooks/pre-commit").exists()


def test_a_commit_goes_on_when_agentbus_is_gone(user, monkeypatch):
    monkeypatch.setattr(folder, "program", lambda: "/gone/agentbus")
    user.install("--git")
    (user.root / "ui.py").touch()
    git(user, "add", "ui.py")

    assert git(user, "commit", "-m", "ui").returncode == 0


def test_another_hook_of_git_is_left_alone(user):
    path = user.root / ".git/hooks/pre-commit"
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\nmake lint\n")

    done = user.run("install", "--git")

    assert done.code == 4
    assert b"lease --check --staged" in done.err
    user.uninstall("--git")
    assert path.read_text() == "#!/bin/sh\nmake lint\n"


def test_a_directory_of_hooks_that_the_user_has_set_is_left_alone(user):
    git(user, "config", "core.hooksPath", ".husky")

    done = user.run("install", "--git")

    assert done.code == 4
    assert b"core.hooksPath is .husky" in done.err
    assert not (user.root / ".husky").exists()


def test_a_hook_of_git_without_git_is_an_error_that_says_so(user):
    user.environment["PATH"] = str(user.bin)

    done = user.run("install", "--git")
    assert done.code == 5
    assert b"git cannot be run (No such file or directory)" in done.err


def test_a_hook_of_git_outside_of_a_repository_is_refused(user):
    user.root = user.home

    assert user.run("install", "--git").code == 5
