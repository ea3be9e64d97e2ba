"""The tools of the MCP server, implemented with the verbs of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.agents.mcp import ToolResult
from agentbus.agents.prime import UNGUARDED
from agentbus.agents.tools import LONGEST_WAIT
from agentbus.commands import _inbox, _spoken
from agentbus.commands._errors import unexpected
from agentbus.commands._part import part
from agentbus.commands._payload import json_or_text
from agentbus.commands._tool_call import ToolCall
from agentbus.coordination import (
    announce,
    frames,
    inbox,
    leases,
    presence,
    receipts,
    speak,
    tell as messages,
)
from agentbus.core.clock import of_day
from agentbus.core.errors import (
    AgentBusError,
    EpochMismatch,
    InvalidPayload,
    NotFound,
    TimedOut,
    UsageError,
)
from agentbus.core.escape import escaped
from agentbus.core.json_text import to_json
from agentbus.core.names import word
from agentbus.core.stream import position
from agentbus.core.timespec import preceding
from agentbus.queues.ids import taker

if TYPE_CHECKING:
    from agentbus.commands._tool_call import Links
    from agentbus.coordination.inbox import Page

# Maximum characters of a result, which are about 2,000 tokens, and maximum number of messages.
_LETTERS, _MESSAGES = 6_000, 20
# Maximum number of agents and leases in a result; `who` and `lease` list all.
_NEAR = 8
# Maximum number of tasks of the board, and the options of a new task.
_TASKS = 25
_PUT = ("after", "priority", "key", "ordering_key")
# Tools whose result is a list, even of one item.
_LISTS = ("catch_up", "lease", "note", "receipts", "who")


def perform(
    links: Links, name: str, given: dict[str, Any], wanted: Callable[[], bool]
) -> ToolResult:
    """Run a tool for an agent, while its result is `wanted`; errors become its result."""
    tool = None
    try:
        tool = ToolCall(links, given, wanted)
        PERFORM[name](tool)
    except AgentBusError as error:
        error.name_operation(name)
        return _failed(error, tool)
    except Exception as error:  # noqa: BLE001 (the server goes on)
        return _failed(unexpected(error, name), tool)
    printed = tool.captured
    data: Mapping[str, object] = {"items": printed.records}
    if len(printed.records) == 1 and name not in _LISTS:
        (data,) = printed.records
    return ToolResult("\n".join(printed.lines), data, False, tool.finish)


def _failed(error: AgentBusError, tool: ToolCall | None) -> ToolResult:
    """Return the error as a result, in the words of the command line."""
    text = f"agentbus: {error.message}"
    if error.shell_hint:
        text += f"\nhint: {error.shell_hint}"
    shown = [*tool.captured.lines, text] if tool is not None else [text]
    data = {"error": error.message, "code": error.exit_code, "hint": error.shell_hint}
    return ToolResult("\n".join(shown), data, True, None if tool is None else tool.finish)


def catch_up(call: ToolCall) -> None:
    """Print unread messages, new messages of the channel, present agents, and leases."""
    scope, given = call.enter(), call.given
    peek, topic, after = given.get("peek", False), given.get("topic"), given.get("after")
    topics = [] if topic is None else [topic]
    if after is None:
        op = inbox.pending(scope, peek=peek, topic=topic, limit=_MESSAGES)
    else:
        op = inbox.read(scope, after=after, topic=topic, limit=_MESSAGES)
    page, wait = inbox.Page((), 0, False, "0-0", 0.0), call.wait()
    with part(call):
        page = call.run(op)
    if wait and after is None and not page.messages:
        with part(call, UsageError, EpochMismatch):
            if not _spoken.unheard(call, topics):
                page = _waited(call, wait, peek, topic) or page
    unread = 0 if topic or after else page.unread
    read, shown, room = _inbox.show(
        *(call, page.messages, page.now),
        unread=unread,
        most=_LETTERS,
        cut=frames.CUT if after is None else None,
    )
    if read and not peek:
        call.after.append(lambda taken: taken and call.run(inbox.mark(scope, read)))
    cut = [message.id for message in page.messages[:shown] if message.id not in read]
    if cut and after is None:
        how = f"call catch_up with after={_before(cut)}"
        call.out.warn(f"texts were cut, and are still unread: {how} to read them whole")
    # Do not suggest another call if all messages were cut: it would return the same messages.
    if (shown < len(page.messages) or page.more) and (read or peek or after):
        last = page.messages[shown - 1].id
        how = f"with after={last}" if peek or after else "again"
        call.out.warn(f"there are more: call catch_up {how}")
    if after is None:
        most, first = _MESSAGES - shown, not shown
        # The cursor may be no id, or past the channel's end.
        with part(call, UsageError, EpochMismatch):
            show = _spoken.show(call, most=most, room=room, first=first, peek=peek, topics=topics)
            call.after.append(show)
    if not call.captured.lines:
        call.out.record({}, "Nothing new.")
    with part(call):
        _nearby(call)
    if not (topic or after):
        with part(call):
            for line in _inbox.asks(call, [message.id for message in page.messages[:shown]]):
                call.out.record({}, f"{line[0].upper()}{line[1:]}.")


def _before(ids: Sequence[str]) -> str:
    """Return the id immediately before the first of some messages to one agent."""
    split = [inbox.split_id(letter_id) for letter_id in ids]
    first = min(position(entry_id) for entry_id, _ in split)
    return inbox.message_id(preceding(first), split[0][1])


def _waited(call: ToolCall, wait: float, peek: bool, topic: str | None) -> Page | None:
    op = inbox.pending(call.enter(), wait=wait, peek=peek, topic=topic, limit=_MESSAGES)
    try:
        return call.run(op, patience=wait)
    except TimedOut:
        return None


def _nearby(call: ToolCall) -> None:
    """Print the present agents, and the paths that others lease."""
    scope, own = call.enter(), call.settings.agent
    present = call.run(presence.present(scope, limit=_NEAR + 1))
    others = [agent for agent in present if agent.agent != own]
    here = [f"{word(agent.agent)} {agent.state or 'seen'}" for agent in others[:_NEAR]]
    more = " and others: call who" if len(others) > _NEAR else ""
    call.out.record({}, f"Here: {', '.join(here) or 'no other agent'}{more}.")
    if call.run(presence.is_unguarded(scope)):
        call.out.warn(UNGUARDED)
    held = [lease for lease in call.run(leases.leases(scope)) if lease.agent != own]
    if held:
        told = [
            f"{leases.shown(lease.path)} by {lease.holder} until {of_day(lease.until)}"
            for lease in held[:_NEAR]
        ]
        more = " and others: call lease" if len(held) > _NEAR else ""
        call.out.record({}, f"Leased: {', '.join(told)}{more}.")


def tell(call: ToolCall) -> None:
    """Send a message to agents, or speak to all."""
    scope, given = call.enter(), call.given
    text, topic = given["text"], given.get("topic")
    if given.get("to"):
        op = messages.tell_now(
            *(scope, given["to"], text),
            topic=topic,
            thread=given.get("thread"),
            urgent=given.get("urgent", False),
        )
        now, sent = call.run(op)
        for msg in sent:
            _inbox.sent(call, msg, now)
        return
    if given.get("thread") or given.get("urgent"):
        raise UsageError(
            "a message to all has no thread and is not urgent", hint="name agents in to"
        )
    entry_id = call.run(speak.append(scope, text, topic))
    fields = {"id": entry_id, "agent_id": scope.agent, "topic": topic, "message": text}
    others = [agent for agent in call.run(presence.present(scope)) if agent.agent != scope.agent]
    away = [word(agent.agent) for agent in others if agent.state != "active"]
    number = call.run(speak.reach(scope, entry_id, topic))
    reach = f"{number} present" + (f", not active: {', '.join(away)}" if away else "")
    call.out.record({**fields, "reach": number}, f"{entry_id} spoken to all; {reach}")


def ask(call: ToolCall) -> None:
    """Send an ask, or look at one again, and wait for its answer."""
    scope, given, known = call.enter(), call.given, call.given.get("id")
    if (known is None) != ("to" in given and "text" in given) or (known and len(given) > 2):
        raise UsageError(
            "ask takes to and text, or the id of an earlier ask", hint="give one or the other"
        )
    if known is None:
        now, (posted,) = call.run(messages.tell_now(scope, [given["to"]], given["text"], ask=True))
        _inbox.sent(call, posted, now)
        known = posted.id
    wait = call.wait()
    wait = LONGEST_WAIT if wait is None else wait
    op = receipts.receipt_now(scope, known, wait=wait, until="answer")
    try:
        now, receipt = call.run(op, patience=wait)
    except TimedOut:
        now, receipt = call.run(receipts.receipt_now(scope, known))
        _inbox.receipt(call, receipt, now)
        call.out.warn(f"no answer yet; go on, or call ask again with id={known}")
        return
    answer = call.run(receipts.answer(scope, receipt))
    if answer is None:
        _inbox.receipt(call, receipt, now)
        return
    whole, _, _ = _inbox.show(call, [answer], now)
    if whole:
        call.after.append(lambda taken: taken and call.run(inbox.mark(scope, whole)))


def reply(call: ToolCall) -> None:
    """Answer a message."""
    call.verb("reply", id=call.given["id"], msg=call.given["text"])


def receipts_of(call: ToolCall) -> None:
    """Print the receipts of a message."""
    call.verb("receipts", id=call.given["id"])


def who(call: ToolCall) -> None:
    """Print the present agents, and record this agent's activity."""
    call.verb("who", doing=call.given.get("doing"))
    if not call.captured.lines:
        call.out.record({}, "Nobody is here.")


