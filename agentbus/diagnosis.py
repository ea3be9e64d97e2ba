"""Examines a server and a project: what is well, what endangers data, and what to do about it."""

from __future__ import annotations

from agentbus.inspector import scan
from agentbus.record import Record
from agentbus.store import Batch, Command
from agentbus.stream import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.keys import Scope
    from agentbus.settings import Settings
    from agentbus.store import Op

_FLOOR = (7, 0)
_PINGS = 5
_SLOW_MS = 50.0
_CLOCK_WARNS, _CLOCK_FAILS = 1.0, 30.0
_NEARLY_FULL = 0.9
_STALE_MS = 15 * 60 * 1000


class Finding(Record):
    """One examined matter: `status` is ok, warning or failed; `remedy` says what to do."""

    check: str
    status: str
    found: str
    remedy: str | None = None


def diagnose(scope: Scope, settings: Settings, where: str) -> Op[list[Finding]]:
    """Examine connection, version, persistence, eviction, memory, clock, identity and leftovers."""
    findings = [(yield from _connection(scope, where))]
    (reply,) = yield Batch([("INFO",)])
    if isinstance(reply, bytes):
        named = _named(reply)
        findings += [
            _version(named),
            *_persistence(named),
            _eviction(named),
            _memory(named),
            _role(named),
        ]
    elif "unknown command" in str(reply):
        findings.append(
            Finding(
                "persistence",
                "warning",
                "this server lives in this process and keeps nothing",
                "use another URL for anything but tests",
            )
        )
    else:
        findings.append(
            Finding("server", "warning", f"INFO is refused ({reply})", "allow +info to this user")
        )
    if any(finding.check == "version" and finding.status == "failed" for finding in findings):
        # Nothing else can be asked of it.
        return findings
    findings.append((yield from _clock(scope)))
    findings.append(_identity(settings))
    findings += yield from _leftovers(scope)
    return findings


