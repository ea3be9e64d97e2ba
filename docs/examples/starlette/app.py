"""A Starlette application that publishes typed tasks. FastAPI takes the same lifespan.

Run it with `uvicorn app:app`, and its worker with `agentbus work app:tasks`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import agentbus
from agentbus import aio
from agentbus.errors import AgentBusError, InvalidPayload, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

tasks = agentbus.Tasks()


@tasks.task(queue="mail", attempts=5, timeout=30, unique="until_done")
async def welcome(to: str) -> str:
    """Send the mail that welcomes a customer."""
    return f"welcomed {to}"


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, aio.AsyncBus]]:
    """Keep one bus for all requests: it opens its connections when they are needed."""
    async with aio.connect() as bus:
        yield {"bus": bus}


async def sign_up(request: Request) -> Response:
    """Publish a task, and answer with its id before it has run."""
    handle = await welcome.publish(request.state.bus, (await request.json())["to"])
    return JSONResponse({"task": handle.id}, status_code=202)


async def look(request: Request) -> Response:
    """Answer with the result of a task, after waiting for it for a moment."""
    handle = welcome.handle(request.state.bus, request.path_params["task"])
    return JSONResponse({"result": await handle.result(wait=10)})


async def refused(_request: Request, error: Exception) -> Response:
    """Answer with what the bus says of a request that it cannot serve."""
    known = {InvalidPayload: 400, UsageError: 400, NotFound: 404}
    status = next((code for kind, code in known.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status_code=status)


app = Starlette(
    routes=[
        Route("/customers", sign_up, methods=["POST"]),
        Route("/tasks/{task}", look),
    ],
    exception_handlers={AgentBusError: refused},
    lifespan=lifespan,
)
