"""Plans one version of an archive: the new entries of each stream, and how to split them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentbus.core.stream import position
from agentbus.pipeline.archives import overlap
from agentbus.pipeline.archives.versions import START, later
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.discovery import Discovery, Selection
from agentbus.pipeline.source.epochs import Epoch
from agentbus.pipeline.source.planning import Head, Range, ReadPosition

if TYPE_CHECKING:
    from agentbus.pipeline.archives.places import Place
    from agentbus.pipeline.archives.versions import ArchiveSnapshot
    from agentbus.pipeline.source.range_reader import RangeReader
    from agentbus.store.steps import Op

# Entries per task: fewer cost more per row, more leave cores idle at the end.
_LOT = 125_000
# Approximate maximum number of entries per version; the rest goes into the next version.
_ROUND = 20_000_000


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The plan of a version: the positions by which each stream changes, and each task's ranges.

    `back` are the streams that went back in time but are continued, `gaps` the gaps known before
    copying, and `entries` is the approximate number of entries. If not `complete`, there are more.
    """

    heads: Mapping[str, Head]
    changed: Mapping[str, tuple[ReadPosition, ReadPosition]]
    back: Mapping[str, Epoch]
    lots: Sequence[Sequence[Range]]
    gaps: Sequence[StreamGap]
    entries: int
    complete: bool


class RoundPlanner:
    """Plans rounds; with `new_epoch`, streams that went back in time are included."""

    def __init__(
        self, reader: RangeReader, selection: Selection, place: Place, *, new_epoch: bool
    ) -> None:
        self._reader = reader
        self._discovery = Discovery(reader.scope, selection)
        self._place = place
        self._new_epoch = new_epoch

    def plan(self, state: ArchiveSnapshot) -> RoundPlan:
        """Plan the version after a state. Raises `EpochMismatch` for a stream that went back in time."""
        return self._joined(state, self._reader.run(self._plan(state)))

    def misfits(self, plan: RoundPlan, rows: Mapping[str, int]) -> None:
        """Raise `EpochMismatch` if streams had more or fewer entries than could have been added."""
        starts = {name: start for name, (start, _) in plan.changed.items()}
        judged = {
            name: rows.get(name, 0)
            for name in starts
            if name not in plan.back and not streams.heals(name)
        }
        found = epochs.misfits(self._reader.scope, judged, starts, plan.heads)
        for name in self._reader.run(found):
            raise epochs.went_back(name, starts[name], plan.heads[name])

    def _plan(self, state: ArchiveSnapshot) -> Op[RoundPlan]:
        scope = self._reader.scope
        before = {name: ReadPosition(p.id, p.added) for name, p in state.positions.items()}
        names = yield from self._discovery.op(before)
        heads = yield from planning.look(scope, names)

        def may(name: str) -> bool:
            return self._new_epoch or streams.heals(name)

        before, back = yield from epochs.continued(scope, heads, before, counts=may, may=may)
        new = epochs.news(heads, before)
        # Record where these streams continue, even without new entries.
        new |= {name: (before[name], heads[name].end) for name in back if not streams.heals(name)}
        lots: list[tuple[Range, int]] = []
        total = 0
        changed: dict[str, tuple[ReadPosition, ReadPosition]] = {}
        for name, (start, end) in new.items():
            if total >= _ROUND:
                # Leave whole streams for the next version: finding a place to stop within a stream
                # would need counting.
                break
            head = heads[name]
            entries = end.added - start.added - planning.gone(start, end, head)
            begin = _joint(state, name, start, head)
            parts = yield from planning.cut(
                scope, name, begin, head, -(-entries // _LOT) if entries > _LOT else 1
            )
            lots += [(part, entries // len(parts)) for part in parts]
            changed[name] = (start, end)
            total += entries
        packed = planning.packed(lots, _LOT)
        return RoundPlan(heads, changed, back, packed, (), total, len(changed) == len(new))

    def _joined(self, state: ArchiveSnapshot, plan: RoundPlan) -> RoundPlan:
        """Return a plan with entries below the archive's end that followed a step back in time."""
        changed, lots, gaps = dict(plan.changed), list(plan.lots), list(plan.gaps)
        for name, (start, end) in plan.changed.items():
            head, what = plan.heads[name], plan.back.get(name)
            if what is Epoch.UNSURE:
                gaps.append(planning.gap(name, None, start, end, head))
            low, joint = start.id, _joint(state, name, start, head)
            if what is Epoch.BACK:
                low = head.last if head.first is None else planning.before(head.first)
            elif joint == low:
                continue
            found = overlap.overlap(self._reader, self._place, state, name, low, joint)
            lots.append(found.ranges)
            added = start.added + found.settled
            if what is Epoch.BACK:
                rest = planning.counted(self._reader.scope, name, joint, head.last)
                added = head.added - self._reader.run(rest) - found.rows
                at = later(_end(state, name), state.positions[name].id)
                gaps.append(StreamGap(name, 0, at, found.last, None, found.archive_only))
            changed[name] = (ReadPosition(start.id, added), end)
        return replace(plan, changed=changed, lots=lots, gaps=gaps)


def _joint(state: ArchiveSnapshot, name: str, start: ReadPosition, head: Head) -> str:
    """Return the id after which no entry of a stream's current epoch is archived."""
    return min(later(start.id, _end(state, name)), head.last, key=position)


def _end(state: ArchiveSnapshot, name: str) -> str:
    """Return the highest archived id of a stream."""
    at = state.positions.get(name)
    return START if at is None else at.end