def _connection(scope: Scope, where: str) -> Op[Finding]:
    took = []
    for _ in range(_PINGS):
        began = scope.monotonic()
        yield Command("PING")
        took.append((scope.monotonic() - began) * 1000)
    median = sorted(took)[_PINGS // 2]
    found = f"{where} answers in {median:.2f} ms"
    if median > _SLOW_MS:
        return Finding("connection", "warning", found, "use a nearer server, or look at its load")
    return Finding("connection", "ok", found)


def _version(named: dict[str, str]) -> Finding:
    if "valkey_version" in named:
        return Finding("version", "ok", f"Valkey {named['valkey_version']}")
    version = named.get("redis_version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _FLOOR:
        return Finding("version", "failed", f"Redis {version}", "use Redis 7.0 or newer, or Valkey")
    return Finding("version", "ok", f"Redis {version}")


def _persistence(named: dict[str, str]) -> list[Finding]:
    findings = []
    if named.get("aof_enabled") == "1":
        delayed = int(named.get("aof_delayed_fsync", "0"))
        level = "an append-only file is kept"
        if delayed:
            level += f"; {delayed} writes waited for a slow disk"
        if named.get("aof_last_write_status", "ok") == "ok":
            findings.append(Finding("persistence", "ok", level))
        else:
            findings.append(
                Finding("persistence", "failed", "the last write to disk failed", "free disk space")
            )
    elif int(named.get("rdb_last_save_time", "0")) and named.get("rdb_saves", "0") != "0":
        findings.append(
            Finding(
                "persistence",
                "warning",
                "only snapshots are kept: a crash loses what came after the last one",
                "set appendonly yes",
            )
        )
    else:
        findings.append(
            Finding("persistence", "failed", "nothing is kept on disk", "set appendonly yes")
        )
    if named.get("rdb_last_bgsave_status", "ok") != "ok":
        findings.append(
            Finding("snapshot", "warning", "the last snapshot failed", "see the server's log")
        )
    return findings


def _eviction(named: dict[str, str]) -> Finding:
    policy = named.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Finding("eviction", "ok", policy)
    return Finding(
        "eviction",
        "failed",
        f"{policy}: a full server drops flags, cursors and streams",
        "set maxmemory-policy noeviction",
    )


def _memory(named: dict[str, str]) -> Finding:
    used, limit = int(named.get("used_memory", "0")), int(named.get("maxmemory", "0"))
    shown = f"{used / 1048576:.1f} MiB used"
    if not limit:
        return Finding("memory", "ok", shown)
    shown += f" of {limit / 1048576:.1f} MiB"
    if used > _NEARLY_FULL * limit:
        return Finding("memory", "failed", shown, "raise maxmemory, or remove what is not needed")
    return Finding("memory", "ok", shown)


def _role(named: dict[str, str]) -> Finding:
    if named.get("role", "master") == "master":
        return Finding("role", "ok", "takes writes")
    return Finding("role", "failed", "a read-only replica", "give the URL of the primary")


def _clock(scope: Scope) -> Op[Finding]:
    before = scope.now()
    seconds, micros = yield Command("TIME")
    after = scope.now()
    off = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    off = 0.0 if abs(off) < (after - before) / 2 else off
    found = f"{abs(off):.3f} s {'ahead of' if off >= 0 else 'behind'} this host's"
    if abs(off) > _CLOCK_FAILS:
        return Finding("clock", "failed", found, "set both clocks by NTP")
    if abs(off) > _CLOCK_WARNS:
        return Finding("clock", "warning", found, "set both clocks by NTP")
    return Finding("clock", "ok", found)


def _identity(settings: Settings) -> Finding:
    found = f"{settings.agent} in {settings.project}"
    if settings.sources.get("agent") == "default":
        return Finding(
            "identity",
            "ok",
            f"{found} (by default: every shell of this user is the same agent)",
        )
    return Finding("identity", "ok", f"{found} (from {settings.sources.get('agent')})")


def _leftovers(scope: Scope) -> Op[list[Finding]]:
    """Count dead letters, and consumers that hold entries without a sign of life."""
    letters = sorted((yield from scan(scope, "dlq")))
    total = places = 0
    if letters:
        # Of each key the kind that it is not answers with an error; the sets hold what was purged.
        dead = yield Batch([("XLEN", key) for key in letters])
        gone = yield Batch([("SCARD", key) for key in letters])
        total = sum(count for count in dead if isinstance(count, int))
        total -= sum(count for count in gone if isinstance(count, int))
        places = sum(1 for count in dead if isinstance(count, int) and count)
    findings = [
        Finding("dead letters", "ok", "none")
        if not total
        else Finding(
            "dead letters",
            "warning",
            f"{total} in {places} queues",
            "see 'agentbus dlq list'",
        )
    ]
    stale = 0
    for queue in sorted((yield from scan(scope, "q"))):
        stale += yield from _stale(queue)
    findings.append(
        Finding("consumers", "ok", "none is stale")
        if not stale
        else Finding(
            "consumers",
            "warning",
            f"{stale} hold entries and gave no sign of life for 15 minutes",
            "start a worker of their group: it takes their entries over",
        )
    )
    return findings


def _stale(queue: str) -> Op[int]:
    (groups,) = yield Batch([("XINFO", "GROUPS", queue)])
    stale = 0
    for group in groups if isinstance(groups, list) else ():
        name = _pairs(group)["name"]
        (consumers,) = yield Batch([("XINFO", "CONSUMERS", queue, name)])
        for consumer in consumers if isinstance(consumers, list) else ():
            about = _pairs(consumer)
            stale += about["pending"] > 0 and about["idle"] > _STALE_MS
    return stale


def _pairs(flat: list[Any]) -> dict[str, Any]:
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def _named(reply: bytes) -> dict[str, str]:
    named = {}
    for line in text(reply).splitlines():
        key, separator, value = line.partition(":")
        if separator:
            named[key] = value
    return named
