"""Resolves settings: flags override the environment, which overrides files and defaults.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import stat

from agentbus.core import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from agentbus.core.errors import ConfigError
    from agentbus.core.validate import Map

_AGENT, _PROJECT = ("AGENTBUS_AGENT", "AGENT_ID"), ("AGENTBUS_PROJECT", "PROJECT_PREFIX")
# Environment variables of each setting; the first that is set wins.
VARIABLES = {
    "agent": _AGENT,
    "project": _PROJECT,
    "url": ("AGENTBUS_URL", "REDIS_URL"),
    "json": ("AGENTBUS_JSON",),
    "log_level": ("AGENTBUS_LOG_LEVEL",),
    "log": ("AGENTBUS_LOG",),
    "config": ("AGENTBUS_CONFIG",),
    "deadline": ("AGENTBUS_DEADLINE",),
    "max_body": ("AGENTBUS_MAX_BODY",),
    "exchange_limit": ("AGENTBUS_EXCHANGE_LIMIT",),
    "server": ("AGENTBUS_SERVER",),
    "database": ("AGENTBUS_DATABASE",),
    "app": ("AGENTBUS_APP",),
    "webhooks": ("AGENTBUS_WEBHOOKS",),
    "webhook_secret": ("AGENTBUS_WEBHOOK_SECRET",),
    "webhook_allow": ("AGENTBUS_WEBHOOK_ALLOW",),
    **dict.fromkeys(
        (
            "agent.reserved",
            "queues",
            "health",
            "channel",
            "lease.scope",
            "hook.text",
            "hook.topics",
        ),
        (),
    ),
}
# Any file of a repository may set the first: none of them loses, reveals or runs anything, or chooses
# where something goes. The others count only in a clone that its user trusts. No file chooses the log's
# path or the server's program.
HARMLESS = ("project", "json", "lease.scope")
IN_FILES = (*HARMLESS, "url", "queues", "health", "channel", "hook.topics")
# Only the user's own file, or a file given with --config, may also set these: a repository must not
# choose agent names, deadlines, logs, output files or what is sent over the network.
IN_OWN_FILE = (
    *("agent", "log_level", "deadline", "max_body", "exchange_limit"),
    *("database", "app", "webhooks", "webhook_secret", "webhook_allow", "hook.text"),
)
_NAMING = frozenset(("agent", "project"))
# Environment variables of the other settings that a config file may hold.
_OTHERS = frozenset(
    (
        *("AGENTBUS_URL", "REDIS_URL", "AGENTBUS_JSON", "AGENTBUS_LOG_LEVEL", "AGENTBUS_DEADLINE"),
        *("AGENTBUS_MAX_BODY", "AGENTBUS_EXCHANGE_LIMIT", "AGENTBUS_DATABASE"),
        "AGENTBUS_APP",
        *("AGENTBUS_WEBHOOKS", "AGENTBUS_WEBHOOK_SECRET", "AGENTBUS_WEBHOOK_ALLOW"),
    )
)
DEFAULT_DEADLINE, EXCHANGE_LIMIT = 5.0, 20
# A unix socket's path must fit into 108 bytes on Linux and 104 on macOS.
LONGEST_SOCKET_PATH = 100
_SMALL = 65_536
# These characters have a special meaning in git's configuration.
_UNPLAIN = frozenset('"\\#;\r\t ')


class Settings:
    """The resolved settings; `sources` names the origins of the given settings, agent and project."""

    def __init__(
        self,
        *,
        agent: str,
        project: str,
        sources: Mapping[str, str],
        url: str | None = None,
        json: bool = False,
        log_level: str = "info",
        deadline: float = DEFAULT_DEADLINE,
        max_body: int = names.MAX_BODY_BYTES,
        peers: str = "",
        database: str | None = None,
        app: str | None = None,
        webhooks: bool = False,
        webhook_secret: str | None = None,
        webhook_allow: Sequence[str] = (),
        queues: Mapping[object, object] | None = None,
        health: Mapping[object, object] | None = None,
        lease_scope: str = "repository",
        hook_text: str = "counts",
        hook_topics: str = "",
        withheld: Mapping[str, ConfigError] | None = None,
        exchange_limit: int = EXCHANGE_LIMIT,
        channel: tuple[int, float | None] = (names.CHANNEL_BOUND, None),
    ) -> None:
        self.agent = agent
        self.project = project
        self.url = url
        self.json = json
        self.log_level = log_level
        self.deadline = deadline
        self.max_body = max_body
        self.exchange_limit = exchange_limit
        # The channel keeps about the newest entries of this number, and none for longer than these seconds.
        self.channel_bound, self.channel_keep = channel
        self.sources = sources
        # Only the events commands use the database URL, which may hold a password.
        self.database = database
        # The application, which begins the names of its consumers of events.
        self.app = app
        self.webhooks = webhooks
        self.webhook_secret = webhook_secret
        self.webhook_allow = webhook_allow
        # Prefix of this user's other session names on this host; empty if the agent is named.
        self.peers = peers
        # Neither is parsed here: the verbs of queues read the one, `health` the other, by `mapping`.
        self.queues = queues or {}
        self.health = health or {}
        # With `project`, all directories share leases; with `repository`, the work trees of each
        # repository; with `worktree`, each has separate leases.
        self.lease_scope = lease_scope
        # With `counts`, hooks report only counts; with `quote`, they also quote the newest message.
        self.hook_text = hook_text
        # The topics that agents follow, or mute, unless they choose others.
        self.hook_topics = hook_topics
        # True if the agent runs elsewhere: nothing of this process describes it.
        self.remote = False
        self._withheld = withheld or {}

    def mapping(self, setting: str) -> Mapping[object, object]:
        """Return `queues` or `health`. Raises `ConfigError` if it is set by a clone that is not trusted."""
        if setting in self._withheld:
            raise self._withheld[setting]
        return self.queues if setting == "queues" else self.health


def resolve(flags: Mapping[str, object] | None = None, *, session: str = "") -> Settings:
    """Resolve every setting from flags, environment, files and defaults; `session` is a default agent."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    sources: dict[str, str] = {}
    root, common = repository()
    paths = _config_files(given.pop("config", None), root, common)
    files = _loaded(paths) if paths else ()
    withheld: dict[str, ConfigError] = {}

    def pick(setting: str, default: object, variables: Sequence[str] = ()) -> tuple[object, int]:
        if setting in given:
            sources[setting] = "flag"
            return given[setting], 0
        for variable in variables:
            value = os.environ.get(variable)
            if value:
                sources[setting] = variable
                return value, 0
        for path, nearby, values in files:
            if setting in values:
                if nearby and setting not in HARMLESS:
                    from agentbus.core.repository import distrust

                    error = distrust(path, setting, root, common, _git_config_files())
                    # A program that trims the channel at another bound would lose messages of all, and
                    # one that mutes topics would hide them.
                    if error is not None and setting in ("url", "channel", "hook.topics"):
                        raise error
                    if error is not None:
                        # Most verbs do without it.
                        withheld[setting] = error
                sources[setting] = path
                return values[setting], values.lines[setting]
        return default, 0

    def value(setting: str, default: object, variables: Sequence[str]) -> Any:
        raw, line = pick(setting, default, variables)
        if setting not in sources or _is_sound(setting, raw):
            return raw
        from agentbus.core.settings_check import checked

        return checked(setting, raw, sources[setting], line, pick)

    agent, peers = value("agent", session or None, _AGENT), ""
    if agent is None:
        from agentbus.core import agent_name

        default_agent, sources["agent"], peers = agent_name.default(os.environ, state_directory())
        agent = names.name("agent", default_agent)
    chosen = value("project", None, _PROJECT)
    if chosen is None:
        chosen, sources["project"] = default_project(root, common)
    # These variables are rarely set; looking up each costs a hundredth of a fast command's time.
    are_given = files or not _NAMING.issuperset(given) or any(map(os.environ.get, _OTHERS))
    others = _others(value) if are_given else {}
    if agent[:6].lower() == "human:":
        from agentbus.core import person_name

        person_name.check(agent, os.environ, state_directory(), others.get("url"))
    named = {"agent": agent, "project": chosen, **others}
    return Settings(sources=sources, peers=peers, withheld=withheld, **named)


