"""Settings: flags over environment over the project's file over the user's file over defaults."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from agentbus.admin.health import thresholds
from agentbus.core import settings, settings_check
from agentbus.core.config_file import load
from agentbus.core.names import repository_project
from agentbus.errors import ConfigError, UsageError
from agentbus.queues import policy
from tests import profiles  # noqa: F401 (loads the profile)
from tests.repositories import SOMEBODY, give_away, make_bare, make_repository, make_work_tree

# setting: variables, then a value for each place, from the strongest to the weakest
CASES = {
    "agent": (("AGENTBUS_AGENT", "AGENT_ID"), ["a-flag", "a-env", "a-env2", "a-user"]),
    "project": (("AGENTBUS_PROJECT", "PROJECT_PREFIX"), ["p-flag", "p-env", "p-env2", "p-f", "p-u"]),
    "url": (("AGENTBUS_URL", "REDIS_URL"), [f"redis://h{i}" for i in range(5)]),
    "json": (("AGENTBUS_JSON",), [True, "0", True, False]),
    "log_level": (("AGENTBUS_LOG_LEVEL",), ["error", "debug", "warning"]),
    "deadline": (("AGENTBUS_DEADLINE",), [1.0, "2.5", 3]),
}  # fmt: skip


@pytest.fixture
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The root of a work tree, with the current directory somewhere below it."""
    root = tmp_path / "some.repo"
    make_repository(root)
    (root / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(root / "deep" / "er")
    return root


@pytest.fixture
def user_file() -> pathlib.Path:
    path = pathlib.Path(os.environ["HOME"], ".config", "agentbus", "config.yaml")
    path.parent.mkdir(parents=True)
    return path


def line(setting: str, value: object) -> str:
    return f"{setting}: {json.dumps(value)}\n"


def trust(repository: pathlib.Path) -> None:
    (repository / ".git" / "config").write_text("[agentbus]\n\ttrust = true\n")


@pytest.mark.parametrize("setting", CASES)
def test_the_strongest_place_wins(setting, repository, user_file, monkeypatch):
    variables, given_values = CASES[setting]
    file = repository / ".agentbus.yaml"
    flag, *in_environment = given_values[: 1 + len(variables)]
    *in_file, in_user = given_values[1 + len(variables) :]
    user_file.write_text(line(setting, in_user))
    for value in in_file:
        file.write_text(line(setting, value))
    trust(repository)
    for variable, value in zip(variables, in_environment, strict=True):
        monkeypatch.setenv(variable, value)

    expected = [
        ({setting: flag}, "flag", flag),
        *(({}, variable, value) for variable, value in zip(variables, in_environment, strict=True)),
        *(({}, str(file), value) for value in in_file),
        ({}, str(user_file), in_user),
    ]
    for flags, source, value in expected:
        found = settings.resolve(flags)
        assert found.sources[setting] == source
        wanted = type(getattr(found, setting))(value) if setting == "deadline" else value
        assert getattr(found, setting) == (False if value == "0" else wanted)
        # What has won goes, and the next takes its place.
        if source in variables:
            monkeypatch.delenv(source)
        elif source == str(file):
            file.unlink()
        elif source == str(user_file):
            user_file.unlink()
    by_default = f"path {repository}" if setting == "project" else "default"
    assert settings.resolve().sources.get(setting, "default") == by_default


# A value that each setting may have, other than the default.
TAKEN = {
    **{setting: value for setting, (_, (_, value, *_)) in CASES.items()},
    "json": "1",
    "max_body": "1000",
    "exchange_limit": "3",
    "database": "postgresql://h/d",
    "app": "shop",
    "webhooks": "1",
    "webhook_secret": "s" * 32,
    "webhook_allow": "hooks.example",
}


@pytest.mark.parametrize(
    ("setting", "variable"),
    [(name, each) for name in TAKEN for each in settings.VARIABLES[name]],
)
def test_each_variable_alone_sets_what_it_names(setting, variable, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = settings.resolve()
    monkeypatch.setenv(variable, str(TAKEN[setting]))

    found = settings.resolve()

    assert getattr(found, setting) != getattr(plain, setting)
    assert found.sources[setting] == variable


def test_every_setting_with_a_variable_is_tried():
    elsewhere = {"config", "log", "server"}

    assert {name for name, found in settings.VARIABLES.items() if found} == {*TAKEN} | elsewhere


def test_the_defaults(repository, monkeypatch):
    monkeypatch.setenv("USER", "ada")
    monkeypatch.delenv("LOGNAME", raising=False)

    found = settings.resolve()

    assert found.agent == f"ada@{os.uname().nodename}~{os.getsid(0)}"
    assert found.project == repository_project(str(repository))
    assert (found.url, found.json, found.log_level, found.deadline) == (None, False, "info", 5.0)


def test_an_empty_variable_sets_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variables, _ in CASES.values():
        for variable in variables:
            monkeypatch.setenv(variable, "")

    assert set(settings.resolve().sources.values()) == {"default"}


def test_the_nearest_file_wins_setting_by_setting(repository, user_file):
    (repository / ".agentbus.yaml").write_text("json: true\nproject: outer\n")
    (repository / "deep" / ".agentbus.yaml").write_text("json: false\n")
    user_file.write_text("json: true\nproject: user\ndeadline: 9\n")

    found = settings.resolve()

    assert (found.json, found.project, found.deadline) == (False, "outer", 9)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Callable[[pathlib.Path], None]:
    """Return a function that gives a file to another user."""

    def give(path: pathlib.Path) -> None:
        if os.getuid() == 0:
            give_away(path)
        else:
            monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)

    return give


@pytest.mark.parametrize("part", ["file", "link", "directory"])
def test_a_file_of_another_users_is_refused(part, repository, stranger):
    file = repository / ".agentbus.yaml"
    theirs = {"file": file, "link": repository / "theirs.yaml", "directory": repository}[part]
    if part == "link":
        file.symlink_to(theirs)
    file.write_text("project: theirs\n")
    assert settings.resolve().project == "theirs"

    stranger(theirs)

    with pytest.raises(ConfigError, match="belongs to another user"):
        settings.resolve({"project": "mine"})
    assert settings.resolve({"config": str(file)}).project == "theirs"


@pytest.mark.parametrize(
    "text",
    [
        *("agent: x", "log_level: debug", "deadline: 9", "max_body: 9", "server: /bin/sh"),
        *("log: /tmp/x", "database: 'sqlite:///x'", "webhooks: true", "webhook_allow: [h]"),
        *("agent.reserved: true", "hook.text: quote", "webhook_secret: 0123456789abcdef"),
    ],
)
def test_a_repository_chooses_no_names_deadlines_logs_nor_where_anything_goes(text, repository):
    (repository / ".agentbus.yaml").write_text(f"{text}\n")

    with pytest.raises(ConfigError, match=r"is unknown|is not allowed in a project's file"):
        settings.resolve()


# A value of each setting, of each policy of queues, and of each threshold of `health`.
VALUES: dict[str, object] = {
    "agent": "x",
    "agent.reserved": True,
    "project": "x",
    "url": "redis://theirs",
    "json": True,
    "log_level": "debug",
    "deadline": 9,
    "max_body": 9,
    "exchange_limit": 9,
    "database": "sqlite:///x",
    "app": "shop",
    "webhooks": True,
    "webhook_secret": "s" * 32,
    "webhook_allow": ["h"],
    "queues": {"mail": {"tier": "low"}},
    "health": {"lag": "off"},
    "channel": {"bound": 100},
    "lease.scope": "worktree",
    "hook.text": "quote",
    "hook.topics": "-commits",
}
POLICIES: dict[str, object] = {
    "tier": "low",
    "attempts": 1,
    "backoff": {"first": 0, "longest": 0},
    "visibility": 0.01,
    "bound": 1,
    "on_full": "trim",
    "key_field": "type",
    "window": "30d",
    "results": 0,
    "retention": 0,
    "dead_letters": "elsewhere",
    "record_attempts": 1,
    "expect": 60,
    "limit": {"at_once": 1},
    "durable": "replica",
    "min_replicas": 3,
}
# A new setting needs trust until somebody has judged that it loses, refuses, redirects, reveals and runs
# nothing, and adds it here, in `settings` and in the table of the page on security.
HARMLESS = {"project", "json", "lease.scope"}
IF_TRUSTED = {"url", "queues", "health", "channel", "hook.topics"}


def counts(setting: str) -> bool:
    """Tell whether a setting of the file nearby counts, for those who use it."""
    try:
        resolved = settings.resolve()
        if setting in ("queues", "health"):
            policy.read(resolved)
            thresholds.read(resolved)
    except ConfigError as error:
        assert re.search("is not trusted|not allowed in a project's file", str(error))  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("setting", settings_check.CHECKS)
def test_a_setting_of_a_clone_counts_only_if_it_is_harmless_or_the_clone_is_trusted(
    setting, trusted, repository
):
    (repository / ".agentbus.yaml").write_text(line(setting, VALUES[setting]))
    if trusted:
        trust(repository)

    assert counts(setting) == (setting in (HARMLESS | IF_TRUSTED if trusted else HARMLESS))


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("setting", policy.CHECKS)
def test_every_policy_of_a_clone_needs_trust(setting, trusted, repository):
    queues = {"mail": {setting: POLICIES[setting]}}
    (repository / ".agentbus.yaml").write_text(line("queues", queues))
    if trusted:
        trust(repository)

    assert counts("queues") == trusted


def test_every_setting_of_a_clone_is_judged_on_the_page_on_security():
    page = pathlib.Path(__file__).parent.parent / "docs/explanation/security.md"
    judged = page.read_text().partition("**What comes with a repository**")[2].partition("\n**")[0]

    for setting in (*settings.IN_FILES, *policy.CHECKS):
        assert f"`{setting}`" in judged, setting


def test_a_policy_of_a_clone_does_not_take_the_place_of_the_users_own(repository, user_file):
    (repository / ".agentbus.yaml").write_text("queues: {mail: {tier: low}}\n")
    user_file.write_text("queues: {mail: {durable: replica}}\n")

    assert not counts("queues")


@pytest.mark.parametrize("said", [None, "false", "", "true", "on"])
def test_a_repository_chooses_the_server_only_of_a_clone_that_is_trusted(said, repository):
    (repository / ".agentbus.yaml").write_text("url: redis://theirs\n")
    if said is not None:
        (repository / ".git" / "config").write_text(f"[agentbus]\n\ttrust = {said}\n")

    if said in ("true", "on"):
        assert settings.resolve().url == "redis://theirs"
    else:
        with pytest.raises(ConfigError, match="is not trusted") as refused:
            settings.resolve()
        assert "git config agentbus.trust true" in str(refused.value)
        assert settings.resolve({"url": "redis://mine"}).url == "redis://mine"


def test_the_user_may_trust_every_clone(repository):
    (repository / ".agentbus.yaml").write_text("url: redis://theirs\n")
    own = pathlib.Path(os.environ["HOME"], ".gitconfig")
    own.write_text("[agentbus]\n\ttrust = true\n")

    assert settings.resolve().url == "redis://theirs"

    (repository / ".git" / "config").write_text("[agentbus]\n\ttrust = false\n")
    with pytest.raises(ConfigError, match="is not trusted"):
        settings.resolve()


@pytest.fixture
def committed(repository, monkeypatch):
    """A bare repository of committed files within a clone, whose config trusts it, with a config file."""
    config = "[agentbus]\n\ttrust = true\n\tproject = payroll\n"
    bare = make_bare(repository / "docs" / "build", config)
    (bare / ".agentbus.yaml").write_text("url: redis://theirs\n")
    monkeypatch.chdir(bare)
    return bare


@pytest.mark.parametrize("below", ["", "refs", "deeper"])
def test_a_bare_repository_inside_a_clone_is_none(below, committed, repository, monkeypatch):
    (committed / below).mkdir(exist_ok=True)
    monkeypatch.chdir(committed / below)

    assert settings.repository() == (str(repository), str(repository / ".git"))
    with pytest.raises(ConfigError, match="is not trusted"):
        settings.resolve()
    (committed / ".agentbus.yaml").unlink()
    assert settings.resolve().project == repository_project(str(repository))


def test_the_trust_of_the_clone_covers_what_lies_inside_it(committed, repository):
    trust(repository)

    assert settings.resolve().url == "redis://theirs"


def test_a_bare_repository_outside_of_work_trees_is_one(tmp_path, monkeypatch):
    bare = make_bare(tmp_path / "shop.git")
    monkeypatch.chdir(bare / "refs")

    assert settings.repository() == (str(bare), str(bare))


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_bare_repository_never_says_that_it_is_trusted(everywhere, committed, repository):
    # As in an archive of the files of a clone, which has no .git.
    shutil.rmtree(repository / ".git")
    if everywhere:
        own = pathlib.Path(os.environ["HOME"], ".gitconfig")
        own.write_text("[agentbus]\n\ttrust = true\n")

    assert settings.repository() == (str(committed), str(committed))
    with pytest.raises(ConfigError, match="is not trusted"):
        settings.resolve()


def test_a_work_tree_is_trusted_as_its_repository(tmp_path, monkeypatch):
    make_work_tree(tmp_path / "tree")
    (tmp_path / "tree" / ".agentbus.yaml").write_text("url: redis://theirs\n")
    monkeypatch.chdir(tmp_path / "tree")
    with pytest.raises(ConfigError, match="is not trusted"):
        settings.resolve()

    trust(tmp_path / "tree-main")

    assert settings.resolve().url == "redis://theirs"


@pytest.mark.parametrize("target", ["../secret", ".git/config", "/etc/passwd", "out/secret"])
def test_a_config_file_that_is_a_link_out_of_the_repository_is_not_read(target, repository):
    (repository.parent / "secret").write_text("password: hunter2\n")
    (repository / "out").symlink_to("..")
    (repository / ".git" / "config").write_text("password: hunter2\n")
    (repository / ".agentbus.yaml").symlink_to(target)

    with pytest.raises(ConfigError, match="is a link to a file that does not belong") as refused:
        settings.resolve()

    assert "hunter2" not in str(refused.value)
    assert "root:" not in str(refused.value)


def test_a_link_to_a_file_of_secrets_within_the_repository_shows_none(repository):
    (repository / ".env").write_text("PASSWORD: hunter2\nhunter3\n")
    (repository / ".agentbus.yaml").symlink_to(".env")

    with pytest.raises(ConfigError, match="is a link to a file that is not a config file") as told:
        settings.resolve()

    assert "hunter" not in str(told.value)
    assert "PASSWORD" not in str(told.value)


def test_a_config_file_may_be_a_link_within_the_repository(repository):
    (repository / "shared.yaml").write_text("project: linked\n")
    (repository / ".agentbus.yaml").symlink_to("shared.yaml")

    assert settings.resolve().project == "linked"


def test_outside_a_repository_no_file_nearby_chooses_the_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".agentbus.yaml").write_text("url: redis://theirs\n")

    with pytest.raises(ConfigError, match="is not trusted"):
        settings.resolve()


