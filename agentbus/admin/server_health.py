"""How a server is: what it keeps, what it drops, its memory, role, replicas and clock."""

from __future__ import annotations

from agentbus.core.record import Record
from agentbus.core.stream import text
from agentbus.store.steps import Batch, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.admin.health.thresholds import Levels
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_DISK = "free disk space, and see the server's log"
_APPEND = "redis-cli CONFIG SET appendonly yes, and the same in its config file"
_ALWAYS = "redis-cli CONFIG SET appendfsync always, and the same in its config file"
# When what was acknowledged is on the disk, which is what a loss of power leaves.
_LEVELS = {
    "always": ", and is on the disk before the answer",
    "everysec": ", and is on the disk within a second or two: a loss of power takes those",
    "no": ", and is on the disk when the system thinks fit: a loss of power takes half a minute or more",
    None: " (CONFIG GET is refused, so it is not known how soon it is on the disk)",
}


class Vital(Record):
    """One examined matter of a server: `severity` is warning, critical, or None where all is well.

    `remedy` says what to do; `figure` and `threshold` are there where something was measured.
    """

    check: str
    severity: str | None
    found: str
    remedy: str | None = None
    figure: float | None = None
    threshold: float | None = None


class Said(Record):
    """What a server says of itself: INFO by name, and two of its settings (None: it does not tell).

    `named` is empty where INFO was refused, and `refusal` says how. `saves` is when it makes snapshots,
    `fsync` when what it appends to its file is on the disk.
    """

    named: dict[str, str]
    saves: str | None
    refusal: str | None
    fsync: str | None = None


def ask() -> Op[Said]:
    """Ask a server how it is, in one request."""
    info, *settings = yield Batch(
        [("INFO",), ("CONFIG", "GET", "save"), ("CONFIG", "GET", "appendfsync")]
    )
    if not isinstance(info, bytes):
        return Said({}, None, str(info))
    saves, fsync = (
        text(told[1]) if isinstance(told, list) and len(told) == 2 else None for told in settings
    )
    return Said(_named(info), saves, None, fsync)


def examine(said: Said, memory: Levels, replication: Levels) -> list[Vital]:
    """Return how the server is, by what it said."""
    if said.refusal is None:
        return [
            *_persistence(said),
            _eviction(said.named),
            _memory(said.named, memory),
            *_role(said.named, replication),
        ]
    if "unknown command" in said.refusal:
        found = "this server lives in this process and keeps nothing"
        return [Vital("persistence", "warning", found, "use another URL for anything but tests")]
    found = (
        f"INFO is refused, so persistence, eviction, memory and role are not known ({said.refusal})"
    )
    return [Vital("server", "warning", found, "allow +info to this user")]


def clock(scope: Scope, levels: Levels) -> Op[Vital]:
    """Compare the server's clock with this host's; what the exchange took is no difference."""
    before = scope.now()
    seconds, micros = yield Command("TIME")
    after = scope.now()
    off = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    off = 0.0 if abs(off) < (after - before) / 2 else off
    found = f"{abs(off):.3f} s {'ahead of' if off >= 0 else 'behind'} this host's"
    crossed = levels.crossed(abs(off))
    if crossed is None:
        return Vital("clock", None, found)
    figure = round(abs(off), 3)
    return Vital("clock", crossed[0], found, "set both clocks by NTP", figure, crossed[1])


def _persistence(said: Said) -> list[Vital]:
    named = said.named
    found = []
    if named.get("aof_enabled") == "1":
        level = f"an append-only file is kept{_LEVELS.get(said.fsync, '')}"
        delayed = int(named.get("aof_delayed_fsync", "0"))
        if delayed:
            level += f"; {delayed} writes waited for a slow disk"
        if named.get("aof_last_write_status", "ok") != "ok":
            found.append(Vital("persistence", "critical", "the last write to disk failed", _DISK))
        elif said.fsync == "no":
            found.append(Vital("persistence", "warning", level, _ALWAYS))
        else:
            found.append(Vital("persistence", None, level))
    elif _keeps_snapshots(said):
        loss = "only snapshots are kept: a crash loses what came after the last one"
        found.append(Vital("persistence", "warning", loss, _APPEND))
    else:
        loss = "nothing is kept on disk: a restart loses everything"
        if said.saves is None:
            loss = (
                "no append-only file is kept, and no snapshot was made since it began (CONFIG GET is"
                " refused, so it is not known whether one will be): a restart may lose everything"
            )
        found.append(Vital("persistence", "critical", loss, _APPEND))
    if named.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append(Vital("snapshot", "warning", "the last snapshot failed", _DISK))
    return found


def _keeps_snapshots(said: Said) -> bool:
    if said.saves is not None:
        return bool(said.saves)
    # By what it did, where it does not tell what it is set to.
    named = said.named
    return named.get("rdb_last_save_time", "0") != "0" and named.get("rdb_saves", "0") != "0"


def _eviction(named: dict[str, str]) -> Vital:
    policy = named.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Vital("eviction", None, policy)
    return Vital(
        "eviction",
        "critical",
        f"{policy}: a full server drops flags, cursors and streams",
        "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in its config file",
    )


def _memory(named: dict[str, str], levels: Levels) -> Vital:
    used, limit = int(named.get("used_memory", "0")), int(named.get("maxmemory", "0"))
    found = f"{used / 1048576:.1f} MiB used"
    if not limit:
        return Vital("memory", None, found)
    found += f" of {limit / 1048576:.1f} MiB"
    crossed = levels.crossed(used / limit)
    if crossed is None:
        return Vital("memory", None, found)
    remedy = "raise maxmemory, or remove what is not needed: a full server refuses writes"
    return Vital("memory", crossed[0], found, remedy, round(used / limit, 3), crossed[1])


def _role(named: dict[str, str], levels: Levels) -> list[Vital]:
    if named.get("role", "master") != "master":
        found = "a read-only replica"
        if named.get("master_link_status", "up") != "up":
            found += " that has lost its primary"
        return [Vital("role", "critical", found, "give the URL of the primary")]
    vitals = [Vital("role", None, "takes writes")]
    for name, value in named.items():
        if name[:5] == "slave" and name[5:].isdigit():
            vital = _replica(dict(_pairs(value)), levels)
            if vital is not None:
                vitals.append(vital)
    return vitals


def _replica(told: dict[str, str], levels: Levels) -> Vital | None:
    where = f"the replica {told.get('ip', '?')}:{told.get('port', '?')}"
    remedy = "see the replica's log; until it is back a failover loses what it lacks"
    state, lag = told.get("state", "online"), told.get("lag", "")
    if state != "online" and levels.wanted:
        return Vital("replication", "warning", f"{where} is not in sync ({state})", remedy)
    crossed = levels.crossed(int(lag)) if lag.isdigit() else None
    if crossed is None:
        return None
    found = f"{where} has said nothing for {lag} s"
    return Vital("replication", crossed[0], found, remedy, int(lag), crossed[1])


def _pairs(value: str) -> Any:
    return ((key, each) for key, _, each in (part.partition("=") for part in value.split(",")))


def _named(reply: bytes) -> dict[str, str]:
    named = {}
    for line in text(reply).splitlines():
        key, separator, value = line.partition(":")
        if separator:
            named[key] = value
    return named