def lease(call: ToolCall) -> None:
    """Take, drop or list leases."""
    given = call.given
    paths, minutes, drop = given.get("paths", []), given.get("minutes"), given.get("give_up", False)
    if drop and (given.get("why") or minutes is not None):
        raise UsageError("give_up takes no reason and no time", hint="leave them out")
    if drop:
        call.verb("lease", paths=paths, drop=True)
    else:
        ttl = None if minutes is None else float(minutes) * 60
        call.verb("lease", paths=paths, why=given.get("why"), ttl=ttl)
    if not call.captured.lines:
        call.out.record({}, "No lease was held." if drop else "No path is leased.")


def note(call: ToolCall) -> None:
    """Write a note, or read it by its key, or notes by their tags."""
    given = call.given
    key, tags = given.get("key"), given.get("tags", [])
    if "text" in given:
        if key is None:
            raise UsageError("a note needs a key", hint="give one")
        call.verb("jot", name=key, value=given["text"], tag=[tags])
        return
    # Read the notes as JSON, to show the lines of each note.
    out = call.captured
    out.json, out.text = True, False
    call.verb("recall", name=key, tag=[tags] if tags else [], max_chars=_LETTERS)
    for record in out.records:
        labels = record["tags"]
        assert isinstance(labels, list)
        about = f" [{','.join(map(word, labels))}]" if labels else ""
        out.lines.append(f"{word(str(record['key']))}{about} by {word(str(record['agent_id']))}")
        out.lines += [f"| {escaped(line)}" for line in str(record["value"]).splitlines()]
        if "truncated" in record:
            out.lines.append(f"[… {record['truncated']} more letters]")
    if not out.records:
        out.lines.append("No note has these tags.")


