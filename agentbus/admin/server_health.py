"""Checks of a server: persistence, eviction, memory, role, replicas and clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import is_number, text
from agentbus.store.embedded import disk as embedded_disk
from agentbus.store.steps import Batch, Command

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Levels
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_FULL = "a server whose disk is full ends at the next write"
_DISK = "free disk space, and see the server's log"
_APPEND = "redis-cli CONFIG SET appendonly yes, and the same in its config file"
_ALWAYS = "redis-cli CONFIG SET appendfsync always, and the same in its config file"
# The time at which an acknowledged write is on disk, by the value of appendfsync.
_LEVELS = {
    "always": ", and is on disk before the reply",
    "everysec": ", and is on disk within a second or two: a power failure loses those",
    "no": ", and is on disk when the system decides: a power failure loses half a minute or more",
    None: " (CONFIG GET is refused, so it is unknown when it is on disk)",
}


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """The result of one check: `severity` is warning, critical, or None if there is no problem.

    `remedy` says what to do; `figure` and `threshold` are set if something was measured.
    """

    check: str
    severity: str | None
    found: str
    remedy: str | None = None
    figure: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The fields of a server's INFO as `named`, and two of its settings, None if unknown.

    If INFO is refused, `named` is empty and `refusal` is the error. `saves` is the setting `save`, `fsync`
    the setting `appendfsync`.
    """

    named: dict[str, str]
    saves: str | None
    refusal: str | None
    fsync: str | None = None


def ask() -> Op[ServerInfo]:
    """Read INFO and the settings, in one request."""
    info, *settings = yield Batch(
        [("INFO",), ("CONFIG", "GET", "save"), ("CONFIG", "GET", "appendfsync")]
    )
    if not isinstance(info, bytes):
        return ServerInfo({}, None, str(info))
    saves, fsync = (
        text(fields[1]) if isinstance(fields, list) and len(fields) == 2 else None
        for fields in settings
    )
    return ServerInfo(_named(info), saves, None, fsync)


def examine(info: ServerInfo, memory: Levels, replication: Levels) -> list[ServerCheck]:
    """Check persistence, eviction, memory, role and replicas."""
    if info.refusal is None:
        return [
            *_persistence(info),
            _eviction(info.named),
            _memory(info.named, memory),
            *_role(info.named, replication),
        ]
    if "unknown command" in info.refusal:
        state = "this server runs in this process and stores nothing on disk"
        return [
            ServerCheck("persistence", "warning", state, "use another URL for anything but tests")
        ]
    state = (
        f"INFO is refused, so persistence, eviction, memory and role are unknown ({info.refusal})"
    )
    return [ServerCheck("server", "warning", state, "allow +info to this user")]


def clock(scope: Scope, levels: Levels) -> Op[ServerCheck]:
    """Compare the server's clock with this host's; a difference within the round trip is 0."""
    before = scope.now()
    seconds, micros = yield Command("TIME")
    after = scope.now()
    off = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    off = 0.0 if abs(off) < (after - before) / 2 else off
    state = f"{abs(off):.3f} s {'ahead of' if off >= 0 else 'behind'} this host's"
    return _measured("clock", levels, abs(off), state, "set both clocks by NTP")


def disk(*, sync: bool = True) -> ServerCheck:
    """Check the embedded server's disk with a write; without `sync` the write is not flushed."""
    state = embedded_disk.examine(sync=sync)
    if state.error is not None:
        return ServerCheck("disk", "critical", state.error, embedded_disk.REMEDY)
    free = f"{embedded_disk.size(state.free)} free at {state.directory}"
    if state.free < embedded_disk.LITTLE:
        return ServerCheck("disk", "warning", free, f"free some: {_FULL}")
    return ServerCheck("disk", None, free)


