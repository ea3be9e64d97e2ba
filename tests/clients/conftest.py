"""The real clients, each installed once for a run, and for each test a repository and a bus."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

import agentbus
from tests.clients.forms import Request
from tests.clients.model import Step
from tests.clients.real import CLIENTS
from tests.clients.running import Client, Run
from tests.servers import Server, program

# The first model of each client, and all of them: by its name, a client offers its model other tools.
FIVE = [(make, make.models[0]) for make in CLIENTS]
ALL = [(make, model) for make in CLIENTS for model in make.models]

Make = Callable[[type[Client], str], Client]


def each(clients: list[tuple[type[Client], str]]) -> pytest.MarkDecorator:
    """Run a test with each of these clients."""
    names = [
        f"{make.name}-{model}" if model != "scripted" else make.name for make, model in clients
    ]
    return pytest.mark.parametrize("desk", clients, ids=names, indirect=True)


five, all_models = each(FIVE), each(ALL)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that makes a client with the plugin of AgentBus, once for all tests."""
    known: dict[tuple[type[Client], str], Client] = {}

    def make(kind: type[Client], model: str) -> Client:
        if (kind, model) not in known:
            client = kind(tmp_path_factory.mktemp(kind.name), model)
            client.install(program())
            known[kind, model] = client
        return known[kind, model]

    return make


class Desk:
    """A client in a fresh repository, and another agent, `reviewer`, on the same bus."""

    def __init__(self, client: Client, url: str) -> None:
        self.client = client
        self.project = f"test-{uuid.uuid4().hex[:12]}"
        self.root = client.repository()
        self.file = self.root / "src/db.py"
        self.reviewer = agentbus.connect(url, project=self.project, agent="reviewer")
        self.reviewer.here()
        self.environment = {"AGENTBUS_URL": url, "AGENTBUS_PROJECT": self.project}

    @property
    def agent(self) -> str:
        """The name of the client's session, once that has begun."""
        return self.presence.agent

    @property
    def presence(self) -> agentbus.Presence:
        """What is known of the client's session; there is one."""
        (found,) = [one for one in self.reviewer.present(all=True) if one.agent != "reviewer"]
        return found

    @property
    def here(self) -> bool:
        """Whether the client's session has begun."""
        return len(self.reviewer.present(all=True)) > 1

    def run(self, *script: Step) -> Run:
        """Run the client to its end, with a model that follows the script."""
        return self.client.run(*script, **self.environment)

    def start(self, *script: Step) -> Run:
        """Start the client."""
        return self.client.start(*script, **self.environment)

    def tells(self, text: str, then: Step, **fields: bool) -> Step:
        """Return the step at which `reviewer` tells the agent something, before another one."""

        def step(request: Request) -> object:
            self.reviewer.tell(self.agent, text, **fields)
            return then(request) if callable(then) else then

        return step  # type: ignore[return-value]


@pytest.fixture
def desk(
    request: pytest.FixtureRequest, made: Make, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    """A client at a desk of its own; `each` says which."""
    found = Desk(made(*request.param), valkey.url)
    # Leases belong to the repository of who takes them.
    monkeypatch.chdir(found.root)
    yield found
    found.reviewer.close()
