"""Resolves settings: flags override the environment, which overrides files and defaults.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os

from agentbus.core.names import MAX_BODY_BYTES, name, project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from agentbus.core.validate import Map

# setting: the environment variables that set it, first found wins.
VARIABLES = {
    "agent": ("AGENTBUS_AGENT", "AGENT_ID"),
    "project": ("AGENTBUS_PROJECT", "PROJECT_PREFIX"),
    "url": ("AGENTBUS_URL", "REDIS_URL"),
    "json": ("AGENTBUS_JSON",),
    "log_level": ("AGENTBUS_LOG_LEVEL",),
    "log": ("AGENTBUS_LOG",),
    "config": ("AGENTBUS_CONFIG",),
    "deadline": ("AGENTBUS_DEADLINE",),
    "max_body": ("AGENTBUS_MAX_BODY",),
    "server": ("AGENTBUS_SERVER",),
    "database": ("AGENTBUS_DATABASE",),
    "webhooks": ("AGENTBUS_WEBHOOKS",),
    "webhook_secret": ("AGENTBUS_WEBHOOK_SECRET",),
    "webhook_allow": ("AGENTBUS_WEBHOOK_ALLOW",),
    "queues": (),
    "health": (),
}
# What any config file may set. A file in a repository must not choose the log's path or the server's
# program.
IN_FILES = (
    *("agent", "project", "url", "json", "log_level", "deadline", "max_body"),
    *("queues", "health"),
)
# What only the user's own file, or one chosen by --config, may set beside these: a repository must not
# send results to the network, outside or inside, nor name a file to write to.
IN_OWN_FILE = ("database", "webhooks", "webhook_secret", "webhook_allow")
DEFAULT_DEADLINE = 5.0
# A unix socket's path must fit into 108 bytes on Linux and 104 on macOS.
_LONGEST_SOCKET_PATH = 100


class Settings:
    """The resolved settings, and the source of each value."""

    __slots__ = (*IN_FILES, *IN_OWN_FILE, "sources")

    def __init__(
        self,
        *,
        agent: str,
        project: str,
        url: str | None,
        json: bool,
        log_level: str,
        deadline: float,
        max_body: int,
        sources: Mapping[str, str],
        database: str | None = None,
        webhooks: bool = False,
        webhook_secret: str | None = None,
        webhook_allow: Sequence[str] = (),
        queues: Mapping[object, object] | None = None,
        health: Mapping[object, object] | None = None,
    ) -> None:
        self.agent = agent
        self.project = project
        self.url = url
        self.json = json
        self.log_level = log_level
        self.deadline = deadline
        self.max_body = max_body
        self.sources = sources
        # Used by the verbs of events alone. It may hold a password.
        self.database = database
        self.webhooks = webhooks
        self.webhook_secret = webhook_secret
        self.webhook_allow = webhook_allow
        # Unparsed: `agentbus.queues.policy` reads it, and only for verbs of queues.
        self.queues = queues or {}
        # Unparsed: `agentbus.admin.health.thresholds` reads it, and only for that verb.
        self.health = health or {}


def resolve(flags: Mapping[str, object] | None = None) -> Settings:
    """Resolve every setting from the flags given, the environment, the files and the defaults."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    sources: dict[str, str] = {}
    root = repository()
    paths = _config_files(given.pop("config", None), root)
    files: Sequence[tuple[str, Map]] = ()
    if paths:
        from agentbus.core.config_file import load

        files = [(path, load(path, IN_FILES, IN_OWN_FILE, nearby=nearby)) for path, nearby in paths]

    def pick(setting: str, default: object) -> tuple[object, int]:
        if setting in given:
            sources[setting] = "flag"
            return given[setting], 0
        for variable in VARIABLES[setting]:
            value = os.environ.get(variable)
            if value:
                sources[setting] = variable
                return value, 0
        for path, values in files:
            if setting in values:
                sources[setting] = path
                return values[setting], values.lines[setting]
        sources[setting] = "default"
        return default, 0

    def value(setting: str, default: object) -> Any:
        found, line = pick(setting, default)
        if sources[setting] == "default" or _is_sound(setting, found):
            return found
        from agentbus.core.settings_check import checked

        return checked(setting, found, sources[setting], line)

    return Settings(
        agent=value("agent", None) or name("agent", default_agent()),
        project=value("project", None) or default_project(root),
        url=value("url", None),
        json=value("json", False),
        log_level=value("log_level", "info"),
        deadline=value("deadline", DEFAULT_DEADLINE),
        max_body=value("max_body", MAX_BODY_BYTES),
        sources=sources,
        database=value("database", None),
        webhooks=value("webhooks", False),
        webhook_secret=value("webhook_secret", None),
        webhook_allow=value("webhook_allow", ()),
        queues=value("queues", None),
        health=value("health", None),
    )


def _is_sound(setting: str, value: object) -> bool:
    # What environments set for every verb is checked without `settings_check`, which describes mistakes and
    # whose import takes a tenth of a verb.
    if type(value) is not str:
        return False
    try:
        if setting == "agent":
            name("agent", value)
        elif setting == "project":
            project(value)
        else:
            return setting == "url" and value != ""
    except Exception:  # noqa: BLE001 (described by `settings_check`)
        return False
    return True