def _loaded(paths: Sequence[tuple[str, str | None]]) -> list[tuple[str, bool, Map]]:
    """Return the config files, whether each was found nearby, and what they set."""
    from agentbus.core.config_file import load

    own = (*IN_OWN_FILE, "agent.reserved")
    return [(path, root is not None, load(path, IN_FILES, own, root=root)) for path, root in paths]


def _others(value: Callable[[str, object, Sequence[str]], Any]) -> dict[str, Any]:
    """Return the given settings, except the agent and the project."""
    settings = {}
    for setting, variables in VARIABLES.items():
        if setting in (*IN_FILES, *IN_OWN_FILE) and setting not in _NAMING:
            given = value(setting, None, variables)
            if given is not None:
                settings[setting.replace(".", "_")] = given
    return settings


def _is_sound(setting: str, value: object) -> bool:
    # Check common environment settings here. `settings_check` describes mistakes, but importing it
    # costs a tenth of a command's time.
    if type(value) is not str:
        return False
    try:
        if setting == "agent":
            return names.name("agent", value).lower() not in names.RESERVED
        if setting == "project":
            names.project(value)
        else:
            return setting == "url" and value != ""
    except Exception:  # noqa: BLE001 (described by `settings_check`)
        return False
    return True


def default_project(root: str | None, common: str | None) -> tuple[str, str]:
    """Return the project of the repository at `root`, else `agentbus`, and the source of that name."""
    if root is None:
        return "agentbus", "default"
    # Parse the usual form of git's config here: importing `repository`, which parses every form, is
    # slower.
    text = "" if common is None else _text_of(f"{common}/config")
    low = text.lower()
    if "[agentbus" in low:
        named = _between(text, "\n[agentbus]\n\tproject = ", "\n")
        if low.count("project") == 1 and _is_sound("project", named):
            return named, "git config agentbus.project"
    elif quick := _quick_address(root, common, text):
        address = quick.partition(" ")[2]
        return names.repository_project(address), quick
    from agentbus.core.repository import project

    return project(root, common)


