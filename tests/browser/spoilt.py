"""A project in which every field that anybody may write holds a hostile text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import agentbus
from agentbus.coordination import presence
from agentbus.core.errors import AgentBusError
from agentbus.core.keys import Keys
from agentbus.workers.registry import WorkerRegistration
from tests.browser.hostile import TEXTS
from tests.servers import ask

# A text is folded from 4 kB on.
_LONG = 5_000


def spoil(bus: agentbus.Bus, texts: tuple[str, ...] = TEXTS) -> None:
    """Write each text into every field of everything that the pages show."""
    for number, text in enumerate(texts):
        _talk(bus, text)
        _hold(bus, text)
        _work(bus, text, number)


def _talk(bus: agentbus.Bus, text: str) -> None:
    ours = agentbus.connect(bus.settings.url, project=bus.project, agent=text)
    with ours:
        fields = ("client", "session", "host", "branch", "cwd")
        place = dict.fromkeys(fields, text) | {"pid": ""}
        with contextlib.suppress(AgentBusError):
            # A control character in it is refused.
            ours.runner.run(presence.here(ours.scope, doing=text, place=place))
        ours.speak(text, topic=text)
        list(ours.inbox())
        sent = bus.tell(text, f"{text}?", topic=text)
        list(ours.inbox())
        ours.reply(sent.id, text)
        bus.tell(text, text, thread=sent.id)
    bus.jot(text, text * (_LONG // len(text)), tags=[one for one in text.split(",") if one.strip()])


def _hold(bus: agentbus.Bus, text: str) -> None:
    bus.announce(text)
    bus.fail(text, note=text)
    bus.announce(f"{text} again")
    with contextlib.suppress(AgentBusError):
        # Not every text is a path.
        bus.lease(text, why=text, ttl=3600)
    bus.lease(f"src/{TEXTS.index(text)}/**", why=text, ttl=3600)


def _work(bus: agentbus.Bus, text: str, number: int) -> None:
    queue = bus.queue(text)
    about = {
        **dict.fromkeys(("correlation_id", "causation_id", "source", "tenant", "topic"), text),
        "headers": {text: text},
        "key": text,
        "ordering_key": text,
    }
    queue.publish({text: text * (_LONG // len(text))}, **about)
    queue.publish([text], correlation_id=text)
    queue.publish(text, delay=3600)
    queue.publish({}, after=queue.publish(text))
    one, *_ = queue.fetch(count=1)
    one.bury(f"{text}\nin line {number}")
    (two,) = queue.fetch(count=1, group=text)
    two.ack({text: text})
    bus.pause(queue=text, why=text, wait=0)
    registration = WorkerRegistration(bus.scope, text, text, text, text, 1)
    bus.runner.run(registration.beat_op("working", 1, 1, 1))
    fields = ("kind", "events", "version", "1", "role", text, "stream", text)
    ask(
        bus, "XADD", Keys(bus.project).metrics, "*", *fields, "lag_ms", "5", "lag_events_count", "1"
    )
    ask(bus, "HSET", Keys(bus.project).quarantined, text, '{"reason":"crash_loop"}')


def details(bus: agentbus.Bus) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the page and the query of what each text names."""
    for text in TEXTS:
        queue = bus.queue(text)
        (letter,) = queue.dead_letters()
        yield "queue", {"name": text}
        yield "queue", {"name": text, "state": "dead"}
        yield "agent", {"name": text}
        yield "letters", {"queue": text, "group": "default"}
        yield "letters-error", {"error": text, "queue": text}
        yield "letter", {"queue": text, "group": "default", "id": letter.id}
        yield "task", {"id": letter.task_id or ""}
        yield "talk", {"topic": text, "agent": text}
        yield "flags", {"q": text, "lease": text}
        yield "notes", {"q": text}
        yield "search", {"text": text}
    for one in bus.overhear(since="0-0", topic=TEXTS[0]):
        yield "spoken", {"id": one.id}
    for one in _waiting_for(bus, TEXTS[1]):
        yield "thread", {"id": one}


def _waiting_for(bus: agentbus.Bus, agent: str) -> list[str]:
    """Return the ids of the messages that wait for an agent."""
    with agentbus.connect(bus.settings.url, project=bus.project, agent=agent) as ours:
        return [one.id for one in ours.inbox(peek=True)]
