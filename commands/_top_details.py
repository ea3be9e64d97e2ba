"""Details in `top`: a queue's tasks by state, one task, one dead letter, the fields of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format
from agentbus.commands.task import described
from agentbus.core.clock import rfc3339
from agentbus.core.json_text import to_json
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.client.bus import Bus
    from agentbus.coordination.waiters import Waiter
    from agentbus.dashboard import Dashboard
    from agentbus.dashboard.task_table import TaskRow
    from agentbus.queues.dead_letters import Letter
    from agentbus.queues.state import Entry

STATES = ("all", "waiting", "running", "retrying", "delayed", "blocked", "done", "dead")
# Maximum number of tasks or letters in a list, and of pages that are read for them.
_LISTED, _PAGES = 200, 20
# Maximum number of errors above a list of dead letters.
_GROUPS = 10
_KEYS = {
    "1 to 5, Tab": "the pane: agents, talk, queues, flags and leases, health",
    "arrows, j, k": "move by a row",
    "Page Up, Page Down": "move by a page",
    "Home, g, End, G": "move to the first or the last row",
    "Enter": "open the row",
    "left, right": "in a queue: tasks in another state, or the dead letters",
    "Esc": "go back",
    "/": "filter the pane by a text",
    "q": "quit",
}
_KEYS_THAT_ACT = {
    "p": "pause the queue, or resume it",
    "H": "halt the project, or resume it",
    "r, R": "replay the dead letter; all of the group",
    "c, C": "the same, into another queue",
    "x, X": "purge the dead letter; all of the group",
}
_TIMES = ("at", "timestamp", "seen", "since", "until")


@dataclass(frozen=True, slots=True)
class DetailLine:
    """A line of a detail, and the detail that it opens."""

    text: str
    opens: Detail | None = None
    style: str = ""


class Detail:
    """The details of a row, read again with each frame."""

    title = ""

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Return the lines. Called in the thread that reads frames."""
        raise NotImplementedError

    def turn(self, by: int) -> bool:
        """Show another part of the detail; return whether there is one."""
        return False


class QueueTasks(Detail):
    """A queue for one group: its figures, its workers, and its tasks by state."""

    def __init__(self, queue: str, group: str) -> None:
        self.queue = queue
        self.group = group
        self.state = 0
        # Seconds for which each running task has run, as far as workers' heartbeats say.
        self._ran: dict[str, float] = {}

    @property
    def title(self) -> str:  # type: ignore[override]
        """The queue, its group, and the state shown."""
        states = " ".join(
            f"[{state}]" if at == self.state else state for at, state in enumerate(STATES)
        )
        return f"{word(self.queue)} {word(self.group)}   {states}"

    def turn(self, by: int) -> bool:
        """Show the tasks of the next state."""
        self.state = (self.state + by) % len(STATES)
        return True

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Read the queue, and return its lines."""
        page = dashboard.queue(self.queue)
        lines = []
        for row in page.rows:
            one = row.stats
            own = one.group in (self.group, None)
            text = f"{word(one.group) if one.group else 'no group yet'}: {one.backlog} waiting"
            text += f", {one.pending} running, {one.retrying} retrying, {one.delayed} delayed"
            text += f", {one.blocked} wait for others, {one.dead} dead"
            text += f", {_format.number(one.rate)} done a second"
            text += f", paused {row.paused}" if row.paused is not None else ""
            lines.append(DetailLine(text, style="bold" if own else "dim"))
        for worker in page.workers:
            if worker.group == self.group:
                state = worker.state if worker.alive else "dead"
                said = f"  worker {word(worker.worker)} {state}, {worker.running} running"
                if worker.running_for is not None:
                    said += f" for {_format.age(worker.running_for)}"
                said += f", {worker.done} done, {worker.failed} failed"
                lines.append(DetailLine(said, style="" if worker.alive else "bold red"))
        self._ran = {
            task: worker.seen + worker.age - at
            for worker in page.workers
            for task, at in worker.began.items()
        }
        state = STATES[self.state]
        listed, complete = self._tasks(bus, dashboard, state)
        if state == "dead":
            listed = [*self._errors(dashboard), *listed]
        if not complete:
            said = f"not all tasks were looked at: others may be {state}"
            listed.append(DetailLine(said, style="dim"))
        return [
            *lines,
            DetailLine(""),
            *(listed or [DetailLine(f"no tasks: {state}", style="dim")]),
        ]

    def _tasks(self, bus: Bus, dashboard: Dashboard, state: str) -> tuple[list[DetailLine], bool]:
        """Return the tasks in a state, and whether the list is complete."""
        if state == "all":
            newest = bus.queue(self.queue).inspect(self.group, last=_LISTED)
            return [self._task(entry) for entry in reversed(newest)], True
        if state == "done":
            table = dashboard.task_list(
                queue=self.queue, group=self.group, state=state, limit=_LISTED
            )
            return [self._done(row) for row in table.rows], table.complete
        listed: list[DetailLine] = []
        after: str | None = None
        complete = False
        for _ in range(_PAGES):
            # A page may hold few tasks, or none, before the end: tasks in other states, and letters
            # of other queues in the same stream, were read and left out.
            of: dict[str, Any] = {"group": self.group, "limit": _LISTED, "after": after}
            if state == "dead":
                letters = dashboard.letters(queue=self.queue, **of)
                listed += map(_letter, letters.letters)
                after = letters.after
            else:
                tasks = dashboard.tasks(self.queue, state, **of)
                listed += map(self._task, tasks.entries)
                after = tasks.after
            complete = after is None or len(listed) >= _LISTED
            if complete:
                break
        del listed[_LISTED:]
        # Letters are listed newest first.
        return listed[::-1] if state == "dead" else listed, complete

    def _errors(self, dashboard: Dashboard) -> list[DetailLine]:
        """Return the causes that have several dead letters, each with their number."""
        report = dashboard.errors(queue=self.queue, group=self.group, limit=_GROUPS)
        return [
            DetailLine(
                f"{group.letters} letters: {_format.cut(group.error, 160)}"
                + (f" ({len(group.variants)} texts)" if len(group.variants) > 1 else ""),
                ErrorLetters(self.queue, self.group, group.error),
                "bold red",
            )
            for group in report.groups
            if group.letters > 1
        ]

    def _done(self, row: TaskRow) -> DetailLine:
        return DetailLine(
            f"{row.id} {row.state}"
            + (f" at {rfc3339(row.finished)[11:19]}" if row.finished is not None else "")
            + (f" ran {_format.age(row.took)}" if row.took is not None else "")
            + (f" by {word(row.worker)}" if row.worker is not None else "")
            + (f": {row.name}" if row.name is not None else ""),
            OneTask(row.id, self.group),
        )

    def _task(self, entry: Entry) -> DetailLine:
        since = ""
        if entry.id in self._ran:
            since = f" for {_format.age(self._ran[entry.id])}"
        elif entry.idle is not None:
            since = f" heartbeat {_format.age(entry.idle)} ago"
        return DetailLine(
            f"{entry.id} {entry.state}{since}"
            + (", stop asked" if entry.stop_asked is not None else "")
            + (f" until {rfc3339(entry.due)[11:19]}" if entry.due is not None else "")
            + (f" attempts {entry.attempts}" if entry.attempts else "")
            + f": {_format.cut(entry.error or to_json(entry.payload), 200)}",
            OneTask(entry.id, self.group),
        )


def _letter(letter: Letter) -> DetailLine:
    text = f"{letter.id} attempts {letter.attempts}: {_format.cut(letter.error, 200)}"
    text += f" (replayed as {letter.replayed})" if letter.replayed else ""
    return DetailLine(text, OneLetter(letter), "red")


class ErrorLetters(Detail):
    """The dead letters of a queue and group whose errors have one cause, newest first."""

    def __init__(self, queue: str, group: str, error: str) -> None:
        self.queue = queue
        self.group = group
        self.error = error
        self.title = f"{word(queue)} {word(group)}   {error}"

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Read the letters."""
        page = dashboard.letters(self.error, queue=self.queue, group=self.group, limit=_LISTED)
        return [*map(_letter, page.letters)] or [DetailLine("no such letters", style="dim")]