def test_no_file_above_the_repository_is_read(repository):
    (repository.parent / ".agentbus.yaml").write_text("json: true\n")

    assert settings.resolve().sources.get("json", "default") == "default"


def test_a_chosen_file_is_the_only_one(repository, user_file, tmp_path, monkeypatch):
    (repository / ".agentbus.yaml").write_text("json: true\n")
    user_file.write_text("project: user\n")
    chosen, other = tmp_path / "chosen.yaml", tmp_path / "other.yaml"
    chosen.write_text("deadline: 7\n")
    other.write_text("deadline: 8\n")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(other))

    assert settings.resolve().deadline == 8
    found = settings.resolve({"config": str(chosen)})

    assert found.deadline == 7
    assert found.sources.get("json", "default") == "default"
    assert found.project == repository_project(str(repository))


def test_xdg_config_home_says_where_the_users_file_is(repository, tmp_path, monkeypatch):
    place = tmp_path / "xdg" / "agentbus"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("agent: xdg\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    assert settings.resolve().agent == "xdg"


@pytest.mark.parametrize(
    "text",
    [
        *("agnet: x", "log: /tmp/x", "server: /bin/sh", "config: x", "true: 1", "null: 1", "1.5: x"),
        *("agent: a\nagent: b", "json: 1\nproject: x\njson: 0", "? [a]\n: b", "? {a: 1}\n: b"),
        *("agent: &a x\nproject: *a", "agent: &a [*a]", "agent: !!python/name:os.system", "<<: {}"),
        *("- agent", "agent", "42", "agent: [", "agent: 'x", "\t", "a: b: c", "--- a\n--- b", "%x"),
        *("agent: 2024-13-45", "agent: NO", "agent: 7", "agent: [a]", "agent:", "agent: ''"),
        *("project: 1.10", "project: NO", "project: a b", "project: x:jot", "project: '*'"),
        *("url: 5", "url: ''", "url: [redis://h]", "json: maybe", "json: 2", "json: []"),
        *("log_level: loud", "log_level: yes", "log_level: true", "log_level: 5", "deadline: 0"),
        *("deadline: -1", "deadline: soon", "deadline: .nan", "deadline: .inf", "deadline: true"),
        *("deadline: [1]", "deadline: 1e99", "deadline:", "agent: " + "9" * 5000),
        *("[" * 5000, "{" * 5000, "agent: " + "x" * 257, "agent: 'a\\b\"'\nagent: b", "- " * 5000),
        *("!!map x", "queues: !!seq {}", "json: !!bool maybe", "deadline: !!int ''", "agent: !!set {}"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_a_sentence(text, repository, user_file):
    user_file.write_text(text)

    with pytest.raises(UsageError) as refused:
        settings.resolve()

    said = str(refused.value)
    assert refused.value.exit_code == 2
    assert refused.value.hint
    assert "config.yaml" in said
    assert said.isprintable()
    assert len(said) < 600


@pytest.mark.parametrize(
    "text",
    [
        "url: redis://:sesame@h: x",
        "url: 'redis://:sesame@h",
        "url: [redis://:sesame@h",
        "url: @sesame",
    ],
)
def test_an_error_about_a_file_shows_no_password(text, repository):
    (repository / ".agentbus.yaml").write_text(text)

    with pytest.raises(ConfigError) as refused:
        settings.resolve()

    assert "sesame" not in str(refused.value)


def test_a_misspelt_setting_is_guessed(repository):
    (repository / ".agentbus.yaml").write_text("projet: x\n")

    with pytest.raises(ConfigError, match="did you mean 'project'"):
        settings.resolve()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "\ufeffproject: a\n"])
def test_a_file_may_set_nothing(text, repository):
    (repository / ".agentbus.yaml").write_text(text)

    assert settings.resolve().agent


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("json: NO", "json", False),
        ("json: 'on'", "json", True),
        ("log_level: off", "log_level", "off"),
        ("log_level: no", "log_level", "off"),
        ("log_level: WARNING", "log_level", "warning"),
        ("deadline: '2'", "deadline", 2.0),
        ("project: '1.10'", "project", "1.10"),
        ("agent: 'NO'", "agent", "NO"),
        ("agent: 日本", "agent", "日本"),
    ],
)
def test_what_yaml_makes_of_words_is_understood(text, setting, value, repository, user_file):
    user_file.write_text(text)

    assert getattr(settings.resolve(), setting) == value


