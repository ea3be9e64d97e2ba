"""What must be true of tasks in the end: pure checks over what publisher and workers wrote down.

They know nothing of Redis, and judge any worker.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agentbus.torture.history import FAIL, INVOKE, OK, Entry
from agentbus.torture.work.tasks import ACK, LIFE, PUBLISH, RUN

_LONGEST_BATCH = 5_000_000_000  # In ns, from a task's end until it is acknowledged with its batch.


class Event(NamedTuple):
    """What a worker did with a task: when (in ns), which process, what, how it stands."""

    at: int
    who: str
    op: str
    phase: str
    task: int
    attempt: int
    name: str  # The task's id.


class Letter(NamedTuple):
    """A dead letter; `task` is -1 where the letter does not hold its task."""

    task: int
    name: str
    attempts: int
    error: str


class Story(NamedTuple):
    """All that is known at the end of a run; `events` are in the order of time."""

    accepted: frozenset[int]
    unsure: frozenset[int]  # Publications whose outcome the publisher never learned.
    poison: frozenset[int]
    attempts: int
    events: Sequence[Event]
    letters: Sequence[Letter]
    waiting: Mapping[str, int]  # What the server still keeps: all zero when the work is done.
    ended: Sequence[str] = ()  # Processes that ended without being made to, with what they said.
    ordered: Mapping[str, Sequence[int]] = {}  # Tasks by ordering key, as they were published.
    # How often a worker died, or lost its server: each time it may have been about to begin a task.
    mishaps: int = 0


class Published(NamedTuple):
    """What became of the publications."""

    accepted: frozenset[int]
    unsure: frozenset[int]
    ordered: dict[str, list[int]]


def published(entries: Iterable[Entry]) -> Published:
    """Read from a publisher's history what was accepted, and of what that is not known."""
    invoked: dict[int, range] = {}
    settled: dict[int, str] = {}
    accepted: set[int] = set()
    ordered: dict[str, list[int]] = collections.defaultdict(list)
    for entry in entries:
        if entry.op != PUBLISH:
            continue
        number = entry.of["n"]
        if entry.phase == INVOKE:
            invoked[number] = range(entry.of["first"], entry.of["last"] + 1)
            settled.pop(number, None)
            continue
        settled[number] = entry.phase
        if entry.phase == OK:
            accepted.update(invoked[number])
            if order := entry.of.get("order"):
                ordered[order] += invoked[number]
    # What is refused is tried again, and was not published so far.
    unsure = {
        task
        for number, tasks in invoked.items()
        if settled.get(number) not in (OK, FAIL)
        for task in tasks
    }
    return Published(frozenset(accepted), frozenset(unsure), dict(ordered))


def events(entries: Iterable[Entry]) -> list[Event]:
    """Read workers' histories, and tell the processes apart that had one role after the other."""
    lives: collections.Counter[str] = collections.Counter()
    found = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.op == LIFE:
            lives[entry.who] += 1
        elif entry.op in (RUN, ACK):
            who = f"{entry.who}.{lives[entry.who]}"
            of = entry.of
            found.append(
                Event(entry.at, who, entry.op, entry.phase, of["i"], of["attempt"], of["id"])
            )
    return found


def of_tasks(events: Iterable[Event], op: str, *phases: str) -> dict[int, list[Event]]:
    """Return the events of these kinds, by task, in the order of time."""
    found: dict[int, list[Event]] = collections.defaultdict(list)
    for event in events:
        if event.op == op and event.phase in phases:
            found[event.task].append(event)
    return found


def lost(story: Story) -> set[int]:
    """Tasks that were accepted, and neither done nor buried."""
    return set(story.accepted) - set(of_tasks(story.events, RUN, OK)) - _buried(story).keys()


def innocents_buried(story: Story) -> set[int]:
    """Tasks among the dead letters that were no poison, and had not spent their attempts."""
    return _buried(story).keys() - story.poison - unlucky(story)


def poison_not_buried_once(story: Story) -> set[int]:
    """Poison that is not among the dead letters, or more than once."""
    return {task for task in story.poison & story.accepted if _buried(story)[task] != 1}


def poison_beyond_its_attempts(story: Story) -> set[int]:
    """Poison that was run more often than it may be, or whose letter says otherwise."""
    runs = of_tasks(story.events, RUN, INVOKE)
    wrong = {task for task in story.poison if len(runs.get(task, ())) > story.attempts}
    told = {
        x.task for x in story.letters if x.task in story.poison and x.attempts != story.attempts
    }
    return wrong | told


def stale_accepted(story: Story) -> list[Event]:
    """Acknowledgements that were accepted though another process had taken the task over, and begun it."""
    # Who took a task over is known by its attempt: a former owner may begin later, and is stale.
    begun = of_tasks(story.events, RUN, INVOKE)
    asked = {
        (event.who, event.task, event.attempt): event.at
        for event in story.events
        if event.op == ACK and event.phase == INVOKE
    }
    return [
        answer
        for task, answers in of_tasks(story.events, ACK, OK).items()
        for answer in answers
        if any(
            run.who != answer.who
            and run.at < asked[answer.who, task, answer.attempt]
            and run.attempt > answer.attempt
            for run in begun[task]
        )
    ]


