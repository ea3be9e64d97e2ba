"""Actions of the pages about agents, talk, flags, leases, workers and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.coordination.leases import shown
from agentbus.core.errors import UsageError
from agentbus.core.names import word
from agentbus.core.readable import count
from agentbus.dashboard.project_pages import Pages
from agentbus.dashboard.web.forms import field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.client.aio import AsyncBus
    from agentbus.dashboard.web.forms import WebAction
    from agentbus.store.verb import Awaiting

# Seconds to wait for workers to confirm a pause, or to stop.
_CONFIRM = 2.0
_WHY = "from web"


async def _speak(bus: AsyncBus, form: Mapping[str, str]) -> str:
    said = await bus.speak(field(form, "text"), topic=form.get("topic") or None)
    return f"message {said.id} spoken"


async def _tell(bus: AsyncBus, form: Mapping[str, str]) -> str:
    sent = await bus.tell(
        field(form, "agent"),
        field(form, "text"),
        topic=form.get("topic") or None,
        urgent=form.get("urgent") == "1",
    )
    state = f", which is {sent.state}" if sent.state else ""
    return f"message {sent.id} sent to {word(sent.to)}{state}; {sent.unread} unread there"


async def _approve(bus: AsyncBus, form: Mapping[str, str]) -> str:
    return await _decide(bus, form, "yes", "approved")


async def _refuse(bus: AsyncBus, form: Mapping[str, str]) -> str:
    return await _decide(bus, form, "no", "refused")


async def _decide(bus: AsyncBus, form: Mapping[str, str], answer: str, done: str) -> str:
    asked, reason = field(form, "id"), form.get("reason", "").strip()
    sent = await bus.reply(asked, f"{answer}: {reason}" if reason else answer)
    if sent.repeated:
        raise UsageError(f"{word(asked)} was answered before", hint="the first answer stands")
    return f"{word(asked)} {done}"


async def _drop_lease(bus: AsyncBus, form: Mapping[str, str]) -> str:
    pages: Pages[Awaiting] = Pages(bus)
    ended = await pages.end_lease(field(form, "agent"), field(form, "pattern"), _token(form))
    return f"lease of {shown(ended.path)} by {word(ended.agent)} dropped"


async def _drop_leases(bus: AsyncBus, form: Mapping[str, str]) -> str:
    agent = field(form, "agent")
    pages: Pages[Awaiting] = Pages(bus)
    ended = await pages.end_leases(agent)
    return f"{count(len(ended), 'lease')} of {word(agent)} dropped"


async def _delete_agent(bus: AsyncBus, form: Mapping[str, str]) -> str:
    agent = field(form, "agent")
    found = await bus.delete(agent=agent, wait=_CONFIRM)
    return f"workers of {word(agent)}: {_stopped(found.gone, found.unconfirmed)}"


async def _release_flag(bus: AsyncBus, form: Mapping[str, str]) -> str:
    flag = field(form, "flag")
    await bus.release(flag, force=True)
    return f"flag {word(flag)} released"


async def _fail_flag(bus: AsyncBus, form: Mapping[str, str]) -> str:
    flag = field(form, "flag")
    await bus.fail(flag, force=True, note=form.get("note") or None)
    return f"flag {word(flag)} failed"


async def _satisfy_flag(bus: AsyncBus, form: Mapping[str, str]) -> str:
    flag = field(form, "flag")
    await bus.satisfy(flag, force=True, note=form.get("note") or None)
    return f"flag {word(flag)} satisfied"


async def _pause_worker(bus: AsyncBus, form: Mapping[str, str]) -> str:
    worker = field(form, "worker")
    order = await bus.pause(worker=worker, why=_WHY, wait=_CONFIRM)
    late = "; it did not confirm yet" if order.unconfirmed else ""
    return f"worker {word(worker)} paused{late}"


async def _resume_worker(bus: AsyncBus, form: Mapping[str, str]) -> str:
    worker = field(form, "worker")
    had = await bus.resume(worker=worker)
    return f"worker {word(worker)} {'resumed' if had else 'was not paused itself'}"


async def _stop_worker(bus: AsyncBus, form: Mapping[str, str]) -> str:
    worker = field(form, "worker")
    found = await bus.delete(worker=worker, wait=_CONFIRM)
    return f"worker {word(worker)}: {_stopped(found.gone, found.unconfirmed)}"


async def _release_consumer(bus: AsyncBus, form: Mapping[str, str]) -> str:
    pages: Pages[Awaiting] = Pages(bus)
    name = await pages.release_consumer(field(form, "consumer"))
    return f"consumer {word(name)} released from quarantine"


def _stopped(gone: tuple[str, ...], left: tuple[str, ...]) -> str:
    said = f"{len(gone)} gone"
    return said + (f", {count(len(left), 'worker')} finish running tasks first" if left else "")


def _token(form: Mapping[str, str]) -> int:
    text = field(form, "token")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"{text!a:.40} is not the token of a lease", hint="reload the page")
    return int(text)


AGENT_ACTIONS: dict[str, WebAction] = {
    "agent.tell": _tell,
    "approval.give": _approve,
    "approval.refuse": _refuse,
    "agent.drop_leases": _drop_leases,
    "agent.delete": _delete_agent,
    "talk.speak": _speak,
    "lease.drop": _drop_lease,
    "flag.release": _release_flag,
    "flag.fail": _fail_flag,
    "flag.satisfy": _satisfy_flag,
    "worker.pause": _pause_worker,
    "worker.resume": _resume_worker,
    "worker.stop": _stop_worker,
    "consumer.release": _release_consumer,
}
