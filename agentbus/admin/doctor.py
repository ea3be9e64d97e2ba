"""`doctor`: checks a server and a project, and names remedies."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from agentbus.admin import letter_counts, server_health, stats
from agentbus.admin.health import foreign_keys, holds
from agentbus.admin.health.thresholds import Thresholds
from agentbus.admin.survey import surveyed
from agentbus.coordination import lease_step, leases
from agentbus.core import installation
from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.core.readable import count
from agentbus.core.shell_command import command, typed
from agentbus.core.stream import is_number
from agentbus.queues.ids import taker
from agentbus.store import sessions
from agentbus.store.failures import BY_CLUSTER, CROWDED, of_sentinel, refused
from agentbus.store.scope import ATTENDED, EMBEDDED_ADVICE, embedded_advice
from agentbus.store.steps import Batch, Command, Crowded, Denied, LinkDown, ServerReply
from agentbus.store.url import read
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from agentbus.admin.server_health import ServerCheck
    from agentbus.core.settings import Settings
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

_FLOOR = (7, 0)
_PINGS = 5
_SLOW_MS = 50.0
# Connections to these hosts stay on this machine.
_HERE = ("localhost", "127.0.0.1", "::1", "")
# The default thresholds of `health`.
_DEFAULTS = Thresholds({}, "default")
_SERVER = ("memory", "replication", "clock")
_STATUS = {None: "ok", "warning": "warning", "critical": "failed"}
_STALE = 15 * 60.0
# Maximum number of queues that are searched for stale consumers.
_QUEUES = 3_000
_MANY_LEASES = lease_step.MOST_LEASES * 4 // 5


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `status` is ok, warning or failed; `remedy` says what to do."""

    check: str
    status: str
    found: str
    remedy: str | None = None


def diagnose(scope: Scope, settings: Settings, where: str) -> Op[list[Finding]]:
    """Check connection, version, persistence, eviction, memory, clock, identity and queues."""
    findings = [(yield from _connection(scope, settings, where))]
    if findings[0].status == "failed":
        return [*findings, _identity(settings), *secrets(settings), *installed()]
    info = yield from server_health.ask()
    if "sentinel" in (info.named.get("redis_mode"), info.named.get("server_mode")):
        raise of_sentinel(where)
    if info.refusal is None:
        findings.append(_version(info.named))
    memory, replication, clock = (_DEFAULTS.levels(check) for check in _SERVER)
    findings += [_found(check) for check in server_health.examine(info, memory, replication)]
    if any(finding.check == "version" and finding.status == "failed" for finding in findings):
        # An older server does not support the other checks.
        return findings
    if info.named.get("cluster_enabled") == "1" and not scope.keys.project.startswith("{"):
        state = f"{where} is a node of a cluster, where the project's keys are on several"
        findings.append(Finding("cluster", "failed", state, BY_CLUSTER))
        return [*findings, _identity(settings), *secrets(settings), *installed()]
    findings.append(_found((yield from server_health.clock(scope, clock))))
    if settings.url is None:
        findings.append((yield from _disk(scope)))
    findings.append(_identity(settings))
    findings += yield from _foreign_keys(scope)
    findings += yield from _shared_names(scope)
    findings += yield from _left_holds(scope)
    findings += yield from _leases(scope)
    findings += secrets(settings)
    findings += installed()
    findings += yield from _leftovers(scope)
    return findings


def _found(check: ServerCheck) -> Finding:
    return Finding(check.check, _STATUS[check.severity], check.found, check.remedy)


class _Ping(Command):
    """A PING that is not retried; a server that AgentBus does not start gets a second to reply."""

    __slots__ = ("_within",)
    optional = True
    most = 1.0

    @property
    def within(self) -> float:
        return min(self._within, self.most)

    @within.setter
    def within(self, seconds: float) -> None:
        self._within = seconds


class _FirstPing(_Ping):
    """The PING that may have to start the embedded server."""

    __slots__ = ()
    most = inf


