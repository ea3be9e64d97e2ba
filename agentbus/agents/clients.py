"""The facts of each client: how its hooks ask and are answered, and where AgentBus is installed in it.

`CLIENTS` has a record for each client. Hooks read the first half of a record, `agentbus.agents.install`
the second one. A client's hook may send anything: fields of another type than expected count as missing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, dataclass_transform
else:

    def dataclass_transform(**_options):
        """Do nothing; a stand-in for `typing.dataclass_transform`."""
        return lambda cls: cls


# Stand for the name of the event and for the text in the form of an answer; `SESSION` and `TEXT` stand
# in a command.
EVENT, TEXT, SESSION = "{event}", "{text}", "{session}"
_PATCH = "apply_patch"


@dataclass_transform(kw_only_default=True)
class Facts:
    """Facts by name. Every hook makes all records, so they are plainer than a `Record`."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)


class Plugin(Facts):
    """The commands of a client that install a plugin, and the form of the lists that they print."""

    # The verbs of `CLIENT plugin` that install a plugin and take it out.
    add: str
    remove: str
    # The files of the plugin that the client reads, and what its manifest has beside the common fields.
    manifest: str
    hooks: str
    servers: str
    manifest_fields: Mapping[str, str] = {}
    # The keys under which lists stand if they are not the whole output, the field with the directory of
    # a marketplace, and the fields by which our plugin is known.
    market_key: str = ""
    market_field: str
    plugin_key: str = ""
    plugin_fields: Mapping[str, str]
    # The directory from which the client reads the plugin, by the fields of the list.
    copy: str
    # True if a plugin that was taken out is still listed, as one that is not enabled.
    lists_removed: bool = False
    # True if the client can check a plugin: `CLIENT plugin validate DIRECTORY`.
    validates: bool = False


