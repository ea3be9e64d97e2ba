"""The properties of an archive's Delta table: what it masks, and how long it keeps versions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.versions import ArchiveSnapshot
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.masking import Masking, masking

# Seconds for which a replaced version can still be read, with all of its data files, and the least.
RETENTION, LEAST_RETENTION = 86_400.0, 60.0
SCHEMA, MASK, DROP = "agentbus.schema", "agentbus.mask", "agentbus.drop"
KEPT_FOR = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
# Of tables with other columns than an archive's, and of an archive.
CONFIGURATION_OF_OTHERS = {
    **dict.fromkeys(KEPT_FOR, f"interval {RETENTION:.0f} seconds"),
    SCHEMA: str(schema.VERSION),
}
CONFIGURATION = {
    "delta.dataSkippingStatsColumns": "stream,queue,time",
    **CONFIGURATION_OF_OTHERS,
}
_INTERVAL = re.compile(r"(?:interval )?(\d{1,9}) (second|minute|hour|day|week)s?", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def masking_of(properties: Mapping[str, str | None]) -> Masking:
    """Return what an archive masks and drops."""
    mask, drop = ((properties.get(name) or "").split(",") for name in (MASK, DROP))
    return masking(filter(None, mask), filter(None, drop))


def retention_of(properties: Mapping[str, str | None]) -> float:
    """Return the seconds for which a replaced version is kept."""
    amount = _INTERVAL.fullmatch((properties.get(KEPT_FOR[0]) or "").strip())
    return int(amount[1]) * _SECONDS[amount[2].lower()] if amount else RETENTION


def more_masked(state: ArchiveSnapshot, wanted: Masking) -> dict[str, str]:
    """Return the properties to set so that an archive masks and drops more; none if it does already."""
    kept = state.masking
    both = masking({*kept.mask, *wanted.mask}, {*kept.drop, *wanted.drop})
    return {} if both == kept else {MASK: ",".join(both.mask), DROP: ",".join(both.drop)}


def kept_for(state: ArchiveSnapshot, seconds: float) -> dict[str, str]:
    """Return the properties by which replaced versions are kept for so long, by other engines too."""
    if seconds < LEAST_RETENTION:
        raise UsageError(
            f"versions cannot be kept for {seconds:g} s only",
            hint=f"give {LEAST_RETENTION:g} s or more, such as 7d",
        )
    same = state.retention == round(seconds)
    return {} if same else dict.fromkeys(KEPT_FOR, f"interval {seconds:.0f} seconds")
