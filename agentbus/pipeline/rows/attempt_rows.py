"""Converts an entry of the log of attempts to rows, one for each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentbus.queues.attempt_log import LoggedAttempts, unpacked

# The fields with the index of a row within its entry, from 0, and with the number of the entry's
# rows.
PLACE, OF = "place", "of"


def spread(
    entry_id: str, named: Mapping[bytes, bytes]
) -> Iterator[tuple[dict[str, str | None], dict[str, str]]] | None:
    """Return the columns and fields of each attempt; None if another program wrote the entry."""
    try:
        found = unpacked(entry_id, named)
    except ValueError:
        return None
    # Return nothing without a first row, by which a reader counts entries.
    return _rows(found) if found.tasks else None


def _rows(
    found: LoggedAttempts,
) -> Iterator[tuple[dict[str, str | None], dict[str, str]]]:
    number = str(len(found.tasks))
    same = {"group": found.group, "worker": found.worker}
    for place, (task, attempt, priority, outcome, error, name, began, waited, took) in enumerate(
        zip(*found[4:], strict=True)
    ):
        fields = {
            **same,
            "task_id": task,
            "attempt": str(attempt),
            "priority": priority,
            PLACE: str(place),
            OF: number,
        }
        if name is not None:
            fields["task"] = name
        if error is not None:
            fields["error"] = error
        if began is not None:
            fields["began"] = f"{began * 1000:.0f}"
        if waited is not None:
            fields["waited_ms"] = f"{waited * 1000:.3f}"
        if took is not None:
            fields["took_ms"] = f"{took * 1000:.3f}"
        yield {"queue": found.queue, "agent": found.agent, "event": outcome}, fields
