"""Declarations of verbs and their parameters, from which click and the fast parser are built."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    from agentbus.client.bus import Bus
    from agentbus.commands._output import Out
    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Link, Op

    T = TypeVar("T")

    Convert = Callable[[str], Any]
    # A parameter for the parser: the name of its value; whether it is a flag, takes several words,
    # and is required; its choices; and the function that converts a word.
    Spec = tuple[str, bool, bool, bool, Sequence[str], Convert | None]


class Param:
    """An argument or option, declared by its usage: `QUEUE`, `--json`, `--max, --limit N`.

    An option without a word for its value, and without choices, is a flag. `dest` is the name of
    the value, by default the argument's or the option's first one. `actions` has the usage and
    description of each action that an argument can name; `values` is the kind of value that a shell
    completes.
    """

    def __init__(
        self,
        usage: str,
        help: str,
        *,
        dest: str | None = None,
        convert: Convert | None = None,
        default: object = None,
        many: bool = False,
        required: bool = False,
        choices: Sequence[str] = (),
        actions: Mapping[str, str] = {},
        values: str = "",
    ) -> None:
        words = usage.split(", ") if usage[:2] == "--" and usage[2] != " " else []
        if words:
            words[-1], _, usage = words[-1].partition(" ")
        self.names = tuple(words)
        self.dest = dest or (words[0][2:].replace("-", "_") if words else usage.lower())
        self.metavar = usage or None
        self.flag = not (usage or choices)
        self.help = help
        self.convert = convert
        self.default = default
        self.many = many
        self.required = required
        self.choices = choices
        self.actions = actions
        self.values = values

    def initial(self) -> Any:
        """Return the value of a parameter that is not given."""
        if self.flag:
            return False
        return [] if self.many else self.default

    def read(self, text: str) -> Any:
        """Convert a word of the command line; raises `ValueError`."""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")
            return text
        return text if self.convert is None else self.convert(text)


class Verb:
    """A verb's name, its help, and its parameters.

    `subject` is the parameter that the operations log records as the key. An `unconfigured` verb
    runs even if the settings are wrong, and is not logged. `goes_with` maps an option to actions
    and options of which one must be given, `excludes` to options that must not be given;
    `_together.check` checks both. `waits` has the options and actions, separated by blanks, with
    which the verb waits; '' means that it always waits.
    """

    def __init__(
        self,
        name: str,
        *params: Param,
        text: str = "",
        examples: Sequence[str] = (),
        subject: str | None = None,
        unconfigured: bool = False,
        goes_with: Mapping[str, Sequence[str]] = {},
        excludes: Mapping[str, Sequence[str]] = {},
        waits: str | None = None,
    ) -> None:
        self.name = name
        self.summary = SUMMARIES[name]
        self.text = text
        self.params = params
        self.examples = examples
        self.subject = subject
        self.unconfigured = unconfigured
        self.goes_with = goes_with
        self.excludes = excludes
        self.waits = waits


# The values of a call's parameters, as attributes.
if TYPE_CHECKING:
    from types import SimpleNamespace

    Args = SimpleNamespace
else:
    # A quick verb avoids `types` and creates few classes: each costs a hundredth of its time.
    Args = type(sys.implementation)


class Call:
    """One call of a verb: its arguments, its output, and its connection.

    Verbs that a hook may call at every turn run an operation directly (`enter`, then `run` or
    `each`); other verbs use `bus`, which takes longer to import.
    """

    def __init__(self, args: Args, settings: Settings) -> None:
        self.args = args
        self.settings = settings
        self._out: Out | None = None
        self._bus: Bus | None = None
        self._link: Link | None = None

    @property
    def out(self) -> Out:
        """The writer of the output."""
        if self._out is None:
            from agentbus.commands._output import Out

            self._out = Out(json=self.settings.json)
        return self._out

    @property
    def bus(self) -> Bus:
        """The bus of the settings."""
        if self._bus is None:
            self._bus = open_bus(self.settings)
        return self._bus

    def enter(self) -> Scope:
        """Open the backend of the settings, for `run` and `each`, and return its scope."""
        from agentbus.store.scope import enter

        self._backend, self._scope = enter(self.settings)
        self._link = self._backend.link()
        return self._scope

    def run(self, op: Op[T], *, patience: float = 0.0) -> T:
        """Run an operation on the scope that `enter` returned, and return its result."""
        from agentbus.store import driver

        assert self._link is not None
        if patience:
            return driver.run(self._link, self._attending(op, patience))
        self._look_beside()
        return driver.at_once(self._link, op, self.settings.deadline, self._attempt, self._prepare)

    def each(self, op: Op[None], *, patience: float = 0.0) -> Iterator[Any]:
        """Run an operation on the scope that `enter` returned, and yield what it emits."""
        from agentbus.store.driver import iterate

        assert self._link is not None
        if patience:
            return iterate(self._link, self._attending(op, patience))
        self._look_beside()
        return iterate(self._link, self._attempt(op))

    def attend(self) -> None:
        """Record the session that uses the agent's name, unless it was recorded recently."""
        if self._bus is not None and self._bus._sharded is not None:
            for why in self._bus._sharded.unanswered.values():
                self.out.warn(f"a shard is left out: {why}")
        if self._link is None or self._scope.attended >= 0:
            return
        replies = getattr(self._link, "read_beside", ())
        if self._scope.is_recent(replies):
            return
        if [*replies[2:]] != [[1]]:
            from agentbus.store import driver

            driver.run(self._link, self._attempt(self._scope.attend()))
            return
        from agentbus.store.steps import LinkDown, ServerReply

        try:
            self._link.execute(self._scope.attendance(posted=True))
        except (LinkDown, ServerReply):
            # Ignore the error, as `Scope.attend` does: the verb itself has succeeded.
            return

    def _prepare(self) -> None:
        """Prepare the work after the server's reply while waiting for the reply."""
        _prepare()
        if self.settings.log_level == "info":
            from agentbus.core import oplog

            oplog.open_ahead()

    def _look_beside(self) -> None:
        link: Any = self._link
        # Not every kind of link supports this.
        if hasattr(link, "beside"):
            asked = self._scope.attended_last()
            # A user who may only call functions may not check for scripts.
            link.beside = asked[:2] if self._backend.functions else asked

    def _attending(self, op: Op[T], patience: float) -> Op[T]:
        from agentbus.store.sessions import attending

        return self._attempt(attending(self._scope, op), patience=patience)

    def _attempt(self, op: Op[T], elapsed: float = 0.0, *, patience: float = 0.0) -> Op[T]:
        from agentbus.store.operation import attempt

        return attempt(
            op,
            where=self._backend.name,
            deadline=self.settings.deadline,
            patience=patience,
            elapsed=elapsed,
            advice=self._backend.advice,
            meanwhile=_prepare,
        )