def _connection(scope: Scope, settings: Settings, where: str) -> Op[Finding]:
    took = []
    for number in range(_PINGS):
        began = scope.monotonic()
        ping = _FirstPing("PING") if settings.url is None and number == 0 else _Ping("PING")
        try:
            yield ping
        except (LinkDown, ServerReply) as failure:
            return _unreachable(failure, ping, settings, where)
        took.append((scope.monotonic() - began) * 1000)
    median = sorted(took)[_PINGS // 2]
    state = f"{where} answers in {median:.2f} ms"
    if median > _SLOW_MS:
        return Finding("connection", "warning", state, "use a nearer server, or reduce its load")
    return Finding("connection", "ok", state)


def _unreachable(
    failure: LinkDown | ServerReply, ping: Step, settings: Settings, where: str
) -> Finding:
    """Return the finding for a server that cannot be reached. Raises `ConfigError`."""
    if isinstance(failure, ServerReply):
        error = refused(failure, ping, where)
        if isinstance(error, ConfigError):
            raise error
        loading = failure.code == "LOADING"
        remedy = "wait until it has loaded its data" if loading else "see the server's log"
    elif isinstance(failure, Denied):
        return Finding("connection", "failed", failure.error.message, failure.error.hint)
    elif isinstance(failure, Crowded):
        remedy = CROWDED
    elif settings.url is None:
        said, advice = embedded_advice(str(failure))
        return Finding("connection", "failed", f"{where} does not answer ({said})", advice)
    else:
        source = settings.sources.get("url", "default")
        remedy = f"start the server, or correct the URL (from {source})"
    return Finding("connection", "failed", f"{where} does not answer ({failure})", remedy)


def _version(named: dict[str, str]) -> Finding:
    if "valkey_version" in named:
        return Finding("version", "ok", f"Valkey {named['valkey_version']}")
    version = named.get("redis_version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if is_number(part))
    if numbers < _FLOOR:
        return Finding("version", "failed", f"Redis {version}", "use Redis 7.0 or newer, or Valkey")
    return Finding("version", "ok", f"Redis {version}")


def _disk(scope: Scope) -> Op[Finding]:
    """Check writing to the disk of the embedded server: directly, then through the server."""
    disk = server_health.disk()
    if disk.severity == "critical":
        # Another write would make the server exit.
        return _found(disk)
    key, began = scope.keys.once("doctor"), scope.monotonic()
    (wrote, _) = yield Batch([("SET", key, "1", "PX", 1000), ("DEL", key)])
    took = (scope.monotonic() - began) * 1000
    if isinstance(wrote, ServerReply):
        return Finding("disk", "failed", f"the server refuses a write ({wrote})", EMBEDDED_ADVICE)
    checked = _found(disk)
    return replace(checked, found=f"{checked.found}; a write reached it in {took:.2f} ms")


def _identity(settings: Settings) -> Finding:
    state = f"{settings.agent} in {settings.project}"
    if settings.peers:
        state += " (by default: the name of this POSIX session, with which it ends)"
    else:
        state += f" (from {settings.sources.get('agent')})"
    return Finding("identity", "ok", state)


def _shared_names(scope: Scope) -> Op[list[Finding]]:
    """Find names that several live sessions of one host share, with their cursors and flags."""
    processes: dict[tuple[str, str], set[int]] = {}
    now, records = yield from sessions.records_now(scope)
    for agent, host, number, seen in records:
        if sessions.lives(host, number, now - seen, 2 * ATTENDED):
            processes.setdefault((agent, host), set()).add(number)
    return [
        Finding(
            "names",
            "warning",
            f"{len(numbers)} sessions of {host} ({', '.join(map(str, sorted(numbers)))}) use the name"
            f" {agent}: they share its cursor and its announced flags",
            "give each its own AGENTBUS_AGENT, or none",
        )
        for (agent, host), numbers in sorted(processes.items())
        if len(numbers) > 1
    ]


def _foreign_keys(scope: Scope) -> Op[list[Finding]]:
    return [
        Finding("keys", "failed", key.text, key.remedy)
        for key in (yield from foreign_keys.examine_all(scope))
    ]


def _left_holds(scope: Scope) -> Op[list[Finding]]:
    return [
        Finding("flags", "warning", hold.found, hold.remedy)
        for hold in (yield from holds.left(scope))
    ]


def _leases(scope: Scope) -> Op[list[Finding]]:
    """Report the number of leases, if any; close to their limit, agents are soon refused."""
    try:
        held = yield from leases.leases(scope)
    except AgentBusError:
        # Another program's key, which is named above.
        return []
    if not held:
        return []
    agents = len({one.agent for one in held})
    said = f"{len(held)} of {lease_step.MOST_LEASES}, held by {agents} agent{'s' if agents > 1 else ''}"
    if len(held) < _MANY_LEASES:
        return [Finding("leases", "ok", said)]
    remedy = "drop those that are done, or lease patterns in place of single files: agentbus lease"
    return [Finding("leases", "warning", said, remedy)]


def secrets(settings: Settings) -> list[Finding]:
    """Find passwords that other users can read, on the network or in a file."""
    findings = []
    url = None if settings.url is None else read(settings.url)
    guarded = url is not None and url.password is not None
    if url is not None and guarded and url.scheme not in ("unix", "rediss", "memory"):
        hosts = [host for host, _ in url.hosts if host not in _HERE]
        if hosts and dict(url.options).get("tls", "").lower() not in ("1", "true", "yes"):
            state = f"the password and all data go to {', '.join(hosts)} unencrypted"
            remedy = "use TLS: rediss://, or ?tls=true"
            findings.append(Finding("secrets", "warning", state, remedy))
    held = {"url": guarded, "webhook_secret": True, "database": settings.database is not None}
    files = {settings.sources.get(name, "") for name, held_there in held.items() if held_there}
    for path in sorted(path for path in files if path.startswith("/")):
        if os.path.exists(path) and os.stat(path).st_mode & 0o077:
            state = f"{path} holds a password, and others may read it"
            findings.append(Finding("secrets", "warning", state, f"chmod 600 {path}"))
    return findings


def installed() -> list[Finding]:
    """Report another project's `agentbus` that is installed beside this one."""
    findings = []
    if place := installation.foreign_distribution():
        state = f"another project's 'agentbus' is installed in the same environment: {place}"
        findings.append(Finding("installation", "warning", state, installation.REMEDY))
    if path := installation.foreign_command():
        state = f"'agentbus' in this shell is another project's: {path}"
        remedy = f"run 'agentbus-toolkit', or put {os.path.dirname(sys.executable)} first on PATH"
        findings.append(Finding("installation", "warning", state, remedy))
    return findings


def _leftovers(scope: Scope) -> Op[list[Finding]]:
    """Count dead letters, and stale consumers: those with pending entries and no heartbeat."""
    boxes = yield from stats.letter_boxes(scope)
    asked = [one for box in boxes for one in letter_counts.requests(scope.keys, *box)]
    replies = iter((yield from in_batches(asked)))
    dead = {box: number for box in boxes if (number := letter_counts.left(replies))}
    letters = Finding("dead letters", "ok", "none")
    if dead:
        name, group = max(dead, key=lambda box: dead[box])
        option = "" if group == "default" else f" --group {typed(group)}"
        remedy = f"{command('agentbus dlq list', name, option)}; then replay or purge them"
        many = f"{sum(dead.values())} in {count(len({name for name, _ in dead}), 'queue')}"
        letters = Finding("dead letters", "warning", many, remedy)
    known, _ = yield from stats.known_queues(scope)
    number, known = len(known), known[:_QUEUES]
    stale = sum(
        # A task that an agent holds by hand needs no heartbeat.
        consumer.pending > 0 and consumer.idle > _STALE and taker(consumer.name) is None
        for survey in (yield from surveyed(scope, known))
        for name in survey.groups
        for consumer in survey.group(name).consumers
    )
    if not stale:
        some = f" in the first {_QUEUES:,} of {number:,} queues" if number > _QUEUES else ""
        return [letters, Finding("consumers", "ok", f"none is stale{some}")]
    many = (
        f"{stale} {'holds' if stale == 1 else 'hold'} entries and sent no heartbeat for 15 minutes"
    )
    remedy = "start a worker of their group: it reclaims their entries"
    return [letters, Finding("consumers", "warning", many, remedy)]
