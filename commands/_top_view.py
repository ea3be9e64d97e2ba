"""The screen of `top`: the last frame, the current pane, and the open details."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from agentbus.commands import _format, _top_panes as panes, _top_question as questions
from agentbus.commands._top_details import KeyList
from agentbus.commands._top_panes import PANES, Left
from agentbus.commands._top_table import line, table, wrapped
from agentbus.core.clock import rfc3339
from agentbus.dashboard import RowRange

if TYPE_CHECKING:
    from agentbus.commands._top_actions import Action
    from agentbus.commands._top_details import Detail, DetailLine
    from agentbus.commands._top_question import Question
    from agentbus.dashboard import Snapshot

# Maximum number of messages that are kept, and that one frame reads.
_KEPT, READ = 2_000, 300
# Lines around the rows: the verdict, totals, panes and headings above; the range of rows and the
# keys below.
_AROUND = 6
# Panes of which a frame contains only the requested rows.
_PAGED = ("queues", "agents", "flags and leases")
# The terminal height from which talk is shown beside another pane.
_TALL = 40
_KEYS = "1-5 pane  arrows Enter open  Esc back  / filter  ? keys  q quit"
_STYLES = {"critical": "bold white on red", "warning": "black on yellow", "healthy": "green"}


class FrameRequest:
    """The content that the next frame must have."""

    def __init__(self, rows: dict[str, RowRange], detail: Detail | None) -> None:
        self.rows = rows
        self.detail = detail


class View:
    """The state of the screen; it has no connection."""

    def __init__(self, every: float, *, writes: bool = False) -> None:
        self.every = every
        # `writes` enables the keys that act. Then: the action to confirm, the confirmed action, and
        # the result of the last action.
        self.writes = writes
        self.asked: Question | None = None
        self.confirmed: Action | None = None
        self.done = ""
        self.found: Snapshot | None = None
        self.blind: tuple[float, str] | None = None
        self.pane = "queues"
        self.stack: list[Detail] = []
        self.lines: list[DetailLine] = []
        self.typing = False
        self.filters = dict.fromkeys(PANES, "")
        self._spoken: deque[Any] = deque(maxlen=_KEPT)
        self._from = dict.fromkeys(PANES, 0)
        self._at = dict.fromkeys(PANES, 0)
        self._key: dict[str, object] = {}
        self._line = 0
        self._follows = True
        self._came = 0.0
        self.rows_shown = 10

    # -- frames --

    def frame(self, snapshot: Snapshot, detail: Detail | None, lines: list[DetailLine]) -> None:
        """Show a new frame."""
        first = self.found is None
        self.found, self.blind, self._came = snapshot, None, time.time()
        if snapshot.missed:
            self._spoken.append(Left(snapshot.missed))
        self._spoken.extend(snapshot.messages)
        if first and not snapshot.totals.queues:
            self.pane = "agents"
        if self.stack and detail is self.stack[-1]:
            self.lines = lines
            self._line = min(self._line, max(0, len(lines) - 1))
        self._keep_selected()

    def lost(self, at: float, why: str) -> None:
        """Show that no frame could be read since a time."""
        if self.blind is None:
            self.blind = at, why

    def wanted(self, height: int) -> FrameRequest:
        """Return the request for the next frame."""
        self.rows_shown = max(1, self._room(height))
        size = self.rows_shown + 1

        def rows(pane: str) -> RowRange:
            return RowRange(
                self.filters[pane] or None,
                self._from[pane] if pane == self.pane else 0,
                size if pane == self.pane else 5,
            )

        held = rows("flags and leases")
        # One pane shows both lists.
        both = RowRange(held.match, 0, held.offset + held.limit)
        return FrameRequest(
            {
                "queues": rows("queues"),
                "agents": rows("agents"),
                "flags": both,
                "leases": both,
            },
            self.stack[-1] if self.stack else None,
        )

    def _rows(self) -> tuple[list[Any], int, int]:
        """Return the rows to show, the number of matching rows, and the index of the first."""
        assert self.found is not None
        pane = self.pane
        rows = panes.rows(pane, self.found, self._spoken, self.filters[pane])
        if pane in ("queues", "agents"):
            known = self.found.matching[pane]
            return rows[: self.rows_shown], max(known, len(rows)), self._from[pane]
        known, start = len(rows), self._from[pane]
        if pane == "flags and leases":
            known = self.found.matching["flags"] + self.found.matching["leases"]
        if pane == "talk" and self._follows:
            start = max(0, len(rows) - self.rows_shown)
        start = max(0, min(start, known - 1))
        self._from[pane] = start
        # The requested rows are not read yet: show the rows of the last frame.
        read = start if start < len(rows) else max(0, len(rows) - self.rows_shown)
        return rows[read : read + self.rows_shown], known, start

    def _keep_selected(self) -> None:
        """Keep the cursor at its row if the order has changed."""
        rows, _, _ = self._rows()
        key = self._key.get(self.pane)
        if self.pane == "talk" and self._follows:
            self._at["talk"] = max(0, len(rows) - 1)
            return
        for number, row in enumerate(rows):
            if panes.key(self.pane, row) == key:
                self._at[self.pane] = number
                return
        self._at[self.pane] = max(0, min(self._at[self.pane], len(rows) - 1))
        self._select()

    def _select(self) -> None:
        rows, _, _ = self._rows()
        at = self._at[self.pane]
        self._key[self.pane] = panes.key(self.pane, rows[at]) if at < len(rows) else None

    # -- keys --

    def press(self, key: str) -> bool:
        """Handle a key; return whether to continue."""
        if self.asked is not None:
            if not self.asked.press(key):
                self.confirmed = self.asked.answer
                self.done = "" if self.confirmed else self.asked.refused
                self.asked = None
        elif self.typing:
            self._type(key)
        elif self.writes and (question := self._question(key)) is not None:
            self.asked, self.done = question, ""
        elif key == "q":
            return False
        elif key == "/":
            self.typing = not self.stack
        elif key == "?" and not (self.stack and isinstance(self.stack[-1], KeyList)):
            self.stack.append(KeyList(self.writes))
            self.lines, self._line = [], 0
        elif key in "12345" and len(key) == 1:
            self._go(PANES[int(key) - 1])
        elif key == "tab":
            self._go(PANES[(PANES.index(self.pane) + 1) % len(PANES)])
        elif key in ("esc", "backspace"):
            self._back()
        elif key == "enter" or (key == "right" and not self.stack):
            self._open()
        elif key in ("left", "right") and self.stack:
            if self.stack[-1].turn(1 if key == "right" else -1):
                self._line = 0
            elif key == "left":
                self._back()
        else:
            page = self.rows_shown
            steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
            steps |= {"home": -(10**9), "g": -(10**9), "end": 10**9, "G": 10**9}
            if key in steps:
                self._move(steps[key])
        return True

    def _question(self, key: str) -> Question | None:
        """Return the question for a key at the cursor, None if the key does not act there."""
        if self.found is None:
            return None
        at, row, chosen = self.stack[-1] if self.stack else None, None, None
        if at is not None:
            chosen = self.lines[self._line].opens if self._line < len(self.lines) else None
        elif self.pane == "queues":
            rows, _, _ = self._rows()
            row = rows[self._at["queues"]] if self._at["queues"] < len(rows) else None
        return questions.question(key, self.found.halted, row, at, chosen)

    def _type(self, key: str) -> None:
        text = self.filters[self.pane]
        if key in ("enter", "esc"):
            self.typing = False
            text = "" if key == "esc" else text
        elif key == "backspace":
            text = text[:-1]
        elif len(key) == 1 and key.isprintable():
            text += key
        self.filters[self.pane] = text
        self._from[self.pane] = self._at[self.pane] = 0

    def _go(self, pane: str) -> None:
        self.pane, self.stack, self.lines = pane, [], []
        if self.found is not None:
            self._keep_selected()

    def _back(self) -> None:
        if self.stack:
            self.stack.pop()
            self.lines, self._line = [], 0
        else:
            self.filters[self.pane] = ""

    def _open(self) -> None:
        if self.found is None:
            return
        if self.stack:
            target = self.lines[self._line].opens if self._line < len(self.lines) else None
        else:
            rows, _, _ = self._rows()
            at = self._at[self.pane]
            target = panes.opened(self.pane, rows[at]) if at < len(rows) else None
        if target is not None:
            self.stack.append(target)
            self.lines, self._line = [], 0

    def _move(self, by: int) -> None:
        if self.found is None:
            return
        if self.stack:
            self._line = max(0, min(self._line + by, len(self.lines) - 1))
            return
        pane = self.pane
        _, known, start = self._rows()
        at = max(0, min(start + self._at[pane] + by, known - 1))
        if at < start:
            start = at
        elif at >= start + self.rows_shown:
            start = at - self.rows_shown + 1
        turned = start != self._from[pane] and pane in _PAGED
        self._from[pane], self._at[pane] = start, at - start
        if pane == "talk":
            self._follows = at >= known - 1
        # The cursor's row is set when the rows of the other page arrive.
        self._key.pop(pane, None)
        if not turned:
            self._select()

    # -- drawing --

    def _room(self, height: int) -> int:
        return height - _AROUND - self._beside(height)

    def _beside(self, height: int) -> int:
        """Return the number of lines of the talk below another pane."""
        return height // 4 if height >= _TALL and self.pane != "talk" and not self.stack else 0

    def draw(self, width: int, height: int, now: float) -> list[Text]:
        """Return the lines of the screen."""
        self.rows_shown = max(1, self._room(height))
        if self.found is None:
            return [line("reading...", width)]
        lines = [
            self._verdict(width, now),
            line(panes.totals(self.found.totals), width),
            self._tabs(width),
        ]
        lines += self._detail(width, height) if self.stack else self._table(width)
        beside = self._beside(height)
        lines = lines[: max(0, height - 1 - beside)]
        lines += [line("", width)] * (height - 1 - beside - len(lines))
        if beside:
            lines += self._talk(width, beside)
        return [*lines, self._last(width)][:height]

    def _last(self, width: int) -> Text:
        if self.asked is not None:
            return line(self.asked.line, width, "bold reverse")
        if self.done:
            return line(self.done, width, "bold")
        at = self.stack[-1] if self.stack else None
        keys = f"{questions.keys(at)}  {_KEYS}" if self.writes else _KEYS
        return line(f"filter: {self.filters[self.pane]}_" if self.typing else keys, width, "dim")

    def printed(self, width: int, shown: Sequence[str]) -> Iterator[str]:
        """Yield the lines of one frame with these panes, without styles."""
        assert self.found is not None
        for row in (self._verdict(width, self._came), line(panes.totals(self.found.totals), width)):
            yield row.plain.rstrip()
        for self.pane in shown:
            yield ""
            yield self.pane
            rows, _, _ = self._rows()
            columns = panes.columns(self.pane, width, self.found.at)
            for row in table(columns, rows, width, None) if rows else [Text("none")]:
                yield row.plain.rstrip()

    def _verdict(self, width: int, now: float) -> Text:
        snapshot = self.found
        assert snapshot is not None
        if self.blind is not None:
            at, why = self.blind
            said = f" BLIND for {_format.age(now - at)} since {rfc3339(at)[11:19]} "
            return line(f"{said} {snapshot.project}: {why}", width, "bold white on red")
        status = snapshot.health.status
        text = Text(no_wrap=True)
        text.append(f" {status} ", _STYLES.get(status, ""))
        said = f" {snapshot.project}  {rfc3339(snapshot.at)[11:19]}  read in {_format.age(snapshot.took)}"
        late = now - self._came
        said += f", {_format.age(late)} ago" if late > 2 * self.every + 1 else ""
        said += f"  halted {snapshot.halted}" if snapshot.halted is not None else ""
        said += (
            f"  {snapshot.missed:,} {'message' if snapshot.missed == 1 else 'messages'} left out"
            if snapshot.missed
            else ""
        )
        if snapshot.health_age > 2 * self.every + 1:
            said += f"  verdict {_format.age(snapshot.health_age)} old"
        if snapshot.oldest_part > 2 * self.every + 1:
            said += f"  lists up to {_format.age(snapshot.oldest_part)} old"
        text.append_text(line(said, max(0, width - len(status) - 2), "bold"))
        return text

    def _tabs(self, width: int) -> Text:
        assert self.found is not None
        snapshot = self.found
        numbers: dict[str, int | str] = {
            "agents": snapshot.totals.agents,
            "talk": "",
            "queues": snapshot.totals.queues,
            "flags and leases": snapshot.totals.flags + snapshot.totals.leases,
            "health": len(snapshot.health.findings) or "",
        }
        text = Text(no_wrap=True)
        for number, pane in enumerate(PANES, 1):
            name = pane if width >= 100 else pane.partition(" ")[0]
            said = f"{number} {name} {numbers[pane]}".rstrip()
            text.append(f" {said} ", "reverse" if pane == self.pane else "")
        if self.filters[self.pane]:
            text.append_text(line(f"  /{self.filters[self.pane]}", max(0, width - len(text))))
        text.truncate(width, overflow="crop", pad=True)
        return text

    def _table(self, width: int) -> list[Text]:
        assert self.found is not None
        rows, known, start = self._rows()
        columns = panes.columns(self.pane, width, self.found.at)
        if not rows:
            return [line(f"nothing here{' matches' if self.filters[self.pane] else ''}", width)]
        lines = table(columns, rows, width, self._at[self.pane])
        hidden = known - start - len(rows)
        if start or hidden > 0:
            where = line(f"{start + 1}-{start + len(rows)} of {known}", width, "dim")
            lines.append(where)
        if self.pane == "health":
            # The table cuts long texts: show the selected finding in full below it.
            finding = rows[min(self._at["health"], len(rows) - 1)]
            for text in ("", finding.text, finding.remedy):
                lines += [line(part, width) for part in wrapped(text, width)]
        return lines

    def _talk(self, width: int, height: int) -> list[Text]:
        newest = [*self._spoken][-(height - 1) :]
        drawn = table(panes.columns("talk", width, 0.0), newest, width, None)[1:] if newest else []
        lines = [line("─ talk " + "─" * width, width, "dim"), *drawn]
        return lines + [line("", width)] * (height - len(lines))

    def _detail(self, width: int, height: int) -> list[Text]:
        title = " > ".join(row.title for row in self.stack[-2:])
        shown: list[Text] = []
        at = 0
        for number, row in enumerate(self.lines):
            if number == self._line:
                at = len(shown)
            for part in wrapped(row.text, width):
                drawn = line(part, width, row.style)
                if number == self._line:
                    drawn.stylize("reverse")
                shown.append(drawn)
        room = max(1, height - _AROUND)
        start = max(0, min(at - room // 2, len(shown) - room))
        body = shown[start : start + room] or [line("reading...", width, "dim")]
        return [line(title, width, "bold"), *body]