def open_bus(settings: Settings) -> Bus:
    """Return the bus of these settings, which takes longer to import than most verbs."""
    from agentbus.client.bus import Bus

    return Bus(settings)


def _prepare() -> None:
    """Import the modules needed after the server's reply while waiting for the reply."""
    import agentbus.commands._output
    import agentbus.core.oplog  # noqa: F401


def body(
    what: str, argument: str | None, literal: str | None, limit: int, option: str | None = None
) -> str:
    """Return a body given once: as an argument, `-` for stdin, `@FILE`, or by an option."""
    if (argument is None) == (literal is None):
        from agentbus.commands._body import not_once

        ways = "give it as an argument, as - for stdin, or as @FILE"
        raise not_once(what, argument, f"{ways}, or by {option}" if option else ways)
    if argument is None:
        return literal or ""
    if argument == "-" or argument[:1] == "@":
        from agentbus.commands._body import fetched

        return fetched(what, argument, limit, option)
    return argument


# Two ways to name the single flag of a verb.
FLAG = (
    Param("NAME", "The flag.", values="flag"),
    Param("--flag NAME", "The flag.", values="flag"),
)


def one_flag(args: Args) -> str:
    """Return the flag that was named, and set `args.flag` to it for the log."""
    if (args.name is None) == (args.flag is None):
        from agentbus.commands._body import not_once

        raise not_once("flag", args.name, "name it once, as an argument or by --flag")
    named = args.name if args.flag is None else args.flag
    args.flag = named
    return str(named)


def whole(text: str) -> int:
    """Convert an integer."""
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def seconds(text: str) -> float:
    """Convert a number of seconds, or a duration such as 30m."""
    from agentbus.core.timespec import duration

    converted = duration(text)
    if converted is None:
        raise ValueError(f"{text!r} is not a number of seconds, nor a duration such as 30m")
    return converted


