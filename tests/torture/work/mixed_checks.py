"""Checks of the mixed loads: each returns what is wrong, and excuses only what the server has lost."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.work.checks import MixedEvidence, WorkEvidence
from tests.torture.work.loads import AT_ONCE, SLOTS
from tests.torture.work.tasks import PUBLISH, RUN

# Operations in the histories, beside `run` and `publish`: the call of a step's function, the result that
# the handler got for the step, the time in which a slot of the semaphore is held, a cancellation, the
# question for a result, and a drain.
STEP, STEPPED, SLOT, CANCEL, RESULT, DRAIN = "step", "stepped", "slot", "cancel", "result", "drain"
LIMITED = "limited"
# A worker that holds a cancelled task is told so within about a second; in ns.
_TOLD_WITHIN = 5_000_000_000


def refused_and_done(evidence: WorkEvidence) -> list[str]:
    """Tasks that ran, although their publication was refused."""
    return [
        f"{task}: {entry.of['error']}"
        for load in evidence.mixed
        for refused in [_of(load, PUBLISH, FAIL)]
        for begun in [_by_task(_of(load, RUN, INVOKE))]
        for entry in refused
        for task in (*entry.of["tasks"], *entry.of["undo"])
        if task in begun
    ]


def accepted_undone(evidence: WorkEvidence) -> list[str]:
    """Accepted tasks that never ran to their end, and tasks of failed flows that were not undone."""
    found = []
    for load in evidence.mixed:
        ended = _by_task([*_of(load, RUN, OK), *_of(load, RUN, FAIL, why="buried")])
        left_out = {entry.of["i"] for entry in _maybe_cancelled(load)}
        over = load.entries[-1].at if load.entries else 0
        for entry in _of(load, PUBLISH, OK):
            of = entry.of
            expected = {*of["tasks"], *(of["undo"] if of["fails"] else ())} - left_out
            missing = expected - ended.keys()
            if missing and load.kept(entry.at, over, durable=of["durable"]):
                found += [f"{task} of {of['do']}" for task in sorted(missing)]
    return found


def undone_early(evidence: WorkEvidence) -> list[str]:
    """Tasks that began after they were undone for the last time, and that were undone in a wrong order."""
    found = []
    for load in evidence.mixed:
        begun = _by_task(_of(load, RUN, INVOKE))
        for entry in _of(load, PUBLISH, OK):
            undone = [task for task in entry.of["undo"] if task in begun]
            last = {task: begun[task][-1].at for task in undone}
            for task in undone:
                (of,) = begun[task][-1].of["after"]
                if of in begun and begun[of][-1].at > last[task]:
                    found.append(f"{of} after {task}")
            if load.kept(entry.at, load.entries[-1].at):
                firsts = sorted(undone, key=lambda task: begun[task][0].at)
                if firsts != sorted(undone, reverse=True):
                    found.append(f"undone in the order {firsts}")
    return found


def handed_wrong(evidence: WorkEvidence) -> list[str]:
    """Tasks that got, of a task before them, what no finished run of that one had returned."""
    found = []
    for load in evidence.mixed:
        returned = _by_task(_of(load, RUN, OK))
        for run in _of(load, RUN, INVOKE):
            after, given = run.of["after"], run.of["given"]
            if len(after) != len(given):
                found.append(f"{run.of['i']}: {given} of {after}")
                continue
            for before, value in zip(after, given, strict=True):
                earlier = [x for x in returned[before] if x.at < run.at]
                if value not in {x.of["value"] for x in earlier}:
                    found.append(f"{run.of['i']}: {value} of {before}")
    return found


def results_wrong(evidence: WorkEvidence) -> list[str]:
    """Answers to the question for a task's result that no run of the task had returned."""
    found = []
    for load in evidence.mixed:
        returned = _by_task(_of(load, RUN, OK))
        for answer in _of(load, RESULT, OK):
            task, value = answer.of["i"], answer.of["value"]
            if value not in {x.of["value"] for x in returned[task] if x.at < answer.at}:
                found.append(f"{task}: {value}")
    return found


