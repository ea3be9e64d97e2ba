"""Searches the tasks of a project by an id, a key, a name, or the words of an error or a payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.admin.stats import is_text
from agentbus.core import names
from agentbus.core.envelope import INBOX, WORK_ITEM
from agentbus.core.errors import InvalidName, NotFound, UsageError
from agentbus.core.stream import id_time, text as decoded
from agentbus.core.timespec import stream_id
from agentbus.dashboard import ranking
from agentbus.dashboard.letter_boxes import boxes, first_line, keys_of, purged_of
from agentbus.dashboard.stream_walk import Mark, WalkQuery, walk
from agentbus.queues import attempts, state, task_state
from agentbus.queues.ids import MOVED_FROM, STREAMS, task_id
from agentbus.queues.results import Address
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, one_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agentbus.dashboard.ranking import QueueSummary
    from agentbus.dashboard.stream_walk import Place
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

_LONGEST = 1000
# Maximum commands per batch, and members of a sorted set read at once.
_AT_ONCE, _PAGE = 500, 100
# Stages of a search after ids and keys, in order: dead letters, tasks that wait for a retry,
# delayed and dependent tasks, entries of queues.
_LETTERS, _RETRYING, _UNREADY, _ENTRIES = range(1, 5)
_FIELDS = (
    *("id", "meta", "error", "queue", "task_id", "original_id", MOVED_FROM),
    *(WORK_ITEM, INBOX),
)
_VALUES = ("key", "ordering_key", "correlation_id", "causation_id", "task", WORK_ITEM, INBOX)


@dataclass(frozen=True, slots=True)
class TaskHit:
    """A task that matches a search.

    `by` names the match: `id`, `key`, `ordering key`, `correlation id`, `causation id`, `name`, `envelope`,
    `payload`, `error`, or the `work item id` or `inbox id` of another program. `letter` is its dead letter,
    if one was found, and `error` the first line of the error. `at` is the unix time of its publication, or
    of its last failure.
    """

    task: str | None
    queue: str
    group: str | None
    by: str
    letter: str | None
    error: str | None
    at: float | None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The matches of a search among the `read` tasks and dead letters.

    `after` continues the search, None if everything was searched.
    """

    hits: tuple[TaskHit, ...]
    read: int
    after: str | None


