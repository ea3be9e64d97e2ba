"""Checks that queues go on under their loads: each returns what was delayed, or done in vain."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

from tests.torture.history import FAIL, INVOKE, OK
from tests.torture.work.checks import LoadEvidence, Moment, WorkEvidence, of_tasks
from tests.torture.work.tasks import ACK, PUBLISH, RUN
from tests.torture.work.worker import AT_ONCE

_SECOND = 1_000_000_000
# What is done is acknowledged every 200 ms; what was done this long before a death must have been, in ns.
_LATEST_ACK = _SECOND


def innocents_late(evidence: WorkEvidence) -> list[str]:
    """Loads whose innocent tasks were not done in time."""
    return [
        f"{one.load.name}: {'never' if took is None else f'after {took:.1f} s'}, not within {limit:.1f} s"
        for one in evidence.loads
        for took, limit in [(seconds_until_done(one), one.limit)]
        if took is None or took > limit
    ]


def workers_idle(evidence: WorkEvidence) -> list[str]:
    """Loads in which workers were idle for too long while others held what they could have run."""
    return [
        f"{one.load.name}: {idle:.0%} of their time"
        for one in evidence.loads
        if one.load.idle < 1 and (idle := idle_share(one)) > one.load.idle
    ]


def refused_early(evidence: WorkEvidence) -> list[str]:
    """Publications that were refused while less than half of the bound was not done."""
    return [
        f"{one.load.name}: {task}, with {undone} not done"
        for one in evidence.loads
        for task, undone in refusals(one)
        if one.load.bound is not None and 2 * undone < one.load.bound
    ]


def buried_unbegun(evidence: WorkEvidence) -> list[str]:
    """Innocent tasks that were buried, and that no program ever began."""
    return [f"{one.load.name}: {task}" for one in evidence.loads for task in never_begun(one)]


def repeated_though_done(evidence: WorkEvidence) -> list[str]:
    """Tasks done long before their worker was killed, and begun again."""
    return [
        f"{one.load.name}: {task}"
        for one in evidence.loads
        for task, before in repeated(one)
        if before > _LATEST_ACK
    ]


def begun_though_lost(evidence: WorkEvidence) -> list[str]:
    """Workers that began more tasks than one for each executor which they had lost while frozen."""
    return [
        f"{one.load.name}: {number} by {who}"
        for one in evidence.loads
        for who, number in begun_after_freezes(one)
        if number > AT_ONCE[_kind(who)]
    ]


LIVENESS = (
    innocents_late,
    workers_idle,
    refused_early,
    buried_unbegun,
    repeated_though_done,
    begun_though_lost,
)


def figures(evidence: WorkEvidence) -> dict[str, float | str]:
    """Count, over all loads, what the checks look at; what no load had is left out."""
    loads = evidence.loads
    took: dict[str, list[float]] = collections.defaultdict(list)
    for one in loads:
        took[one.load.beside].append(seconds_until_done(one) or math.inf)
    found: dict[str, float | str] = {
        f"seconds to do tasks {beside}": round(max(each), 1) if max(each) < math.inf else "never"
        for beside, each in took.items()
    }
    if shares := [idle_share(one) for one in loads if one.load.idle < 1]:
        found["percent of time idle beside slow tasks"] = round(100 * max(shares))
    if bounded := [one for one in loads if one.load.bound is not None]:
        found["publications refused at the bound"] = sum(len(list(refusals(x))) for x in bounded)
        found["publications refused early"] = len(refused_early(evidence))
    if any(task.get("poison") for one in loads for task in one.load.tasks):
        found["innocents buried and never begun"] = len(buried_unbegun(evidence))
    if any(one.killed for one in loads):
        before = [before for one in loads for _, before in repeated(one)]
        found["tasks repeated after a kill"] = len(before)
        found["done before it, in seconds, at most"] = round(max(before, default=0) / _SECOND, 1)
    if late := [number for one in loads for _, number in begun_after_freezes(one)]:
        found["tasks taken from frozen workers"] = sum(map(taken_over, loads))
        found["of them begun by one after it, at most"] = max(late)
    return found


def seconds_until_done(one: LoadEvidence) -> float | None:
    """Return how long it took until all innocent tasks were done; None if they are not."""
    done = of_tasks(one.events, RUN, OK)
    if not one.load.innocents <= done.keys():
        return None
    return (max(done[task][0].at for task in one.load.innocents) - one.began) / _SECOND


def idle_share(one: LoadEvidence) -> float:
    """Return the share of the workers' time in which they ran nothing while tasks had not begun."""
    begun = of_tasks(one.events, RUN, INVOKE)
    until = max((begun[task][0].at for task in one.load.innocents if task in begun), default=0)
    executors = sum(AT_ONCE[kind] for kind in one.load.workers)
    running: dict[tuple[str, int, int], int] = {}
    busy = 0
    for event in one.events:
        if event.op != RUN:
            continue
        run = event.who, event.task, event.attempt
        if event.phase == INVOKE:
            running[run] = event.at
        else:
            busy += max(0, min(event.at, until) - running.pop(run, until))
    busy += sum(max(0, until - at) for at in running.values())
    return 1 - busy / max(1, executors * (until - one.began))


def refusals(one: LoadEvidence) -> Iterator[tuple[int, int]]:
    """Yield the tasks whose publication was refused, and how many were not known to be done by then."""
    settled = sorted(event.at for event in one.events if event.op == ACK and event.phase == OK)
    accepted, asked, over = 0, 0, 0
    for entry in one.publications:
        if entry.op != PUBLISH:
            continue
        if entry.phase == INVOKE:
            asked = entry.at
        elif entry.phase == OK:
            accepted += 1
        elif entry.phase == FAIL:
            while over < len(settled) and settled[over] < asked:
                over += 1
            yield entry.of["n"], accepted - over


def never_begun(one: LoadEvidence) -> list[int]:
    """Return the innocent tasks that were buried, and never begun."""
    begun = of_tasks(one.events, RUN, INVOKE)
    return sorted({x.task for x in one.letters} & one.load.innocents - begun.keys())


def repeated(one: LoadEvidence) -> Iterator[tuple[int, int]]:
    """Yield tasks done by a worker that was killed, and begun again; and how long before, in ns."""
    begun = of_tasks(one.events, RUN, INVOKE)
    for who, died in one.killed:
        for event in one.events:
            again = event.who == who and event.op == RUN and event.phase == OK
            if again and any(run.at > died for run in begun[event.task]):
                yield event.task, died - event.at


def begun_after_freezes(one: LoadEvidence) -> Iterator[tuple[str, int]]:
    """Yield each worker that was frozen, and how many tasks it began that it had lost by then.

    Only those that it began within half a visibility count: after that, it may have stood still again.
    """
    begun = of_tasks(one.events, RUN, INVOKE)
    window = round(one.load.visibility * _SECOND / 2)
    late: collections.Counter[Moment] = collections.Counter()
    for runs in begun.values():
        for run in runs:
            lost = any(x.who != run.who and x.at < run.at and x.attempt > run.attempt for x in runs)
            for moment in one.resumed if lost else ():
                late[moment] += moment.who == run.who and 0 <= run.at - moment.at < window
    for moment in one.resumed:
        yield moment.who, late[moment]


def taken_over(one: LoadEvidence) -> int:
    """Return how many tasks were begun again by others while workers were frozen."""
    runs = of_tasks(one.events, RUN, INVOKE).values() if one.resumed else ()
    return sum(any(run.attempt > 1 for run in each) for each in runs)


def _kind(who: str) -> str:
    return who.partition("-")[0]