class Client(Facts):
    """The facts of one client."""

    name: str
    # -- hooks --
    # The events of which hooks are installed, in the order of the client's file, and what each is for
    # AgentBus; then others that are answered, too.
    events: Mapping[str, str]
    other_events: Mapping[str, str] = {}
    # The fields that may hold the id of the session.
    session: tuple[str, ...] = ("session_id",)
    # The fields that may hold the id of the subagent that acts.
    subagent: tuple[str, ...] = ("agent_id",)
    # The field of a subagent's event that holds the session it belongs to, if its own id is another one's.
    parent: tuple[str, ...] = ()
    # True if a shell of a subagent has the subagent's id in place of the session's.
    child_shells: bool = False
    # The tool that runs a subagent, in a client whose hooks do not name subagents.
    spawns: str = ""
    # The fields of a tool's name and of its input, in each layout.
    tool_fields: tuple[tuple[str, str], ...] = (("tool_name", "tool_input"),)
    # Tools that edit a file, each with the fields of its input that may hold the path. Tools that may
    # apply a patch, and the fields that may hold it; the shell applies one by the command `apply_patch`.
    edits: Mapping[str, tuple[str, ...]]
    patches: tuple[str, ...] = ()
    patch_fields: tuple[str, ...] = ()
    patching_shell: str = ""
    # The fields that say whether a turn goes on because its end was refused; the answer without them.
    stop_fields: tuple[str, ...] = ("stop_hook_active",)
    stopped: bool = False
    # The form of an answer by event or by what the event is for AgentBus; None if the client takes none.
    answers: Mapping[str, Mapping[str, Any] | None]
    # True if the text that a hook adds after a tool reaches the model at the level of that tool.
    adds_at_tool_level: bool = False
    # True if the answer to a session that begins has the name of its agent.
    takes_name: bool = False
    # The condition on which a hook may wait for a message while the agent is idle: `terminal` or `always`.
    wakes: str = ""
    # The commands that begin a turn in an idle session that a client has, and in one that no client has.
    queue: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    # -- installation --
    # The programs by which the client is found on the PATH.
    programs: tuple[str, ...] = ()
    # The user's directory of settings: the variable that names it, its default, and the part below it.
    # `project` is the directory in a repository; without one the client has settings of the user only.
    user: tuple[str, str, str] = ("", "", "")
    project: str = ""
    # The file that the client's own commands change; `strict` if they refuse comments in it.
    settings: str = ""
    strict: bool = False
    # The client installs a plugin of a marketplace, or links an extension.
    plugin: Plugin | None = None
    extension: str = ""
    # Files in the directory of settings: a plugin of ours, and two into which entries are merged. A rule
    # is a file of ours in the repository.
    plugin_file: str = ""
    hooks_file: str = ""
    servers_file: str = ""
    rule_file: str = ""
    # A hook's form is nested in groups with a matcher of tools, or flat; its timeout is in this unit.
    nested: bool = True
    second: int = 1
    # True if the user has to trust each hook before the client runs it.
    needs_trust: bool = False

    def kind(self, event: str) -> str | None:
        """Return what an event is for AgentBus; None if it is nothing."""
        return self.events.get(event) or self.other_events.get(event)

    def edited(self, given: Mapping[str, Any]) -> list[str]:
        """Return the paths that a tool is about to edit."""
        layouts = [fields for fields in self.tool_fields if fields[0] in given]
        if not layouts:
            return []
        tool, arguments = text(given, layouts[0][0]) or "", given.get(layouts[0][1])
        if tool in self.patches:
            patch = _patch(arguments, self.patch_fields)
            if tool != self.patching_shell:
                paths = _patched(patch)
            else:
                paths = _patched_by_shell(patch) if _PATCH in patch else []
            if paths:
                return paths
        fields = self.edits.get(tool)
        if isinstance(arguments, str):
            arguments = _parsed(arguments) if fields else None
        path = text(arguments, *fields) if fields and isinstance(arguments, dict) else None
        return [] if path is None else [path]

    def stopped_before(self, given: Mapping[str, Any]) -> bool:
        """Tell whether this turn goes on because its end was refused."""
        for field in self.stop_fields:
            if field in given:
                return bool(given[field] != 0)
        return self.stopped

    def form(self, event: str) -> Mapping[str, Any] | None:
        """Return the form of an answer to an event, None if the client takes none."""
        return self.answers.get(event, self.answers.get(self.kind(event) or ""))

    def answer(self, event: str, words: str) -> dict[str, object] | None:
        """Return the answer to an event that has this text, None if the client takes none."""
        form = self.form(event)
        return None if form is None else _filled(form, {EVENT: event, TEXT: words})


def text(given: Mapping[str, Any], *fields: str) -> str | None:
    """Return the first of these fields that is a text with at least one character."""
    for field in fields:
        value = given.get(field)
        if isinstance(value, str) and value:
            return value
    return None


def _filled(form: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, object]:
    return {
        name: words.get(value, value) if isinstance(value, str) else _filled(value, words)
        for name, value in form.items()
    }


def _parsed(arguments: str) -> object:
    from agentbus.core.json_text import from_json

    try:
        return from_json(arguments)
    except ValueError:
        return None


def _patch(arguments: Any, fields: tuple[str, ...]) -> str:
    """Return the patch that is the input of a tool, or one of its fields."""
    if isinstance(arguments, str):
        return arguments
    for field in fields if isinstance(arguments, dict) else ():
        value = arguments.get(field)
        if isinstance(value, list):
            value = "\n".join(word for word in value if isinstance(word, str))
        if isinstance(value, str) and value:
            return value
    return ""


def _patched(patch: str) -> list[str]:
    """Return the paths in a patch of the tool `apply_patch`."""
    paths = []
    for line in patch.splitlines():
        for mark in ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "):
            if line.startswith(mark):
                path = line[len(mark) :].strip()
                if path and path not in paths:
                    paths.append(path)
    return paths


def _patched_by_shell(command: str) -> list[str]:
    """Return the paths in the patch of a command, which may change the directory first."""
    before, directory = command.partition(_PATCH)[0], ""
    if "cd" in before:
        import shlex

        try:
            words = shlex.split(before)
        except ValueError:
            words = []
        if len(words) == 3 and words[0] == "cd" and words[2] == "&&":
            directory = f"{words[1]}/"
    return [path if path[:1] == "/" else directory + path for path in _patched(command)]