def json_wished(argv: Sequence[str]) -> bool:
    """Report whether errors of this command line itself must be JSON."""
    before = list(argv)
    if "--" in before:
        before = before[: before.index("--")]
    switch = os.environ.get("AGENTBUS_JSON")
    if "--json" in before or not switch:
        return "--json" in before
    from agentbus.core.settings_check import ON

    return switch.lower() in ON


def default_agent() -> str:
    """Return `user@host`."""
    user = os.environ.get("LOGNAME") or os.environ.get("USER")
    if not user:
        user = "root" if os.getuid() == 0 else _user_name(os.getuid())
    return f"{user}@{os.uname().nodename}"


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"


def default_project(root: str | None) -> str:
    """Return the name of the repository at `root`, the same in all its work trees, else `agentbus`."""
    if root is None:
        return "agentbus"
    git = f"{root}/.git"
    if os.path.isdir(git):
        chosen = os.path.basename(root)
    else:
        from agentbus.core.repository import repository_name

        chosen = repository_name(git)
    return _project_from(chosen) or "agentbus"


def repository() -> str | None:
    """Return the root of the git work tree around the current directory; None outside of one."""
    try:
        here = os.getcwd()
    except OSError:
        return None
    while True:
        if os.path.lexists(os.path.join(here, ".git")):
            return here
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


def s3() -> dict[str, str]:
    """Return the settings for S3 that are set: `endpoint`, `region` and credentials."""
    wanted = {
        "access_key": ("AWS_ACCESS_KEY_ID",),
        "secret_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    found = {name: next(filter(None, map(os.environ.get, v)), None) for name, v in wanted.items()}
    return {name: value for name, value in found.items() if value}


def environment() -> dict[str, str]:
    """Return the environment for a child process."""
    return dict(os.environ)


def variable(name: str) -> str | None:
    """Return a variable of another program, such as JAVA_HOME, if it is set."""
    return os.environ.get(name) or None


def hand_down(**variables: str | None) -> None:
    """Set variables for this process's libraries and children; None removes one."""
    for each, value in variables.items():
        if value is None:
            os.environ.pop(each, None)
        else:
            os.environ[each] = value


def home() -> str:
    """Return the user's home directory."""
    return os.environ.get("HOME") or os.path.expanduser("~")


def state_directory() -> str:
    """Return the directory of this user's logs and embedded server."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(home(), ".local", "state")
    return os.path.join(base, "agentbus")


def cache_directory() -> str:
    """Return the directory of this user's cached files."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(home(), ".cache")
    return os.path.join(base, "agentbus")


def server_directory() -> str:
    """Return the embedded server's directory, which need not exist yet."""
    return os.path.join(state_directory(), "server")


def socket_path() -> str:
    """Return the path of the embedded server's socket, in a shorter place if the path is too long."""
    path = os.path.join(server_directory(), "redis.sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    import hashlib

    name = hashlib.sha256(os.fsencode(server_directory())).hexdigest()[:16]
    folder = f"/tmp/agentbus-{os.getuid()}-{name}"
    # Other users can write there: this path must belong to this user.
    if os.path.lexists(folder):
        own_directory(folder)
    return f"{folder}/redis.sock"


def own_directory(path: str) -> None:
    """Raise `ConfigError` unless a path is a directory of this user's that others cannot enter."""
    import stat

    from agentbus.core.errors import ConfigError

    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{path} is not a directory of this user's", hint="remove it, or set XDG_STATE_HOME"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)


def log_path() -> str:
    """Return the path of the operations log."""
    return os.environ.get("AGENTBUS_LOG") or os.path.join(state_directory(), "agentbus.log")


def server_program() -> str | None:
    """Return the server program that the user prefers, if any."""
    return os.environ.get("AGENTBUS_SERVER") or None


def test_kill() -> str | None:
    """Return the step at which a test kills a relay or a consumer, if any."""
    return os.environ.get("AGENTBUS_TEST_KILL") or None


def events_path(project: str) -> str:
    """Return the path of the default database for a project's events."""
    from urllib.parse import quote

    return os.path.join(state_directory(), "events", f"{quote(project, safe='')}.db")


def user_config_path() -> str:
    """Return the path of the user's own config file."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(home(), ".config")
    return os.path.join(base, "agentbus", "config.yaml")


def _config_files(chosen: object, root: str | None) -> list[tuple[str, bool]]:
    """Return the config files that apply, nearest first, and whether each was found nearby."""
    explicit = os.environ.get("AGENTBUS_CONFIG") or None if chosen is None else chosen
    if explicit is not None:
        if not os.path.isfile(str(explicit)):
            from agentbus.core.errors import ConfigError

            raise ConfigError(
                f"the config file {explicit!a} is not there",
                hint="correct AGENTBUS_CONFIG",
                shell_hint="correct --config or AGENTBUS_CONFIG",
            )
        return [(str(explicit), False)]
    paths: list[tuple[str, bool]] = []
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    while here:
        paths.append((f"{here}/.agentbus.yaml", True))
        if root is None or here == root:
            break
        here = os.path.dirname(here)
    paths.append((user_config_path(), False))
    return [(path, nearby) for path, nearby in paths if os.path.lexists(path)]


def _project_from(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in text)
    return kept.strip("-")[:128]