def steps_repeated(evidence: WorkEvidence) -> list[str]:
    """Steps whose function was called again, in the same attempt or a later one, after it was recorded."""
    found = []
    for load in evidence.mixed:
        recorded = _by_step(_of(load, STEPPED, OK))
        for call in _of(load, STEP, INVOKE):
            for before in recorded[_step(call)]:
                again = before.at < call.at and before.of["attempt"] <= call.of["attempt"]
                if again and load.kept(before.at, call.at):
                    found.append(f"{call.of['name']} of {call.of['i']}")
                    break
    return found


def steps_differ(evidence: WorkEvidence) -> list[str]:
    """Steps that had a result of which no call is known, or another one than before."""
    found = []
    for load in evidence.mixed:
        returned = _by_step(_of(load, STEP, OK))
        for step, got in _by_step(_of(load, STEPPED, OK)).items():
            known = {call.of["value"] for call in returned[step]}
            for at, entry in enumerate(got):
                before = got[max(0, at - 1)]
                differs = before.of["value"] != entry.of["value"] and load.kept(before.at, entry.at)
                if differs or entry.of["value"] not in known:
                    found.append(f"{step}: {entry.of['value']}")
    return found


def beyond_limit(evidence: WorkEvidence) -> list[str]:
    """Moments at which more tasks of a limited queue ran than its limit allows."""
    return [x for load in evidence.mixed for x in _crowds(load, _running(load), AT_ONCE)]


def beyond_slots(evidence: WorkEvidence) -> list[str]:
    """Moments at which a semaphore had more holders than it was asked for."""
    return [x for load in evidence.mixed for x in _crowds(load, _holding(load), SLOTS)]


def begun_though_cancelled(evidence: WorkEvidence) -> list[str]:
    """Tasks that began after they were cancelled while no worker held them, or long after, if one did."""
    found = []
    for load in evidence.mixed:
        begun = _by_task(_of(load, RUN, INVOKE))
        for entry in _of(load, CANCEL, OK):
            until = entry.at + (0 if entry.of["state"] == "cancelled" else _TOLD_WITHIN)
            found += [
                f"{entry.of['i']}, {entry.of['state']}"
                for run in begun[entry.of["i"]]
                if run.at > until and load.kept(entry.at, run.at)
            ]
    return found


def drained_early(evidence: WorkEvidence) -> list[str]:
    """Drains that ended before a task was done that had been published before they began."""
    found = []
    for load in evidence.mixed:
        ended = _by_task([*_of(load, RUN, OK), *_maybe_cancelled(load)])
        accepted = {
            task: entry.at
            for entry in _of(load, PUBLISH, OK, do=DRAIN)
            for task in entry.of["tasks"]
        }
        began = {(drain.who, drain.of["n"]): drain.at for drain in _of(load, DRAIN, INVOKE)}
        for drain in _of(load, DRAIN, OK):
            begin = began[drain.who, drain.of["n"]]
            for task, at in accepted.items():
                in_time = any(x.at < drain.at for x in ended[task])
                if at < begin and not in_time and load.kept(at, drain.at):
                    found.append(f"{task}, by {drain.who}")
    return found


def doubled(evidence: WorkEvidence) -> list[str]:
    """Tasks that were published once, and ran under two ids, while the server lost nothing."""
    return [
        f"{task}: {sorted(ids)}"
        for load in evidence.mixed
        for task, runs in _by_task(_of(load, RUN, INVOKE)).items()
        for ids in [{run.of["id"] for run in runs}]
        if len(ids) > 1 and load.kept(0, runs[-1].at)
    ]


MIXED = (
    refused_and_done,
    accepted_undone,
    undone_early,
    handed_wrong,
    results_wrong,
    steps_repeated,
    steps_differ,
    beyond_limit,
    beyond_slots,
    begun_though_cancelled,
    drained_early,
    doubled,
)


