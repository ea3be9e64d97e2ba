"""Notifications about settled tasks: replies, webhooks, and notices on the channel."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope, names
from agentbus.core.errors import UsageError
from agentbus.queues.ids import PRIVATE, writable
from agentbus.queues.task import UNTIL_DONE

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg

# Queue of webhook calls, which a separate worker sends.
WEBHOOKS = "~webhooks"
# Topic of the bus's own notices.
TOPIC = "tasks"
_NEWLINE = "\n"
# Markers in place of a queue's name: a task whose dedup key to free, or words for the attempt log.
_KEY, _LOG = "\r", "\t"
# Bytes to allow for the envelope around a result of maximum size.
_ROOM = 64 * 1024
_PASSED_ON = ("correlation_id", "traceparent", "tenant")


class Notifications:
    """The entries that a script appends when it settles a task, and the counter that it increments."""

    __slots__ = ("argv", "counter", "keys")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.argv: list[Arg] = []
        self.counter = ""

    def add(self, scope: Scope, queue: str, *words: Arg, caller: str = "") -> None:
        """Add an entry for a queue, or for a caller's private stream."""
        keys = scope.keys
        self.keys += (keys.replies(caller) if caller else keys.queue(queue), keys.queues)
        self.keys.append(keys.queues if caller else keys.stats(queue))
        self.argv += (queue, len(words), *words)

    def free(self, scope: Scope, task_id: str, key: str) -> None:
        """Free the dedup key of a unique task, if the key still belongs to this task."""
        queue = names.unescape(task_id.partition("@")[2].partition(":")[0])
        self.keys += [scope.keys.seen(queue, key)] * 3
        self.argv += (_KEY, 1, task_id)

    def log(self, key: str, words: Sequence[Arg]) -> None:
        """Add words for the attempt log."""
        self.keys += [key] * 3
        self.argv += (_LOG, len(words), *words)

    def speak(
        self, scope: Scope, queue: str, group: str, task_id: str, outcome: str, error: str | None
    ) -> None:
        """Add a notice for the channel."""
        keys = scope.keys
        said = f"task {task_id} of {queue} {outcome}"
        fields: tuple[str, ...] = (
            "event",
            outcome,
            "task",
            task_id,
            "queue",
            queue,
            "group",
            group,
        )
        if error is not None:
            said += f": {error.partition(_NEWLINE)[0]}"
            fields += ("error", error)
        words = (scope.agent, said, TOPIC, *fields)
        self.keys += (keys.channel, keys.agents, keys.topics)
        # A queue's name never contains a newline: it marks the channel, and the channel's bound
        # follows.
        self.argv += (f"{_NEWLINE}{scope.channel_bound}", len(words), *words)


def notifications(
    scope: Scope,
    queue: str,
    group: str,
    task_id: str,
    meta: Mapping[str, Any],
    *,
    result: bytes = b"",
    error: str | None = None,
    cancelled: bool = False,
) -> Notifications:
    """Return the entries to append for a task that is done with a result, or has ended with an error."""
    messages = Notifications()
    freed = meta.get("key") if meta.get("unique") == UNTIL_DONE else None
    freed = freed if isinstance(freed, str) else None
    if freed:
        messages.free(scope, task_id, freed)
    reply_to, webhook = meta.get("reply_to"), meta.get("webhook")
    notify = meta.get("notify") is True
    if reply_to is None and webhook is None and not notify:
        return messages
    if webhook is not None and not scope.webhook_secret:
        messages.counter, webhook = "webhooks_off", None
    try:
        about = {"task_id": task_id, "queue": queue, "group": group}
        head = orjson.dumps({"ok": error is None, **about})[:-1]
        tail = b',"result":' + (result or b"null") if error is None else _error(error)
        body = head + tail + (b',"cancelled":true}' if cancelled else b"}")
        rest, by = _rest(scope, task_id, meta), envelope.by(scope.agent)
        if isinstance(reply_to, str) and reply_to.startswith(PRIVATE):
            caller = names.name("caller", reply_to.removeprefix(PRIVATE))
            messages.add(scope, "", "task_id", task_id, "payload", body, caller=caller)
        elif reply_to is not None:
            reply_to = names.name("reply to", reply_to)
            writable(reply_to)
            messages.add(scope, reply_to, "payload", body, "meta", rest, *by)
        if webhook is not None:
            assert scope.webhook_secret
            mac = webhook_mac(scope.webhook_secret, webhook, orjson.loads(body))
            parts = (
                b'{"url":' + orjson.dumps(webhook),
                b'"body":' + body,
                f'"mac":"{mac}"}}'.encode(),
            )
            payload = b",".join(parts)
            messages.add(scope, WEBHOOKS, "payload", payload, "meta", rest, *by)
        if notify:
            ended = "done" if error is None else "cancelled" if cancelled else "dead"
            messages.speak(scope, queue, group, task_id, ended, error)
    except (UsageError, TypeError, ValueError):
        # Another program wrote the envelope: settle the task without a notification.
        messages = Notifications()
        messages.counter = "unanswered"
        if freed:
            messages.free(scope, task_id, freed)
    return messages


def webhook_mac(secret: str, url: object, body: object) -> str:
    """Return the code that proves that a worker with the secret appended a webhook.

    Other users may write to the queue, but they do not know the secret: their entries are not posted.
    """
    # A signature for a receiver begins with the digits of a time: neither can stand for the other.
    message = b"webhook\n" + orjson.dumps(url) + b"\n" + orjson.dumps(body)
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def _error(error: str) -> bytes:
    return b',"error":' + orjson.dumps(error)


def _rest(scope: Scope, task_id: str, meta: Mapping[str, Any]) -> bytes:
    """Return the envelope of a notification."""
    rest = {name: meta[name] for name in _PASSED_ON if isinstance(meta.get(name), str)}
    rest.setdefault("correlation_id", task_id)
    return envelope.encode({**rest, "causation_id": task_id}, scope.max_body + _ROOM)
