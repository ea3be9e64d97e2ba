"""Six agents in one process: a planner, a reporter, three cooks and an onlooker, all coroutines.

The three cooks share one oven; one of them burns its dish, gives the oven up and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid

from agentbus import aio
from agentbus.errors import AgentBusError

# Nothing here waits longer, so that a mistake ends the example instead of hanging it.
PATIENCE = 30.0
DISHES = {"ada": "bread", "bob": "cake", "cleo": "pie"}


class BurntError(Exception):
    """Raised when a dish was in the oven for too long."""


def show(agent: str, text: str) -> None:
    """Print a line for people, headed by who acts."""
    print(f"{agent:<9} | {text}", flush=True)


async def plan(project: str) -> None:
    """Write what there is to do into notes, then satisfy the flag that everyone awaits."""
    async with aio.connect(project=project, agent="planner") as bus:
        for cook, dish in DISHES.items():
            await bus.jot(f"dish-for-{cook}", dish, tags=["menu"])
        await bus.satisfy("menu", note=f"{len(DISHES)} dishes")
        show("planner", f"has planned {len(DISHES)} dishes")


async def cook(project: str, name: str, tokens: list[int]) -> None:
    """Await the menu, take the oven in turn, and say what was baked."""
    async with aio.connect(project=project, agent=name) as bus:
        await bus.await_("menu", timeout=PATIENCE)
        dish = (await bus.recall(f"dish-for-{name}")).value
        for attempt in (1, 2):
            try:
                # The hold is renewed while the block runs. The flag is satisfied where the block ends
                # well, and fails where it raises; either way the next cook comes in.
                async with bus.hold("oven", ttl=5, wait=PATIENCE) as hold:
                    tokens.append(hold.token)
                    show(name, f"bakes the {dish} (token {hold.token})")
                    await asyncio.sleep(0.1)
                    if dish == "cake" and attempt == 1:
                        raise BurntError(dish)
                break
            except BurntError:
                show(name, f"has burnt the {dish}, leaves the oven, and tries again")
                await bus.speak(f"burnt: {dish}", topic="kitchen")
        await bus.speak(f"baked: {dish}", topic="kitchen")


async def report(project: str) -> None:
    """Follow one topic until every dish is baked, then satisfy the flag `dinner`."""
    missing = set(DISHES.values())
    async with aio.connect(project=project, agent="reporter") as bus:
        async for message in bus.overhear("kitchen", follow=True, timeout=PATIENCE):
            what, _, dish = message.text.partition(": ")
            show("reporter", f"hears from {message.agent_id}: {message.text}")
            if what == "baked":
                missing.discard(dish)
            if not missing:
                break
        if missing:
            raise TimeoutError(f"never baked: {', '.join(sorted(missing))}")
        await bus.satisfy("dinner", note="all baked")


async def look_on(project: str) -> int:
    """Follow everything that is said until dinner is ready; return how much that was."""
    heard = 0
    async with aio.connect(project=project, agent="onlooker") as bus:
        async for message in bus.overhear(follow=True, timeout=PATIENCE):
            heard += 1
            # What the bus itself says carries fields for programs beside the text for people.
            if message.event == "satisfied" and (message.details or {}).get("flag") == "dinner":
                break
    return heard


async def main() -> None:
    """Run all agents at once and tell how it ended."""
    project = f"example-asyncio-{uuid.uuid4().hex[:12]}"
    tokens: list[int] = []
    async with aio.connect(project=project, agent="host") as bus:
        try:
            async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(report(project))
                onlooker = group.create_task(look_on(project))
                for name in DISHES:
                    group.create_task(cook(project, name, tokens))
                group.create_task(plan(project))
                [dinner] = await bus.await_("dinner", timeout=PATIENCE)
                show("host", f"dinner is ready, says {dinner.by}: {dinner.note}")
            show("onlooker", f"has heard {onlooker.result()} messages")
            if tokens != sorted(set(tokens)):
                raise AssertionError(f"the tokens did not grow: {tokens}")
            show("host", f"{len(tokens)} turns at the oven, one at a time, tokens {tokens}")
        finally:
            # Where there is no bus, nothing is to be removed, and the first error matters more.
            with contextlib.suppress(AgentBusError):
                await bus.clear()


def run() -> int:
    """Run the example and return the exit code that the command line would end with."""
    try:
        asyncio.run(main())
    except* AgentBusError as failed:
        # Where the server is away, several agents may fail at once, all with the same error.
        error = failed.exceptions[0]
        print(f"asyncio_agents: {error}", file=sys.stderr)
        code = getattr(error, "exit_code", 1)
    else:
        return 0
    return code


if __name__ == "__main__":
    sys.exit(run())