def flag(call: ToolCall) -> None:
    """Take, end or await a flag."""
    given, action = call.given, call.given["do"]
    if "note" in given and action not in ("done", "fail"):
        raise UsageError(f"{action} takes no note", hint="leave it out")
    name, wait, said = given["name"], call.wait(), given.get("note")
    if action == "take":
        call.verb("announce", name=name, wait=wait)
        hold: Any = call.captured.records[0]
        if "renewed" not in hold:
            end = announce.end(call.enter(), name, "released", token=hold["token"])
            _unless_taken(call, lambda: call.run(end))
    elif action == "wait":
        timeout = LONGEST_WAIT if wait is None else max(wait, 0.001)
        call.verb("await", names=[name], timeout=timeout)
    elif action == "drop":
        call.verb("release", name=name)
    else:
        call.verb("satisfy" if action == "done" else "fail", name=name, note=said)


def _unless_taken(call: ToolCall, undo: Callable[[], object]) -> None:
    """Undo an action if the client does not take its result, since no agent knows of it."""
    call.after.append(lambda taken: taken or undo())


def work(call: ToolCall) -> None:
    """List the board, take a task by hand, settle it, or publish one."""
    given, action = call.given, call.given["do"]
    if action == "list":
        _only(given, "queue")
        _board(call)
    elif action == "put":
        _only(given, "queue", "title", "body", *_PUT, needs="queue")
        _put(call)
    elif action == "take":
        _only(given, "queue", needs="queue")
        _take(call)
    else:
        _only(given, "id", *(() if action == "give_back" else ("body",)), needs="id")
        verb = {"fail": "retry", "give_back": "give-back"}.get(action, action)
        call.verb("task", action=verb, id=given["id"], text=_literal(given.get("body")))