def _answers(
    context: Mapping[str, Any], deny: Mapping[str, Any], go_on: Mapping[str, Any]
) -> dict[str, Mapping[str, Any] | None]:
    """Return the forms that add to what the model reads, refuse an edit, and refuse a turn's end."""
    context_of = dict.fromkeys(("start", "turn", "tool", "substart"), context)
    return {**context_of, "edit": deny, "stop": go_on}


_EVENTS = {
    "SessionStart": "start",
    "UserPromptSubmit": "turn",
    "PreToolUse": "edit",
    "PostToolUse": "tool",
    "Stop": "stop",
    "SubagentStart": "substart",
    "SubagentStop": "substop",
    "SessionEnd": "end",
}
_HOOK = "hookSpecificOutput"
_CONTEXT = {_HOOK: {"hookEventName": EVENT, "additionalContext": TEXT}}
_DENIAL = {"permissionDecision": "deny", "permissionDecisionReason": TEXT}
_DENY = {_HOOK: {"hookEventName": EVENT, **_DENIAL}}
_BLOCK = {"decision": "block", "reason": TEXT}

_CLAUDE = Client(
    name="claude",
    events=_EVENTS,
    # A second hook of Stop: it is asynchronous and may make the agent go on later.
    other_events={"Wake": "wake"},
    edits={
        **dict.fromkeys(("Edit", "Write", "MultiEdit"), ("file_path",)),
        "NotebookEdit": ("notebook_path", "file_path"),
    },
    stopped=True,
    answers=_answers(_CONTEXT, _DENY, _BLOCK),
    wakes="terminal",
    resume=("claude", f"--resume={SESSION}", "--print", TEXT),
    programs=("claude",),
    user=("CLAUDE_CONFIG_DIR", ".claude", ""),
    project=".claude",
    settings="settings.json",
    strict=True,
    plugin=Plugin(
        add="install",
        remove="uninstall",
        manifest=".claude-plugin/plugin.json",
        hooks="hooks/hooks.json",
        servers=".mcp.json",
        market_field="path",
        plugin_fields={"id": "agentbus@agentbus"},
        copy="{installPath}",
        validates=True,
    ),
)
_CODEX = Client(
    name="codex",
    events=_EVENTS,
    child_shells=True,
    edits={"Bash": (), _PATCH: ()},
    patches=("Bash", _PATCH),
    patch_fields=("command", "input", "patch"),
    patching_shell="Bash",
    stopped=True,
    # An unknown field voids the whole answer.
    answers=_answers(_CONTEXT, _DENY, _BLOCK),
    queue=("codex", "queue", f"--thread={SESSION}", f"--message={TEXT}"),
    resume=("codex", "exec", "resume", SESSION, TEXT),
    programs=("codex",),
    user=("CODEX_HOME", ".codex", ""),
    settings="config.toml",
    plugin=Plugin(
        add="add",
        remove="remove",
        manifest=".codex-plugin/plugin.json",
        hooks="hooks/codex.json",
        servers="codex.mcp.json",
        manifest_fields={"hooks": "./hooks/codex.json", "mcpServers": "./codex.mcp.json"},
        market_key="marketplaces",
        market_field="root",
        plugin_key="installed",
        plugin_fields={"pluginId": "agentbus@agentbus"},
        copy="{user}/plugins/cache/agentbus/agentbus/{version}",
    ),
    needs_trust=True,
)
_COPILOT = Client(
    name="copilot",
    # Plugins have the layout of Claude Code, which is the last one of each fact; Copilot's own hook files
    # have another.
    events=_EVENTS,
    parent=("parent_agent_id", "parentAgentId"),
    child_shells=True,
    other_events={
        "subagentStart": "substart",
        "subagentStop": "substop",
        "sessionStart": "start",
        "userPromptSubmitted": "turn",
        "preToolUse": "edit",
        "postToolUse": "tool",
        "agentStop": "stop",
        "sessionEnd": "end",
    },
    session=("sessionId", "session_id"),
    tool_fields=(("toolName", "toolArgs"), ("tool_name", "tool_input")),
    edits=dict.fromkeys(("edit", "create", "Edit", "Write"), ("path", "file_path")),
    # Some models send a patch to a tool that edits.
    patches=(_PATCH, "edit", "create", "Edit", "Write"),
    patch_fields=("input",),
    stop_fields=("stopHookActive", "stop_hook_active"),
    # The context is at the top in both layouts.
    answers=_answers({"additionalContext": TEXT}, _DENIAL, _BLOCK) | {"PreToolUse": _DENY},
    adds_at_tool_level=True,
    resume=(
        "copilot",
        *(f"--resume={SESSION}", "--allow-tool=agentbus", f"--prompt={TEXT}"),
    ),
    programs=("copilot",),
    user=("COPILOT_HOME", ".copilot", ""),
    settings="settings.json",
    plugin=Plugin(
        add="install",
        remove="uninstall",
        manifest=".plugin/plugin.json",
        hooks="hooks/copilot.json",
        servers=".mcp.json",
        manifest_fields={"hooks": "hooks/copilot.json"},
        market_field="source",
        plugin_fields={"name": "agentbus", "marketplace": "agentbus"},
        copy="{market}/agentbus",
        lists_removed=True,
    ),
)
_GEMINI = Client(
    name="gemini",
    events={
        "SessionStart": "start",
        "BeforeAgent": "turn",
        "BeforeTool": "edit",
        "AfterTool": "tool",
        "AfterAgent": "stop",
        "SessionEnd": "end",
    },
    spawns="invoke_agent",
    edits=dict.fromkeys(("replace", "write_file"), ("file_path",)),
    answers=_answers(_CONTEXT, *[{"decision": "deny", "reason": TEXT}] * 2),
    adds_at_tool_level=True,
    resume=("gemini", f"--resume={SESSION}", f"--prompt={TEXT}"),
    programs=("gemini",),
    extension="gemini",
    second=1000,
)
_OPENCODE = Client(
    name="opencode",
    # A plugin in JavaScript runs the hooks, and passes on what it knows.
    events={
        "session.created": "start",
        "chat.message": "turn",
        "tool.execute.before": "edit",
        "tool.execute.after": "tool",
        "session.idle": "stop",
        "session.deleted": "end",
    },
    # The plugin runs it after the hook of a turn's end has answered.
    other_events={"Wake": "wake"},
    session=("sessionID",),
    tool_fields=(("tool", "args"),),
    edits=dict.fromkeys(("edit", "write", "multiedit"), ("filePath",)),
    patches=(_PATCH, "patch"),
    patch_fields=("patchText",),
    stop_fields=("again",),
    answers=_answers({"context": TEXT}, {"deny": TEXT}, {"prompt": TEXT})
    | {"wake": {"prompt": TEXT}},
    adds_at_tool_level=True,
    takes_name=True,
    wakes="always",
    resume=("opencode", "run", f"--session={SESSION}", TEXT),
    programs=("opencode",),
    user=("XDG_CONFIG_HOME", ".config", "opencode"),
    project=".opencode",
    plugin_file="plugins/agentbus.js",
)
_CURSOR = Client(
    name="cursor",
    # After its documentation.
    events={
        "sessionStart": "start",
        "beforeSubmitPrompt": "turn",
        "preToolUse": "edit",
        "postToolUse": "tool",
        "stop": "stop",
        "sessionEnd": "end",
    },
    session=("session_id", "conversation_id"),
    edits=dict.fromkeys(("Write", "StrReplace", "Edit"), ("file_path", "path")),
    stop_fields=("loop_count",),
    # A prompt takes no context.
    answers=_answers(
        {"additional_context": TEXT},
        {"permission": "deny", "agent_message": TEXT},
        {"followup_message": TEXT},
    )
    | {"turn": None},
    programs=("cursor", "cursor-agent"),
    user=("", ".cursor", ""),
    project=".cursor",
    hooks_file="hooks.json",
    servers_file="mcp.json",
    rule_file=".cursor/rules/agentbus.mdc",
    nested=False,
)
CLIENTS = {
    client.name: client for client in (_CLAUDE, _CODEX, _COPILOT, _GEMINI, _OPENCODE, _CURSOR)
}
