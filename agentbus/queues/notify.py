"""Notifications about settled tasks: replies and webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope, names
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg

# The queue that webhooks wait in; a worker of its own sends them.
WEBHOOKS = "~webhooks"
# What a private stream is called in an envelope, before the name of the caller that reads it.
PRIVATE = "~replies."
# A result of the largest size is sent with a few words around it.
_ROOM = 64 * 1024
_PASSED_ON = ("correlation_id", "traceparent", "tenant")


class Telling:
    """What a script appends in the step that settles a task, and the counter that it raises."""

    __slots__ = ("argv", "counter", "keys")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.argv: list[Arg] = []
        self.counter = ""

    def add(self, scope: Scope, queue: str, words: tuple[Arg, ...]) -> None:
        """Append to a queue."""
        keys = scope.keys
        self.keys += (keys.queue(queue), keys.queues, keys.stats(queue))
        self.argv += (queue, len(words), *words)

    def add_private(self, scope: Scope, caller: str, words: tuple[Arg, ...]) -> None:
        """Append to a caller's private stream."""
        keys = scope.keys
        self.keys += (keys.replies(caller), keys.queues, keys.queues)
        self.argv += ("", len(words), *words)


def telling(
    scope: Scope,
    queue: str,
    group: str,
    task_id: str,
    meta: Mapping[str, Any],
    *,
    result: bytes = b"",
    error: str | None = None,
) -> Telling:
    """Return what is to be appended for a task that is done with a result, or buried with an error."""
    told = Telling()
    reply_to, webhook = meta.get("reply_to"), meta.get("webhook")
    if reply_to is None and webhook is None:
        return told
    if webhook is not None and not scope.webhooks:
        told.counter, webhook = "webhooks_off", None
    try:
        about = {"task_id": task_id, "queue": queue, "group": group}
        head = orjson.dumps({"ok": error is None, **about})[:-1]
        tail = b',"result":' + (result or b"null") if error is None else _error(error)
        body = head + tail + b"}"
        rest = _rest(scope, task_id, meta)
        if isinstance(reply_to, str) and reply_to.startswith(PRIVATE):
            caller = names.name("caller", reply_to.removeprefix(PRIVATE))
            told.add_private(scope, caller, ("task_id", task_id, "payload", body))
        elif reply_to is not None:
            words = ("payload", body, "meta", rest)
            told.add(scope, names.name("reply to", reply_to), words)
        if webhook is not None:
            payload = b'{"url":' + orjson.dumps(webhook) + b',"body":' + body + b"}"
            told.add(scope, WEBHOOKS, ("payload", payload, "meta", rest))
    except (UsageError, TypeError, ValueError):
        # Another program's envelope: no notification can be sent, and the task is settled all the same.
        told = Telling()
        told.counter = "unanswered"
    return told


def _error(error: str) -> bytes:
    return b',"error":' + orjson.dumps(error)


def _rest(scope: Scope, task_id: str, meta: Mapping[str, Any]) -> bytes:
    """Return the envelope of a notification."""
    rest = {name: meta[name] for name in _PASSED_ON if isinstance(meta.get(name), str)}
    rest.setdefault("correlation_id", task_id)
    return envelope.encode({**rest, "causation_id": task_id}, scope.max_body + _ROOM)