def accepted_twice(story: Story) -> set[int]:
    """Tasks of which more than one acknowledgement was accepted."""
    answers = of_tasks(story.events, ACK, OK)
    return {task for task, found in answers.items() if len(found) > 1}


def published_twice(story: Story) -> set[int]:
    """Tasks that were published once and are there under more than one id."""
    names: dict[int, set[str]] = collections.defaultdict(set)
    for event in story.events:
        names[event.task].add(event.name)
    for letter in story.letters:
        if letter.name:
            names[letter.task].add(letter.name)
    return {task for task, found in names.items() if task >= 0 and len(found) > 1}


def invented(story: Story) -> set[int]:
    """Tasks that nobody published."""
    known = story.accepted | story.unsure
    return (set(of_tasks(story.events, RUN, INVOKE)) | _buried(story).keys()) - known - {-1}


def out_of_order(story: Story) -> set[int]:
    """Tasks that were begun before the one before them with the same ordering key was done.

    Of what was buried it is not known when.
    """
    begun, done = of_tasks(story.events, RUN, INVOKE), of_tasks(story.events, RUN, OK)
    buried = _buried(story)
    return {
        task
        for tasks in story.ordered.values()
        for before, task in itertools.pairwise(tasks)
        if task in begun and before not in buried
        if before not in done or done[before][0].at > begun[task][0].at
    }


def stuck(story: Story) -> dict[str, int]:
    """What the server still keeps although all work has had its time."""
    return {name: number for name, number in story.waiting.items() if number}


def ended_by_themselves(story: Story) -> list[str]:
    """Processes that gave up: trouble of the server's is no reason to."""
    return list(story.ended)


CHECKS = (
    lost,
    innocents_buried,
    poison_not_buried_once,
    poison_beyond_its_attempts,
    stale_accepted,
    accepted_twice,
    published_twice,
    invented,
    out_of_order,
    stuck,
    ended_by_themselves,
)


def unlucky(story: Story) -> set[int]:
    """Innocents that were buried rightly: each of their attempts failed, or its process died of it.

    Of one that was done, its process died before the acknowledgement was accepted, or it was refused. A
    mishap excuses an attempt that never began, since it was cut off, and one that was done by a process
    that lived on: taken over meanwhile, its acknowledgement with others was refused. There cannot be more
    of these than mishaps, and at least half of a task's attempts must have begun all the same.
    """
    innocents = _buried(story).keys() - story.poison
    last = {event.who: event.at for event in story.events}
    told = [event for event in story.events if event.task in innocents]
    at = {(event.who, event.task, event.attempt, event.op, event.phase): event.at for event in told}

    def in_vain(run: Event) -> bool:
        key = (run.who, run.task, run.attempt)
        done = at.get((*key, RUN, OK))
        if done is None:
            return True
        if (*key, ACK, INVOKE) in at:
            return (*key, ACK, OK) not in at
        # It was to be acknowledged with others: whoever lived on has done so, unless it was taken over.
        return excused or last[run.who] < done + _LONGEST_BATCH

    excused = 0 < sum(map(len, attempts_cut_off(story).values())) + len(innocents) <= story.mishaps
    least = (story.attempts + 1) // 2 if excused else story.attempts
    return {
        task
        for task, runs in of_tasks(told, RUN, INVOKE).items()
        if len(runs) >= least and all(map(in_vain, runs))
    }


def attempts_cut_off(story: Story) -> dict[int, set[int]]:
    """Return the attempts, by task, that were counted and that nobody began.

    The first is not among them: it counts where a task lay in a worker's hands, begun or not.
    """
    buried = _buried(story)
    found = {}
    for task, runs in of_tasks(story.events, RUN, INVOKE).items():
        begun = {run.attempt for run in runs}
        last = story.attempts if task in buried else max(begun)
        if missing := {*range(2, last + 1)} - begun:
            found[task] = missing
    return found


def runs_more_than_once(story: Story) -> int:
    """Tell how many runs there were beyond the first of each task; for the report only."""
    return sum(len(runs) - 1 for runs in of_tasks(story.events, RUN, INVOKE).values())


def runs_at_once(story: Story) -> int:
    """Tell how many runs began while another process was in the same task; for the report only.

    A process that was killed is in nothing any longer, as far as its own file can tell: what it did
    not finish counts only if it wrote something later.
    """
    last = {event.who: event.at for event in story.events}
    inside: dict[int, set[str]] = collections.defaultdict(set)
    number = 0
    for event in story.events:
        if event.op != RUN:
            continue
        others = inside[event.task]
        if event.phase == INVOKE:
            number += any(who != event.who and last[who] > event.at for who in others)
            others.add(event.who)
        else:
            others.discard(event.who)
    return number


def _buried(story: Story) -> collections.Counter[int]:
    return collections.Counter(letter.task for letter in story.letters)