def unreadable(path: pathlib.Path, kind: str) -> None:
    if kind == "huge":
        path.write_bytes(b"# " + b"x" * 2**16)
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 4)
    elif kind == "latin-1":
        path.write_bytes(b"agent: caf\xe9\n")
    elif kind == "utf-16":
        path.write_text("agent: a\n", encoding="utf-16")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to("nowhere")


KINDS = ["huge", "binary", "latin-1", "utf-16", "directory", "fifo", "dangling link"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["found", "chosen"])
def test_a_file_that_is_no_config_is_refused_in_a_sentence(kind, how, repository):
    path = repository / ".agentbus.yaml"
    unreadable(path, kind)

    with pytest.raises(ConfigError) as refused:
        settings.resolve({"config": str(path)} if how == "chosen" else None)

    assert refused.value.exit_code == 2
    assert str(refused.value).isprintable()


def test_a_missing_file_that_was_chosen_is_refused(repository):
    with pytest.raises(ConfigError, match="not there"):
        settings.resolve({"config": "nowhere.yaml"})


@given(
    data=st.binary(max_size=200)
    | st.text(st.characters(codec="utf-8"), max_size=200).map(str.encode)
)
def test_any_file_is_read_or_refused_in_a_sentence(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_bytes(data)
    try:
        found = load(str(path), settings.IN_FILES, ())
    except ConfigError as refused:
        assert str(refused).isprintable()  # noqa: PT017
    else:
        assert set(found) <= set(settings.IN_FILES)


@pytest.mark.parametrize("setting", ["log", "server", "config"])
def test_a_file_chooses_neither_the_log_nor_a_program(setting, real_shell):
    bait = real_shell.home / "bait"
    make_repository(real_shell.home)
    (real_shell.home / ".agentbus.yaml").write_text(f"{setting}: {bait}\n")

    done = real_shell.run("speak", "hi")

    assert done.returncode == 2
    assert f"the key '{setting}' is unknown" in done.stderr
    assert not bait.exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("AGENTBUS_AGENT", "a\nb"), ("AGENTBUS_AGENT", "x" * 257), ("AGENT_ID", "\x1b[2J")),
        *(("AGENTBUS_PROJECT", "*"), ("PROJECT_PREFIX", "a b"), ("AGENTBUS_PROJECT", "x:flag")),
        *(("AGENTBUS_URL", "nonsense"), ("REDIS_URL", "redis://h:99999"), ("AGENTBUS_URL", "x://h")),
        *(("AGENTBUS_JSON", "2"), ("AGENTBUS_LOG_LEVEL", "loud"), ("AGENTBUS_DEADLINE", "nan")),
        *(("AGENTBUS_DEADLINE", "-1"), ("AGENTBUS_CONFIG", "/nowhere"), ("AGENTBUS_AGENT", "\udcff")),
    ],
)  # fmt: skip
def test_a_hostile_environment_is_refused_in_a_sentence(variable, value, real_shell):
    environment = {"AGENTBUS_URL": "", "REDIS_URL": real_shell.environment["AGENTBUS_URL"]}
    if variable == "AGENT_ID":
        environment["AGENTBUS_AGENT"] = ""
    if variable == "PROJECT_PREFIX":
        environment["AGENTBUS_PROJECT"] = ""

    done = real_shell.run("speak", "hi", env={**environment, variable: value})

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) in {1, 2}
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


def test_whoami_says_where_each_setting_came_from(real_shell):
    make_repository(real_shell.home)
    own = real_shell.home / ".config" / "agentbus"
    own.mkdir(parents=True)
    (own / "config.yaml").write_text("agent: from-file\n")

    (found,) = real_shell.records(
        *("whoami", "--url", "redis://u:sesame@h/1"), env={"AGENTBUS_AGENT": ""}
    )

    assert found["agent_id"] == "from-file"
    assert found["url"] == "redis://u:***@h/1"
    assert found["sources"] == {
        "agent": str(own / "config.yaml"),
        "project": "AGENTBUS_PROJECT",
        "url": "flag",
    }


@pytest.mark.parametrize("option", ["--agent", "--project", "--url", "--config"])
def test_an_empty_option_is_a_mistake(option, real_shell):
    done = real_shell.run("speak", "hi", option, "")

    assert done.returncode == 2
    assert "empty" in done.stderr or "is no" in done.stderr