def _persistence(info: ServerInfo) -> list[ServerCheck]:
    named = info.named
    checks = []
    if named.get("aof_enabled") == "1":
        level = f"an append-only file is kept{_LEVELS.get(info.fsync, '')}"
        delayed = int(named.get("aof_delayed_fsync", "0"))
        if delayed:
            level += f"; {delayed} writes waited for a slow disk"
        if named.get("aof_last_write_status", "ok") != "ok":
            checks.append(
                ServerCheck("persistence", "critical", "the last write to disk failed", _DISK)
            )
        elif info.fsync == "no":
            checks.append(ServerCheck("persistence", "warning", level, _ALWAYS))
        else:
            checks.append(ServerCheck("persistence", None, level))
    elif _keeps_snapshots(info):
        loss = "only snapshots are kept: a crash loses all writes after the last one"
        checks.append(ServerCheck("persistence", "warning", loss, _APPEND))
    else:
        loss = "nothing is stored on disk: a restart loses everything"
        if info.saves is None:
            loss = (
                "no append-only file is kept, and no snapshot was made since its start (CONFIG GET is"
                " refused, so it is unknown whether one will be): a restart may lose everything"
            )
        checks.append(ServerCheck("persistence", "critical", loss, _APPEND))
    if named.get("rdb_last_bgsave_status", "ok") != "ok":
        checks.append(ServerCheck("snapshot", "warning", "the last snapshot failed", _DISK))
    return checks


def _keeps_snapshots(info: ServerInfo) -> bool:
    if info.saves is not None:
        return bool(info.saves)
    # If the setting is unknown, judge by the snapshots that the server has written.
    named = info.named
    return named.get("rdb_last_save_time", "0") != "0" and named.get("rdb_saves", "0") != "0"


def _eviction(named: dict[str, str]) -> ServerCheck:
    policy = named.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ServerCheck("eviction", None, policy)
    return ServerCheck(
        "eviction",
        "critical",
        f"{policy}: a full server drops flags, cursors and streams",
        "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in its config file",
    )


def _memory(named: dict[str, str], levels: Levels) -> ServerCheck:
    used, limit = int(named.get("used_memory", "0")), int(named.get("maxmemory", "0"))
    state = f"{used / 1048576:.1f} MiB used"
    if not limit:
        return ServerCheck("memory", None, state)
    state += f" of {limit / 1048576:.1f} MiB"
    remedy = "raise maxmemory, or delete unneeded data: a full server refuses writes"
    return _measured("memory", levels, used / limit, state, remedy)


def _role(named: dict[str, str], levels: Levels) -> list[ServerCheck]:
    if named.get("role", "master") != "master":
        state = "a read-only replica"
        if named.get("master_link_status", "up") != "up":
            state += " without a connection to its primary"
        return [ServerCheck("role", "critical", state, "use the URL of the primary")]
    replicas = [
        _replica(dict(_pairs(value)), levels)
        for name, value in named.items()
        if name[:5] == "slave" and name[5:].isdigit()
    ]
    wrong = [check for check in replicas if check.severity is not None]
    return [ServerCheck("role", None, "accepts writes"), *wrong]


def _replica(fields: dict[str, str], levels: Levels) -> ServerCheck:
    where = f"the replica {fields.get('ip', '?')}:{fields.get('port', '?')}"
    remedy = "see the replica's log; until it is in sync, a failover loses the missing writes"
    state, lag = fields.get("state", "online"), fields.get("lag", "")
    if state != "online" and levels.wanted:
        return ServerCheck("replication", "warning", f"{where} is not in sync ({state})", remedy)
    silent = int(lag) if is_number(lag) else 0
    silence = f"{where} has sent nothing for {silent} s"
    return _measured("replication", levels, silent, silence, remedy)


def _measured(check: str, levels: Levels, figure: float, state: str, remedy: str) -> ServerCheck:
    crossed = levels.crossed(figure)
    if crossed is None:
        return ServerCheck(check, None, state)
    return ServerCheck(check, crossed[0], state, remedy, round(figure, 3), crossed[1])


def _pairs(value: str) -> Any:
    return ((key, each) for key, _, each in (part.partition("=") for part in value.split(",")))


def _named(reply: bytes) -> dict[str, str]:
    named = {}
    for line in text(reply).splitlines():
        key, separator, value = line.partition(":")
        if separator:
            named[key] = value
    return named