def tags(text: str) -> list[str]:
    """Convert tags separated by commas."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]


GLOBAL = (
    Param("--agent ID", "The agent's name. [AGENTBUS_AGENT]", values="agent"),
    Param("--project, --project-prefix PREFIX", "Key prefix. [AGENTBUS_PROJECT]", values="project"),
    Param(
        "--url, --redis-url URL", "URL of the server; default: the embedded server. [AGENTBUS_URL]"
    ),
    Param("--json", "Print one JSON object a line. [AGENTBUS_JSON=1]"),
    Param(
        "--format",
        "json: the same as --json; text overrides AGENTBUS_JSON.",
        choices=("text", "json"),
    ),
    Param(
        "--log-level LEVEL", "Log level: debug, info, warning, error or off. [AGENTBUS_LOG_LEVEL]"
    ),
    Param("--config FILE", "The config file. [AGENTBUS_CONFIG]", values="file"),
    Param(
        "--deadline S",
        "Give up on an unresponsive server after S seconds. [AGENTBUS_DEADLINE]",
        convert=seconds,
    ),
)

GROUPS = {
    "Talk": {
        "speak": "Say something on the project's channel.",
        "overhear": "Print the messages that this agent has not heard yet.",
        "monitor": "Print messages and notices as they come, each one once.",
        "tell": "Send a message to one agent, or to several.",
        "reply": "Answer a message to this agent.",
        "approve": "Ask a person to approve something, and wait for yes or no.",
        "inbox": "Print the messages to this agent that it has not read.",
        "receipts": "Print how far a message got: sent, notified, read or answered.",
        "who": "List the agents that are present, and say what this one does.",
    },
    "Notes": {
        "jot": "Write a note that every agent can recall.",
        "recall": "Read a note by its key, or notes by their tags.",
        "list": "List notes, flags, agents, topics or queues.",
        "forget": "Delete a note and its tag entries.",
    },
    "Flags": {
        "announce": "Take a flag: announce that this agent does something now.",
        "await": "Wait until flags are satisfied (or announced, or free).",
        "satisfy": "Release a flag as done, and wake the agents that await it.",
        "fail": "Release a flag as failed, and wake the agents that await it.",
        "release": "Release a flag without an outcome.",
        "hold": "Run a command while holding a flag.",
        "lease": "Lease paths, so that no other agent edits them; or list the leases.",
    },
    "Work": {
        "publish": "Add a task to a queue.",
        "work": "Run a program for each task of a queue.",
        "result": "Print the result of a finished task.",
        "route": "Route incoming tasks to agents' queues by rules.",
        "ask": "Publish a task, wait for it, and print its result.",
        "dlq": "List, show, replay or purge dead letters: tasks that failed for good.",
        "pause": "Pause a queue: workers take no new tasks. Without a name, list the pauses.",
        "halt": "Pause the whole project: no worker takes new tasks.",
        "resume": "Resume a paused queue; without a name, lift a halt of the project.",
        "agent": "List, pause, resume and remove agents and workers.",
        "bus": "Show streams, queues, groups and statistics; delete a queue or group.",
        "metrics": "Sum up the counts of workers and publishers, or export them to Prometheus.",
        "rerun": "Deliver a group's acknowledged tasks again, starting at a task or a time.",
        "tidy": "Trim finished tasks, and delete dead consumers and leftovers.",
        "task": "Show, change or cancel a task, or take one by hand and settle it.",
        "schedule": "Publish a task again and again, by a period or a cron expression.",
        "limit": "Bound how many tasks of a queue run at once, or start in a second.",
        "flow": "Show, cancel or replay flows: tasks that were published together.",
    },
    "Agents": {
        "top": "Show agents, talk, queues, flags, leases and health on a terminal.",
        "web": "Show agents, talk, queues, flags, leases and health in a browser.",
        "mcp": "Serve tools to a coding agent by MCP, on stdin and stdout.",
        "token": "Create, list and revoke tokens of agents elsewhere, for 'web --mcp'.",
        "prime": "Print what an agent reads first: who is there, and what to do.",
        "wake": "Begin a turn of an idle agent when a message comes, or resume its session.",
        "hook": "Answer an event of a coding agent's client; for clients, not for people.",
        "install": "Install AgentBus in the clients of coding agents: hooks, tools, a skill.",
        "uninstall": "Take AgentBus out of the clients of coding agents.",
    },
    "Pipeline": {
        "archive": "Archive streams as Parquet files, each entry exactly once.",
        "replay": "Publish entries of an archive again, each exactly once.",
        "report": "Report on an archive: activity, latency, failures and anomalies.",
        "spark": "Show which Java and Spark the pipeline uses, and make it start faster.",
    },
    "Events": {
        "events": "Send events; show the status of consumers, and handle parked events.",
        "outbox": "Create an outbox, publish its waiting events, or show its status.",
        "consume": "Run the consumers of a Python module, each event exactly once.",
        "supervise": "Run each consumer of a module in its own process, and keep it running.",
        "quarantine": "List the consumers that supervisors gave up, or release them.",
    },
    "Housekeeping": {
        "whoami": "Show the agent, project and server, and the source of each.",
        "doctor": "Check the server and the project, with a remedy for each finding.",
        "health": "Check queues, workers, events and the server against thresholds.",
        "projects": "List the projects on the server.",
        "acl": "Print the ACL rule that confines a user of the server to this project.",
        "shards": "List the shards of a project on a cluster, or set their number.",
        "clear": "Delete all keys of this project, and of no other.",
        "server": "Control the embedded server, and load functions into any.",
    },
    "Help": {
        "help": "Show the help of a verb, or a page on a topic.",
        "version": "Print the version.",
        "completion": "Print a completion script for a shell.",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}
VERBS = tuple(SUMMARIES)
# Verbs whose names are Python keywords or builtins.
_MODULES = {"await": "await_", "list": "list_"}


def module(name: str) -> Any:
    """Import a verb's module, which has `VERB` and `run`."""
    full = f"agentbus.commands.{_MODULES.get(name, name)}"
    __import__(full)
    return sys.modules[full]


def grammar(params: Sequence[Param]) -> tuple[dict[str, Spec], list[Spec], dict[str, Any]]:
    """Return the options by name, the arguments in order, and the default values."""
    options: dict[str, Spec] = {}
    arguments: list[Spec] = []
    initial: dict[str, Any] = {}
    for param in params:
        spec = param.dest, param.flag, param.many, param.required, param.choices, param.convert
        options.update(dict.fromkeys(param.names, spec))
        if not param.names:
            arguments.append(spec)
        initial[param.dest] = param.initial()
    return options, arguments, initial
