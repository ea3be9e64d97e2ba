"""Builds every Redis key of a project.

The patterns for the channel, cursors, notes and flags are fixed: a program that follows them with
plain Redis commands takes part in the same bus.
"""

from __future__ import annotations

from agentbus.core.names import KEY_KINDS, escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Keys:
    """Builds the keys of one project from names that were already checked."""

    __slots__ = ("project",)

    def __init__(self, project: str) -> None:
        self.project = project

    # -- channel --

    @property
    def channel(self) -> str:
        """`<P>:ch:main`, stream: every message and every event of the bus itself."""
        return f"{self.project}:ch:main"

    def cursor(self, agent: str, topic: str | None = None) -> str:
        """`<P>:last:<agent>` or `<P>:last:<agent>:<topic>`, string: the id last read.

        `%` and `:` in names are percent-encoded, so that the agent `a:b` is not `a` on the topic `b`.
        """
        return f"{self.project}:last:{cursor_field(agent, topic)}"

    @property
    def heard(self) -> str:
        """`<P>:heard`, hash: cursor → `id ordinal`, from which missed entries are counted."""
        return f"{self.project}:heard"

    @property
    def agents(self) -> str:
        """`<P>:agents`, zset: agent → unix time last seen."""
        return f"{self.project}:agents"

    @property
    def sessions(self) -> str:
        """`<P>:agents:sessions`, zset: agent, host, POSIX session id, a line each → unix ms last seen."""
        return f"{self.project}:agents:sessions"

    @property
    def waiting(self) -> str:
        """`<P>:agents:waiting`, zset: flag, state, agent, unix ms, unique id, a line each → its end."""
        return f"{self.project}:agents:waiting"

    @property
    def topics(self) -> str:
        """`<P>:topics`, zset: topic → unix time of its last message."""
        return f"{self.project}:topics"

    def once(self, slot: str) -> str:
        """`<P>:once:<slot>`, string: a writer's last token and reply, so that it resends safely."""
        return f"{self.project}:once:{slot}"

    # -- notes --

    def jot(self, title: str) -> str:
        """`<P>:jot:<title>`, hash: `value author timestamp tags`."""
        return f"{self.project}:jot:{title}"

    def tag(self, tag: str) -> str:
        """`<P>:jots_by_tag:<tag>`, zset: title → unix time."""
        return f"{self.project}:jots_by_tag:{tag}"

    @property
    def jots(self) -> str:
        """`<P>:jots`, zset: title → unix time, of all notes."""
        return f"{self.project}:jots"

    # -- flags --

    def flag(self, flag: str) -> str:
        """`<P>:flag:<name>`, string: `agent @ RFC3339`, with the hold's TTL if it has one."""
        return f"{self.project}:flag:{flag}"

    def done(self, flag: str) -> str:
        """`<P>:done:<name>`, string: `agent @ RFC3339`, event id, token and note, a line each."""
        return f"{self.project}:done:{flag}"

    def failed(self, flag: str) -> str:
        """`<P>:failed:<name>`, string: a failure, in the form of a completion; each clears the other."""
        return f"{self.project}:failed:{flag}"

    def fence(self, flag: str) -> str:
        """`<P>:fence:<name>`, string: the last fencing token: at least the server's clock in ms."""
        return f"{self.project}:fence:{flag}"

    # -- sessions and presence --

    @property
    def client_sessions(self) -> str:
        """`<P>:sessions`, hash: `<client>:<session id>` → agent; and agent → `<client>:<session id>`."""
        return f"{self.project}:sessions"

    def who(self, agent: str) -> str:
        """`<P>:who:<agent>`, hash: an agent's presence, such as its state, for a day."""
        return f"{self.project}:who:{escape(agent)}"

    # -- leases --

    @property
    def leases(self) -> str:
        """`<P>:leases`, hash: pattern, newline, agent → the lease, as JSON."""
        return f"{self.project}:leases"

    @property
    def lease_fence(self) -> str:
        """`<P>:leases:fence`, string: the last token of a lease, by the rule of `<P>:fence:<name>`."""
        return f"{self.project}:leases:fence"

    @property
    def lease_bell(self) -> str:
        """`<P>:leases:bell`, stream of the latest ring: wakes agents that wait for leases to end."""
        return f"{self.project}:leases:bell"

    @property
    def leases_refused(self) -> str:
        """`<P>:leases:refused`, hash: counts of refused leases, and what the metrics stream has of them."""
        return f"{self.project}:leases:refused"

    @property
    def tokens(self) -> str:
        """`<P>:tokens`, hash: digest of a token of an agent elsewhere → its record, as JSON."""
        return f"{self.project}:tokens"

    # -- inboxes --

    def inbox(self, agent: str) -> str:
        """`<P>:inbox:<agent>`, stream: the messages to one agent."""
        return f"{self.project}:inbox:{escape(agent)}"

    def inbox_at(self, agent: str) -> str:
        """`<P>:inbox:<agent>:at`, hash: the agent's position, its time, and the messages read beyond it."""
        return f"{self.inbox(agent)}:at"

    def answers(self, agent: str) -> str:
        """`<P>:inbox:<agent>:answers`, hash: entry id of a message to the agent → id of its answer."""
        return f"{self.inbox(agent)}:answers"

    def asks(self, agent: str) -> str:
        """`<P>:inbox:<agent>:asks`, zset: id of an ask of the agent without an answer → unix ms."""
        return f"{self.inbox(agent)}:asks"

    def inbox_bell(self, agent: str) -> str:
        """`<P>:inbox:<agent>:bell`, stream of the latest ring: wakes waiters when it reads or rests."""
        return f"{self.inbox(agent)}:bell"

    # -- queues --

    @property
    def queues(self) -> str:
        """`<P>:queues`, zset: queue → unix time in ms of its first task."""
        return f"{self.project}:queues"

    def queue(self, queue: str, priority: str = "normal") -> str:
        """`<P>:q:<queue>[:<priority>]`, stream: tasks; `normal` has no suffix.

        `<P>:attempts:<queue>:retry` for `retry`: moved ones, which no publisher may write.
        """
        if priority == "retry":
            return f"{self.project}:attempts:{escape(queue)}:retry"
        suffix = "" if priority == "normal" else f":{priority}"
        return f"{self.project}:q:{escape(queue)}{suffix}"

    def dead_letters(self, queue: str, group: str) -> str:
        """`<P>:dlq:<queue>:<group>`, stream: tasks that failed permanently, with the error."""
        return f"{self.project}:dlq:{escape(queue)}:{escape(group)}"

    def replayed(self, queue: str, group: str) -> str:
        """`<P>:dlq:<queue>:<group>:replayed`, hash: letter's id → id of its replayed task."""
        return f"{self.dead_letters(queue, group)}:replayed"

    def delayed(self, queue: str) -> str:
        """`<P>:delayed:<queue>`, zset: task id → unix time in ms at which it is due."""
        return f"{self.project}:delayed:{escape(queue)}"

    def bodies(self, queue: str) -> str:
        """`<P>:delayed:<queue>:bodies`, hash: task id → delayed task, as JSON."""
        return f"{self.project}:delayed:{escape(queue)}:bodies"

    def bell(self, queue: str) -> str:
        """`<P>:delayed:<queue>:bell`, stream of the latest rings: wakes workers that wait for due tasks."""
        return f"{self.project}:delayed:{escape(queue)}:bell"

    def ids(self, queue: str) -> str:
        """`<P>:ids:<queue>`, string: the number of the last id of a delayed or dependent task; it grows."""
        return f"{self.project}:ids:{escape(queue)}"

    @property
    def settled(self) -> str:
        """`<P>:after`, hash: task and group → its outcome, until its dependents are notified."""
        return f"{self.project}:after"

    def after(self, queue: str) -> str:
        """`<P>:after:<queue>`, zset: dependent task → number of its unfinished dependencies."""
        return f"{self.project}:after:{escape(queue)}"

    def after_bodies(self, queue: str) -> str:
        """`<P>:after:<queue>:bodies`, hash: dependent task → the task, as JSON."""
        return f"{self.after(queue)}:bodies"

    def awaited(self, queue: str) -> str:
        """`<P>:after:<queue>:of`, zset of equal scores: task, group and each of its dependents."""
        return f"{self.after(queue)}:of"

    def retries(self, queue: str, group: str, priority: str) -> str:
        """`<P>:attempts:<queue>:<group>:<priority>:due`, zset: entry id → unix time in ms."""
        return f"{self.attempts(queue, group, priority)}:due"

    def attempts(self, queue: str, group: str, priority: str) -> str:
        """`<P>:attempts:<queue>:<group>:<priority>`, hash: entry id → attempts started."""
        return f"{self.project}:attempts:{escape(queue)}:{escape(group)}:{priority}"

    def cancelled(self, queue: str) -> str:
        """`<P>:attempts:<queue>:cancelled`, hash: task → by whom and when; with a group → its holder."""
        return f"{self.project}:attempts:{escape(queue)}:cancelled"

    def moved(self, queue: str) -> str:
        """`<P>:attempts:<queue>:moved`, hash: place of a task and group → its entry among retries."""
        return f"{self.project}:attempts:{escape(queue)}:moved"

    def runs(self, task_id: str, group: str) -> str:
        """`<P>:attempts:<task id>:<group>:runs`, hash: number → run of a task that failed once, as JSON."""
        return f"{self.project}:attempts:{escape(task_id)}:{escape(group)}:runs"

    @property
    def attempt_log(self) -> str:
        """`<P>:attempts`, stream: the newest attempts at tasks, many in one entry."""
        return f"{self.project}:attempts"

    @property
    def taken(self) -> str:
        """`<P>:attempts:taken`, hash: lines task, group, token → agent, queue, priority, entry, end."""
        return f"{self.project}:attempts:taken"

    @property
    def taken_fence(self) -> str:
        """`<P>:attempts:fence`, string: the last token of a task that was taken by hand."""
        return f"{self.project}:attempts:fence"

    def order(self, queue: str, priority: str) -> str:
        """`<P>:order:<queue>:<priority>`, zset: ordering key and entry id, of equal scores."""
        return f"{self.project}:order:{escape(queue)}:{priority}"

    def limits(self, queue: str, group: str) -> tuple[str, str, str]:
        """`<P>:limits:<queue>:<group>`, hash: the running tasks; `…:waiting`, zset; `…:tokens`, hash."""
        slots = f"{self.project}:limits:{escape(queue)}:{escape(group)}"
        return slots, f"{slots}:waiting", f"{slots}:tokens"

    def positions(self, queue: str) -> str:
        """`<P>:positions:<queue>`, hash: group and priority → id up to which the group is done."""
        return f"{self.project}:positions:{escape(queue)}"

    def visibilities(self, queue: str, group: str) -> str:
        """`<P>:positions:<queue>:<group>`, hash: consumer → ms without a heartbeat until it loses tasks."""
        return f"{self.positions(queue)}:{escape(group)}"

    def seen(self, queue: str, key: str) -> str:
        """`<P>:seen:<queue>:<key>`, string: the id of the task published with this dedup key."""
        return f"{self.project}:seen:{escape(queue)}:{escape(key)}"

    def seen_inbox(self, queue: str, inbox_id: str) -> str:
        """`<P>:seen:<queue>:inbox:<inbox id>`, string: the id of the raw task with this `inbox_id`."""
        # This never collides with a dedup key, in which a colon is escaped.
        return f"{self.project}:seen:{escape(queue)}:inbox:{escape(inbox_id)}"

    def result(self, task_id: str, group: str = "default") -> str:
        """`<P>:results:<task id>:<group>`, string: a task's result, as JSON; `!…` if it is dead."""
        return f"{self.project}:results:{task_id}:{escape(group)}"

    def replies(self, caller: str) -> str:
        """`<P>:replies:<caller>`, stream: answers to the requests of one process."""
        return f"{self.project}:replies:{escape(caller)}"

    def stats(self, queue: str) -> str:
        """`<P>:stats:<queue>`, hash: counters."""
        return f"{self.project}:stats:{escape(queue)}"

    def worked(self, queue: str, group: str) -> str:
        """`<P>:stats:<queue>:<group>`, hash: counters of the group's workers."""
        return f"{self.stats(queue)}:{escape(group)}"

    @property
    def metrics(self) -> str:
        """`<P>:metrics`, stream: counts by workers and publishers, about the newest 100,000."""
        return f"{self.project}:metrics"

    @property
    def beats(self) -> str:
        """`<P>:beat`, zset: worker → unix time in ms at which it was last seen."""
        return f"{self.project}:beat"

    def beat(self, worker: str) -> str:
        """`<P>:beat:<worker>`, hash: a worker's state, and whether it must stop."""
        return f"{self.project}:beat:{escape(worker)}"

    @property
    def paused(self) -> str:
        """`<P>:paused`, hash: paused object → by whom, since when and why, as JSON."""
        return f"{self.project}:paused"

    def purged(self, queue: str, group: str) -> str:
        """`<P>:dlq:<queue>:<group>:purged`, set: ids of purged letters that are not yet trimmed."""
        return f"{self.dead_letters(queue, group)}:purged"

    def readers(self, queue: str, priority: str = "normal") -> str:
        """`<P>:readers:<queue>[:<priority>]`, hash: reader → lowest id of the stream it still needs."""
        suffix = "" if priority == "normal" else f":{priority}"
        return f"{self.project}:readers:{escape(queue)}{suffix}"

    def replay(self, replay_id: str) -> str:
        """`<P>:replays:<replay>`, hash: the request of a replay of an archive, and its cursors."""
        return f"{self.project}:replays:{escape(replay_id)}"

    def sink(self, run: str, partition: int) -> str:
        """`<P>:sinks:<run>:<partition>`, zset: digest of a slice that a Spark sink wrote → its batch."""
        return f"{self.project}:sinks:{escape(run)}:{partition}"

    @property
    def salt(self) -> str:
        """`<P>:salt`, string: what the masks of the project's archives are keyed with."""
        return f"{self.project}:salt"

    def tidied(self, duty: str) -> str:
        """`<P>:tidied:<duty>`, string: the worker that does this janitor's duty now."""
        return f"{self.project}:tidied:{duty}"

    @property
    def triggers(self) -> str:
        """`<P>:triggers`, zset: agent, newline, agent that it triggered → unix time in ms."""
        return f"{self.project}:triggers"

    def rate(self, kind: str, name: str) -> str:
        """`<P>:rate:<kind>:<name>`, zset: task of an agent or a work type → its routing time in unix ms."""
        return f"{self.project}:rate:{kind}:{escape(name)}"

    # -- schedules --

    @property
    def schedules(self) -> str:
        """`<P>:schedules`, zset: schedule → unix time in ms at which it is looked at next."""
        return f"{self.project}:schedules"

    def schedule(self, name: str) -> str:
        """`<P>:schedules:of:<name>`, hash: a schedule's record, when it is due, and its last tick."""
        return f"{self.project}:schedules:of:{escape(name)}"

    @property
    def schedule_bell(self) -> str:
        """`<P>:schedules:bell`, stream of the latest ring: wakes schedulers when a schedule changes."""
        return f"{self.project}:schedules:bell"

    def flow(self, flow: str) -> tuple[str, str]:
        """`<P>:flows:of:<flow>`, hash: its tasks and outcomes; `<P>:flows`, zset: flow → its end in ms."""
        return f"{self.project}:flows:of:{escape(flow)}", f"{self.project}:flows"

    # -- events --

    def events(self, stream: str) -> str:
        """`<P>:ev:<stream>`, stream: events that a relay published."""
        return f"{self.project}:ev:{escape(stream)}"

    def relay(self, stream: str) -> str:
        """`<P>:ev:<stream>:relay`, hash: token and last id of each ledger's relay, and what was trimmed."""
        return f"{self.events(stream)}:relay"

    def event_readers(self, stream: str) -> str:
        """`<P>:ev:<stream>:readers`, hash: reader → lowest id that it still needs, or `none`."""
        return f"{self.events(stream)}:readers"

    @property
    def quarantined(self) -> str:
        """`<P>:quarantined`, hash: quarantined consumer → why and since when, as JSON."""
        return f"{self.project}:quarantined"

    # -- shards --

    @property
    def shards(self) -> str:
        """`<P>:shards`, hash: `numbers` of all shards, as JSON, and how many of them are `open`."""
        return f"{self.project}:shards"

    @property
    def places(self) -> str:
        """`<P>:shards:of`, hash: queue → the number of its shard, '' for the project's own tag."""
        return f"{self.project}:shards:of"

    @property
    def elsewhere(self) -> str:
        """`<P>:shards:awaited`, zset: task elsewhere for which tasks here wait → unix ms to ask for it."""
        return f"{self.project}:shards:awaited"

    @property
    def passed(self) -> str:
        """`<P>:shards:passed`, hash: shard and stream of an outbox → id of its last forwarded entry."""
        return f"{self.project}:shards:passed"

    # -- the whole project --

    def stream(self, name: str) -> str:
        """Return the key of a stream from its name in the pipeline: the key without the project."""
        return f"{self.project}:{name}"

    def kind(self, key: str) -> str | None:
        """Return the kind of a key of this project; None for other keys."""
        before, prefix, rest = key.partition(f"{self.project}:")
        kind = rest.split(":", 1)[0]
        return kind if prefix and not before and kind in KEY_KINDS else None

    def pattern(self, *kinds: str | None) -> str:
        """Return a SCAN pattern for the project's keys of a kind; of several, by their first letters."""
        if len(kinds) > 1:
            return (
                f"{_literal(self.project)}:[{''.join(sorted({str(kind)[0] for kind in kinds}))}]*"
            )
        kind = kinds[0] if kinds else None
        return _literal(f"{self.project}:{kind}:" if kind else f"{self.project}:") + "*"

    def patterns(self, kinds: Iterable[str] = KEY_KINDS) -> list[str]:
        """Return patterns that match this project's keys, but no keys of a project with a longer name."""
        heads = (_literal(f"{self.project}:{kind}") for kind in sorted(kinds))
        return [pattern for head in heads for pattern in (head, f"{head}:*")]

    def open_pattern(self, kind: str) -> str:
        """Return a pattern for the keys of one kind of all queues except the bus's own (`~…`)."""
        return _literal(f"{self.project}:{kind}:") + "[^~]*"


def shard(project: str, number: str) -> str:
    """Return the prefix `{P~<number>}` of a shard; for '', that of the project itself, `{P}`."""
    return f"{project[:-1]}~{number}}}" if number else project


def _literal(text: str) -> str:
    return "".join("\\" + c if c in "*?[]\\^" else c for c in text)


def cursor_field(agent: str, topic: str | None = None) -> str:
    """Return the part of a cursor's key that names the reader."""
    return escape(agent) if topic is None else f"{escape(agent)}:{escape(topic)}"


def pause_field(kind: str, name: str | None = None) -> str:
    """Return the field of an order: `queue:<q>`, `agent:<a>`, `worker:<w>`, `limit:<q>`, or `all`."""
    return "all" if name is None else f"{kind}:{escape(name)}"