class KeyList(Detail):
    """The keys of `top`."""

    title = "keys"

    def __init__(self, writes: bool) -> None:
        self._writes = writes

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Return a line for each key."""
        keys = _KEYS | (_KEYS_THAT_ACT if self._writes else {})
        return [DetailLine(f"{key:<24} {what}") for key, what in keys.items()]


class OneTask(Detail):
    """A task with its attempts, its errors, and the tasks before and after it."""

    def __init__(self, task_id: str, group: str) -> None:
        self.id = task_id
        self.group = group
        self.title = f"task {task_id}"

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Read the task, and return its lines."""
        state = bus.task(self.id, group=self.group)
        lines = [DetailLine(text) for text in described(state)]
        chain = {"waits for": state.waits_for, "awaited by": state.awaited_by}
        chain["replayed as"] = (state.replayed,) if state.replayed else ()
        for name, tasks in chain.items():
            lines += [
                DetailLine(f"{name} {task}", OneTask(task, self.group), "cyan") for task in tasks
            ]
        return lines


class OneLetter(Detail):
    """A dead letter with its error, its traceback and its payload."""

    def __init__(self, letter: Letter) -> None:
        self.letter = letter
        self.title = f"dead letter {letter.id}"

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Return the content of the letter."""
        one = self.letter
        lines = [
            DetailLine(f"error     {one.error}", style="red"),
            DetailLine(f"attempts  {one.attempts}"),
        ]
        lines += [DetailLine(f"failed at {one.failed_at}")] if one.failed_at else []
        if one.task_id:
            lines.append(
                DetailLine(f"task      {one.task_id}", OneTask(one.task_id, one.group), "cyan")
            )
        lines += [DetailLine(f"payload   {to_json(one.payload)}")]
        return lines + [DetailLine(f"  {line}", style="dim") for line in one.traceback.splitlines()]


class Fields(Detail):
    """The fields of a row, one per line."""

    def __init__(self, title: str, item: Any, more: Sequence[str] = ()) -> None:
        self.title = title
        self.item = item
        self.more = more

    def read(self, bus: Bus, dashboard: Dashboard) -> list[DetailLine]:
        """Return the fields that have a value."""
        lines = []
        for name in () if self.item is None else self.item.__match_args__:
            value = getattr(self.item, name)
            if value in (None, (), ""):
                continue
            if name in _TIMES and isinstance(value, float):
                value = rfc3339(value, milliseconds=True)
            said = value if isinstance(value, str) else to_json(value)
            parts = said.splitlines() or [said]
            lines.append(DetailLine(f"{name.replace('_', ' '):<10} {parts[0]}"))
            lines += [DetailLine(f"{'':<10} {part}") for part in parts[1:]]
        return lines + [DetailLine(text) for text in self.more]


def waiter(waiting: Waiter) -> str:
    """Return the agent that waits for a flag, and since when."""
    return f"{word(waiting.agent_id)} waits until {waiting.until} since {rfc3339(waiting.since)}"