def _only(given: dict[str, Any], *fields: str, needs: str | None = None) -> None:
    """Raise `UsageError` for an argument that an action of `work` does not have, or that is missing."""
    extra = sorted(given.keys() - {"do", *fields})
    if extra or (needs is not None and needs not in given):
        raise UsageError(
            f"{given['do']} takes {', '.join(fields)}, not {', '.join(extra) or 'nothing'}",
            hint=f"give the {needs}" if not extra else f"leave {extra[0]} out",
        )


def _board(call: ToolCall) -> None:
    """Print the unfinished tasks, and what blocks them."""
    # Import this late, like all that only tasks need: each session has its own server.
    from agentbus.commands import _task_list

    queue = call.given.get("queue")
    table = _task_list.board(call, queue, _TASKS)
    now = call.bus.scope.server_now()
    for row in table.rows:
        state = "ready" if row.is_ready(now) else row.state
        about = [state, row.id]
        about += [row.priority] if row.priority and row.priority != "normal" else []
        about += [f'"{escaped(row.title)}"'] if row.title else []
        about += [f"by {word(taker(row.worker) or row.worker)}"] if row.worker else []
        about += [f"since {of_day(row.began)}"] if row.began and state == "running" else []
        about += [f"after {', '.join(row.waits_for)}"] if row.waits_for else []
        call.out.record(_task_list.fields(row), " ".join(about))
    if not table.rows:
        call.out.record({}, "No task is unfinished.")
    if not table.complete:
        call.out.record({}, "There are more: name a queue.")


def _put(call: ToolCall) -> None:
    given = call.given
    title, body = given.get("title"), _literal(given.get("body"))
    if title is None and body is None:
        raise UsageError("put needs a body", hint="give the payload, or a title")
    if title is not None:
        rest = {} if body is None else {"body": json_or_text(body)}
        body = to_json({"title": title, **rest})
    call.verb(
        "publish",
        queue=given["queue"],
        payload=body,
        payload_json=title is not None,
        unique="key" in given,
        **{name: given[name] for name in _PUT if name in given},
    )


def _take(call: ToolCall) -> None:
    queue = call.given["queue"]
    try:
        call.verb("task", action="take", id=queue)
    except NotFound as error:
        if queue not in call.bus.queues():
            raise
        call.out.record({}, error.message)
        return
    # Import this late: few sessions take tasks, which need half of the package.
    from agentbus.commands import _by_hand

    task: Any = call.captured.records[0]
    _unless_taken(call, lambda: _by_hand.give_back(call, task["task_id"], task["token"]))


def _literal(text: str | None) -> str | None:
    """Return a model's text as a literal, which names neither stdin nor a file."""
    if text is not None and (text == "-" or text[:1] == "@"):
        raise InvalidPayload(
            f"the body begins with {text[0]!r}", hint="quote it as JSON, or put a word before it"
        )
    return text


PERFORM: dict[str, Callable[[ToolCall], None]] = {
    "catch_up": catch_up,
    "tell": tell,
    "ask": ask,
    "reply": reply,
    "receipts": receipts_of,
    "who": who,
    "lease": lease,
    "note": note,
    "flag": flag,
    "work": work,
}