def repository_name(root: str, common: str | None) -> str:
    """Return the name of a repository: that of its project, unless a setting names another one."""
    text = "" if common is None else _text_of(f"{common}/config")
    if quick := _quick_address(root, common, text):
        return names.repository_project(quick.partition(" ")[2])
    from agentbus.core.repository import name

    return name(root, common)


def _quick_address(root: str, common: str | None, text: str) -> str:
    """Return how a repository with this git config has its name, before a space and its address."""
    if text and "[remote" not in text.lower() and common == f"{root}/.git":
        return f"path {names.repository_address(root)}"
    url = _between(text, '\n[remote "origin"]\n\turl = ', "\n")
    if ":" in url.partition("/")[0] and _UNPLAIN.isdisjoint(url):
        address = names.repository_address(url)
        if address[:1] not in ("", "/"):
            return f"origin {address}"
    return ""


def repository() -> tuple[str | None, str | None]:
    """Return the root of the git repository around the current directory, and its common directory.

    All work trees of a repository share the common directory, which is None if another user owns the
    repository. Both are None outside of a repository that git would accept. A bare repository counts only
    outside of every work tree: inside, it may be made of files that came with a clone.
    """
    bare = None
    try:
        here = os.getcwd()
    except OSError:
        return None, None
    while True:
        git = os.path.join(here, ".git")
        try:
            status = os.lstat(git)
        except OSError:
            pass
        else:
            common = _common_directory(git, status)
            if common is not None:
                return here, common or None
        if bare is None and os.path.lexists(os.path.join(here, "HEAD")):
            from agentbus.core.repository import is_bare

            if is_bare(here):
                bare = here
        above = os.path.dirname(here)
        if above == here:
            return (None, None) if bare is None else (names.repository_place(bare), bare)
        here = above