class TaskSearch:
    """One call of a search."""

    def __init__(self, scope: Scope, policies: Policies, wanted: str) -> None:
        self._scope = scope
        self._policies = policies
        self._text = wanted.strip()
        if not 0 < len(self._text) <= _LONGEST or not is_text(self._text):
            raise UsageError(
                "the search is empty" if not self._text else "the search is not valid text",
                hint=f"give an id, a key, or words of an error or a payload, at most {_LONGEST} characters",
            )
        self._json = orjson.dumps(self._text).decode()
        self._words = tuple(word.encode().lower().decode() for word in self._text.split())
        self._found: dict[tuple[str | None, str | None], TaskHit] = {}
        self._read = 0

    def run(
        self, after: str | None, limit: int, most: int, seen: Mapping[str, set[str]]
    ) -> Op[SearchPage]:
        """Return the next page. `seen` has the groups of dead-letter streams that a scan found."""
        stage, mark = self._start(after)
        scope = self._scope
        known = yield from or_empty(one_step(Command("ZRANGE", scope.keys.queues, 0, -1)), [])
        queues = sorted(map(decoded, known))
        if not stage:
            yield from self._by_id()
            yield from self._by_key(queues)
            stage = _LETTERS
        _, summed = yield from ranking.summaries(scope, queues, self._policies.letters_of)
        while stage <= _ENTRIES:
            if len(self._found) >= limit or self._read >= most:
                return self._page(f"{stage}/{mark}")
            rest = limit - len(self._found), most - self._read
            if stage == _LETTERS:
                reached = yield from self._letters(mark, *rest, seen)
            elif stage == _RETRYING:
                reached = yield from self._retrying(mark, *rest, summed)
            elif stage == _UNREADY:
                reached = yield from self._unready(mark, *rest, queues)
            else:
                reached = yield from self._entries(mark, *rest, queues)
            if reached is not None:
                return self._page(f"{stage}/{reached}")
            stage, mark = stage + 1, Mark()
        return self._page(None)

    def _start(self, after: str | None) -> tuple[int, Mark]:
        if after is None:
            return 0, Mark()
        stage, _, rest = after.partition("/")
        mark = Mark.read(rest)
        if mark is None or stage not in {"1", "2", "3", "4"}:
            raise UsageError(
                f"{after[:60]!a} does not continue a search",
                hint="give what the last call returned as 'after'",
            )
        return int(stage), mark

    def _page(self, after: str | None) -> SearchPage:
        return SearchPage(tuple(self._found.values()), self._read, after)

    def _hit(
        self,
        task: str | None,
        queue: str,
        by: str,
        at: float | None,
        group: str | None = None,
        letter: str | None = None,
        error: str | None = None,
    ) -> None:
        line = None if error is None else first_line(error)
        hit = TaskHit(task or None, queue, group, by, letter, line, at)
        self._found.setdefault((task if letter is None else None, letter), hit)

    # -- look-ups --

    def _by_id(self) -> Op[None]:
        try:
            address = Address(self._text)
        except (UsageError, InvalidName):
            return
        self._read += 1
        groups = yield from task_state.groups_at(self._scope, address.queue, address.priority)
        group = "default" if "default" in groups or not groups else min(groups)
        try:
            found = yield from task_state.task(self._scope, self._text, group, self._policies)
        except NotFound:
            return
        self._hit(found.id, found.queue, "id", found.published, group, None, found.error)

    def _by_key(self, queues: Sequence[str]) -> Op[None]:
        """Find tasks by a recent dedup key, and by their entry's id."""
        keys, wanted = self._scope.keys, self._text
        places = [(queue, one) for queue in queues for one in STREAMS]
        if "-" in wanted and stream_id(wanted) is not None:
            asked: list[tuple[Arg, ...]] = [
                ("XRANGE", keys.queue(*place), wanted, wanted) for place in places
            ]
            for (queue, priority), reply in zip(places, (yield from self._all(asked)), strict=True):
                for entry, flat in reply if isinstance(reply, list) else ():
                    named = _named(flat)
                    place = named.get(MOVED_FROM) or task_id(decoded(entry), queue, priority)
                    self._hit(named.get("id") or place, queue, "id", id_time(decoded(entry)))
        try:
            names.name("key", wanted)
        except InvalidName:
            return
        replies = yield from self._all([("GET", keys.seen(queue, wanted)) for queue in queues])
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, bytes):
                self._hit(decoded(reply), queue, "key", _published(decoded(reply)))

    # -- walks --

    def _letters(
        self, mark: Mark, hits: int, most: int, seen: Mapping[str, set[str]]
    ) -> Op[Mark | None]:
        found = yield from boxes(self._scope, self._policies, None, None, seen)
        wanted = WalkQuery("any", (self._text, self._json, *self._words), _FIELDS)
        places = [(box.name, box.group) for box in found]
        matches, read, reached = yield from walk(
            places,
            keys_of(self._scope, found),
            mark,
            wanted,
            hits=hits,
            most=most,
            purged=purged_of(self._scope, found),
        )
        self._read += read
        for (name, group), letter, values in matches:
            named = dict(zip(_FIELDS, values, strict=True))
            task, queue = named["task_id"] or named["original_id"], named["queue"] or name
            by = self._matched(named)
            self._hit(task, queue, by, id_time(letter), group, letter, named["error"])
        return reached

    def _entries(self, mark: Mark, hits: int, most: int, queues: Sequence[str]) -> Op[Mark | None]:
        places = sorted((queue, priority) for queue in queues for priority in STREAMS)
        keys = [self._scope.keys.queue(*place) for place in places]
        wanted = WalkQuery("value", (self._text, self._json, *self._words), _FIELDS)
        matches, read, reached = yield from walk(places, keys, mark, wanted, hits=hits, most=most)
        self._read += read
        for (queue, priority), entry, values in matches:
            named = dict(zip(_FIELDS, values, strict=True))
            task = named["id"] or named[MOVED_FROM] or task_id(entry, queue, priority)
            self._hit(task, queue, self._matched({**named, "error": ""}), id_time(entry))
        return reached

    def _retrying(
        self, mark: Mark, hits: int, most: int, summed: Sequence[QueueSummary]
    ) -> Op[Mark | None]:
        """Find tasks by the error of their last attempt."""
        keys = self._scope.keys
        places = sorted(
            (one.queue, f"{priority} {part.group}")
            for one in summed
            for part in one.groups
            if part.held and part.group is not None
            for priority in STREAMS
        )

        def key(place: Place) -> str:
            priority, _, group = place[1].partition(" ")
            return keys.retries(place[0], group, priority)

        def look(place: Place, members: list[str]) -> Op[None]:
            queue, (priority, _, group) = place[0], place[1].partition(" ")
            stream = keys.queue(queue, priority)
            replies = yield Batch([("XRANGE", stream, one, one) for one in members])
            tasks = []
            for one, reply in zip(members, replies, strict=True):
                if isinstance(reply, list) and reply:
                    named = _named(reply[0][1])
                    where = named.get(MOVED_FROM) or task_id(one, queue, priority)
                    tasks.append((named.get("id") or where, id_time(one)))
            if not tasks:
                return
            runs = yield Batch([("HGETALL", keys.runs(task, group)) for task, _ in tasks])
            for (task, at), flat in zip(tasks, runs, strict=True):
                ended = attempts.decoded(attempts.newest(state.as_list(flat))[-1:], None)
                error = (ended[-1].error or "") if ended else ""
                if self._said(error):
                    self._hit(task, queue, "error", at, group, None, error)

        return (yield from self._sets(places, key, look, mark, hits, most))

    def _unready(self, mark: Mark, hits: int, most: int, queues: Sequence[str]) -> Op[Mark | None]:
        """Find delayed and dependent tasks."""
        keys = self._scope.keys
        places = sorted((queue, kind) for queue in queues for kind in ("after", "delayed"))

        def key(place: Place) -> str:
            return keys.after(place[0]) if place[1] == "after" else keys.delayed(place[0])

        def look(place: Place, members: list[str]) -> Op[None]:
            queue, kind = place
            of = keys.after_bodies(queue) if kind == "after" else keys.bodies(queue)
            (bodies,) = yield Batch([("HMGET", of, *members)])
            for one, body in zip(members, state.as_list(bodies), strict=False):
                if body is not None:
                    due = None if kind == "after" else 0.0
                    entry = state.unready(one, queue, "default", body, due)
                    by = self._named_by(entry.envelope)
                    if by is None and self._said(orjson.dumps(entry.payload).decode()):
                        by = "payload"
                    if by is not None:
                        self._hit(one, queue, by, entry.published or None)

        return (yield from self._sets(places, key, look, mark, hits, most))

    def _sets(
        self,
        places: Sequence[Place],
        key: Callable[[Place], str],
        look: Callable[[Place, list[str]], Op[None]],
        mark: Mark,
        hits: int,
        most: int,
    ) -> Op[Mark | None]:
        """Read the members of sorted sets; the entry of a mark is the number of members read."""
        places = [place for place in places if place >= mark.place]
        asked: list[tuple[Arg, ...]] = [("ZCARD", key(place)) for place in places]
        sizes = yield from self._all(asked)
        until, enough = self._read + most, len(self._found) + hits
        for place, size in zip(places, sizes, strict=True):
            at = int(mark.entry.partition("-")[0] or 0) if place == mark.place else 0
            while isinstance(size, int) and at < size:
                if self._read >= until or len(self._found) >= enough:
                    return Mark(place, str(at))
                page = one_step(Command("ZRANGE", key(place), at, at + _PAGE - 1))
                members = [decoded(one) for one in (yield from or_empty(page, []))]
                if not members:
                    break
                self._read += len(members)
                at += len(members)
                yield from look(place, members)
        return None

    # -- what matches --

    def _matched(self, named: Mapping[str, Any]) -> str:
        """Return the name of a match by the server, which also reads the payload."""
        by = self._named_by(named)
        return by or ("envelope" if self._json in named.get("meta", "") else "payload")

    def _named_by(self, named: Mapping[str, Any]) -> str | None:
        """Return the name of the match: an id, a field of the envelope, or the error."""
        if self._text in (named.get("id"), named.get("task_id"), named.get("original_id")):
            return "id"
        values = {**named, **_meta(named.get("meta", ""))}
        for name in _VALUES:
            if values.get(name) == self._text:
                return "name" if name == "task" else name.replace("_", " ")
        return "error" if self._said(named.get("error", "")) else None

    def _said(self, error: str) -> bool:
        said = error.encode().lower().decode()
        return bool(error) and all(word in said for word in self._words)

    def _all(self, commands: Iterable[tuple[Arg, ...]]) -> Op[list[Any]]:
        asked, replies = list(commands), []
        for at in range(0, len(asked), _AT_ONCE):
            replies += yield Batch(asked[at : at + _AT_ONCE])
        return replies


def _named(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        decoded(flat[i]): decoded(flat[i + 1])
        for i in range(0, len(flat) - 1, 2)
        if flat[i] in (b"id", MOVED_FROM.encode())
    }


def _meta(stored: str) -> dict[str, Any]:
    try:
        found = orjson.loads(stored or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _published(task: str) -> float | None:
    entry = task.partition("@")[0]
    return id_time(entry) if "-" in entry and stream_id(entry) is not None else None