def figures(evidence: WorkEvidence) -> dict[str, int]:
    """Count, over all mixed loads, what the checks look at."""
    loads = evidence.mixed
    if not loads:
        return {}
    judged = [load for load in loads if not load.losses] or [MixedEvidence([])]

    def number(op: str, phase: str) -> int:
        return sum(len(_of(load, op, phase)) for load in loads)

    handed = [run for load in loads for run in _of(load, RUN, INVOKE) if run.of["given"]]
    published = [entry.of for load in loads for entry in _of(load, PUBLISH, OK)]
    return {
        "mixed tasks accepted": sum(len(of["tasks"]) for of in published),
        "of them durable": sum(len(of["tasks"]) for of in published if of["durable"]),
        "publications of them refused": number(PUBLISH, FAIL),
        "publications of them unsure": number(PUBLISH, UNKNOWN),
        "runs of them": number(RUN, INVOKE),
        "results handed on": sum(len(run.of["given"]) for run in handed),
        "steps recorded": number(STEPPED, OK),
        "limited tasks at once, at most": max(_most(_running(load)) for load in judged),
        "slots held at once, at most": max(_most(_holding(load)) for load in judged),
        "tasks cancelled": number(CANCEL, OK),
        "drains": number(DRAIN, OK),
        "losses of data": sum(len(load.losses) for load in loads),
    }


def _of(load: MixedEvidence, op: str, phase: str, **of: Any) -> list[HistoryEntry]:
    return [
        entry
        for entry in load.entries
        if (entry.op, entry.phase) == (op, phase)
        and all(entry.of.get(name) == value for name, value in of.items())
    ]


def _by_task(entries: Iterable[HistoryEntry]) -> dict[int, list[HistoryEntry]]:
    found: dict[int, list[HistoryEntry]] = collections.defaultdict(list)
    for entry in entries:
        found[entry.of["i"]].append(entry)
    return found


def _step(entry: HistoryEntry) -> tuple[int, str]:
    return entry.of["i"], entry.of["name"]


def _by_step(entries: Iterable[HistoryEntry]) -> Mapping[tuple[int, str], list[HistoryEntry]]:
    found: dict[tuple[int, str], list[HistoryEntry]] = collections.defaultdict(list)
    for entry in entries:
        found[_step(entry)].append(entry)
    return found


def _maybe_cancelled(load: MixedEvidence) -> list[HistoryEntry]:
    """Return the cancellations that were not refused, from the moment at which they were asked for."""
    refused = {entry.of["i"] for entry in _of(load, CANCEL, FAIL)}
    return [entry for entry in _of(load, CANCEL, INVOKE) if entry.of["i"] not in refused]


class Span(NamedTuple):
    """The time in which a task ran, or a slot was held, from its first moment to its last, in ns."""

    begin: int
    end: int
    task: int


def _running(load: MixedEvidence) -> list[Span]:
    """Return when limited tasks ran, without runs that had lost their task to a later attempt."""
    begun = _by_task(_of(load, RUN, INVOKE, do=LIMITED))
    return [
        span
        for span in _spans(load, RUN)
        if not any(span.begin < run.at < span.end for run in begun[span.task])
    ]


def _holding(load: MixedEvidence) -> list[Span]:
    return [*_spans(load, SLOT)]


def _spans(load: MixedEvidence, op: str) -> Iterator[Span]:
    """Yield what had an end: the last moment of a process that was killed is unknown."""
    begun: dict[tuple[str, int, int], int] = {}
    for entry in load.entries:
        if entry.op != op or entry.of["do"] != LIMITED:
            continue
        key = entry.who, entry.of["i"], entry.of["attempt"]
        if entry.phase == INVOKE:
            begun[key] = entry.at
        elif key in begun:
            yield Span(begun.pop(key), entry.at, entry.of["i"])


def _crowds(load: MixedEvidence, spans: list[Span], most: int) -> list[str]:
    """Return the tasks with which there were too many at once; not if the server lost who they are."""
    if load.losses:
        return []
    found = []
    ends: list[int] = []
    for span in sorted(spans):
        ends = [*(end for end in ends if end > span.begin), span.end]
        if len(ends) > most:
            found.append(f"{span.task}, with {len(ends) - 1} others")
    return found


def _most(spans: list[Span]) -> int:
    """Return how many there were at once, at most."""
    ends: list[int] = []
    most = 0
    for span in sorted(spans):
        ends = [*(end for end in ends if end > span.begin), span.end]
        most = max(most, len(ends))
    return most