def _common_directory(git: str, status: os.stat_result) -> str | None:
    """Return the common directory of the repository at `git`; "" if it is another user's, None if none."""
    own, common = git, git
    owners = {status.st_uid, os.stat(os.path.dirname(git)).st_uid}
    if not stat.S_ISDIR(status.st_mode):
        # The directory around `.git` has no links: it is the kernel's path of the current
        # directory, or a parent.
        own = common = git if stat.S_ISREG(status.st_mode) else os.path.realpath(git)
        text = _text_of(own)
        if text.startswith("gitdir:"):
            own = os.path.join(os.path.dirname(own), text[7:].strip())
            common = os.path.normpath(os.path.join(own, _text_of(f"{own}/commondir").strip()))
    head = _text_of(f"{own}/HEAD")
    if not head.startswith("ref: refs/"):
        from agentbus.core.repository import is_head

        if not is_head(f"{own}/HEAD", head):
            return None
    try:
        # Without both directories this is not a repository, and git continues with the parent
        # directory.
        os.stat(f"{common}/objects/.")
        os.stat(f"{common}/refs/.")
        if own is not git:
            owners |= {os.stat(own).st_uid, os.stat(common).st_uid}
    except OSError:
        return None
    return common if owners <= {0, os.getuid()} else ""


def _text_of(path: str) -> str:
    """Return the contents of a small text file; "" if it cannot be read."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        data = os.read(descriptor, _SMALL)
        return data.decode() if len(data) < _SMALL else ""
    except (OSError, ValueError):
        return ""
    finally:
        os.close(descriptor)


def _between(text: str, before: str, after: str) -> str:
    return text.partition(before)[2].partition(after)[0]


def environment() -> dict[str, str]:
    """Return the environment for a child process."""
    return dict(os.environ)


def variable(name: str) -> str | None:
    """Return an environment variable that is not a setting of AgentBus, such as JAVA_HOME, if it is set."""
    return os.environ.get(name) or None


def hand_down(**variables: str | None) -> None:
    """Set environment variables for this process's libraries and children; None removes a variable."""
    for each, value in variables.items():
        if value is None:
            os.environ.pop(each, None)
        else:
            os.environ[each] = value


def home() -> str:
    """Return the user's home directory."""
    return os.environ.get("HOME") or os.path.expanduser("~")


def _place(name: str, *default: str) -> str:
    base = os.environ.get(name) or ""
    return base if os.path.isabs(base) else os.path.join(home(), *default)


def state_directory() -> str:
    """Return the directory of this user's logs and embedded server."""
    return os.path.join(_place("XDG_STATE_HOME", ".local", "state"), "agentbus")


def cache_directory() -> str:
    """Return the directory of this user's cached files."""
    return os.path.join(_place("XDG_CACHE_HOME", ".cache"), "agentbus")


def server_directory() -> str:
    """Return the embedded server's directory, which need not exist yet, by its one name without links."""
    return os.path.join(os.path.realpath(state_directory()), "server")


def socket_path() -> str:
    """Return the path of the embedded server's socket, in another directory if the path is too long."""
    path = os.path.join(server_directory(), "redis.sock")
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    from agentbus.core.socket_place import find

    folder = find(server_directory(), variable("XDG_RUNTIME_DIR"))
    # Without such a directory, return the long path, where no server can listen.
    return path if folder is None else f"{folder}/redis.sock"


def log_path() -> str:
    """Return the path of the operations log."""
    return os.environ.get("AGENTBUS_LOG") or os.path.join(state_directory(), "agentbus.log")


def user_config_path() -> str:
    """Return the path of the user's own config file."""
    return os.path.join(_place("XDG_CONFIG_HOME", ".config"), "agentbus", "config.yaml")


def _git_config_files() -> list[str]:
    """Return the paths of the user's own git config, the one that wins first."""
    return [
        f"{home()}/.gitconfig",
        os.path.join(_place("XDG_CONFIG_HOME", ".config"), "git/config"),
    ]


def _config_files(
    chosen: object, root: str | None, common: str | None
) -> list[tuple[str, str | None]]:
    """Return the config files that apply, nearest first; with the directory that one found nearby is of."""
    explicit = os.environ.get("AGENTBUS_CONFIG") or None if chosen is None else chosen
    if explicit is not None:
        from agentbus.core.settings_check import existing_file

        return [(existing_file(str(explicit)), None)]
    paths: list[tuple[str, str | None]] = []
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    while here:
        paths.append((f"{here}/.agentbus.yaml", root or here))
        if root is None or here == root:
            break
        here = os.path.dirname(here)
    if common is not None and not f"{common}/".startswith(f"{root}/"):
        place = names.repository_place(common)
        paths.append((f"{place}/.agentbus.yaml", place))
    paths.append((user_config_path(), None))
    return [(path, within) for path, within in paths if os.path.lexists(path)]
