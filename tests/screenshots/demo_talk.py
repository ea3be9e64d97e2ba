"""What the agents of the demo project say, note, hold, lease and wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.coordination import presence
from agentbus.core.errors import LeaseHeld
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo

OTTER, HERON = "claude-otter-k3f", "claude-heron-p9d"
BADGER, LYNX = "codex-badger-w2m", "codex-lynx-t7q"
CRANE, FINCH = "gemini-crane-h4z", "opencode-finch-b8x"
MARTEN, STOAT = "copilot-marten-n5c", "cursor-stoat-r6v"
CI, DEPLOYER, KEEPER, MARIA = "ci-build-4c1e9a", "deployer", "release-keeper", "human:maria"

# Agent: client, host, branch, what it does, its state.
_AGENTS = {
    OTTER: ("claude", "ash", "fix/nested-quotes", "parser: nested quotes (#412)", "active"),
    HERON: ("claude", "ash", "feature/returns", "migration 42: table of returns", "active"),
    BADGER: ("codex", "birch", "main", "review of #409", "active"),
    LYNX: ("codex", "birch", "feature/checkout", "checkout: waits for the build", "waiting"),
    CRANE: ("gemini", "cedar", "main", "", "idle"),
    FINCH: ("opencode", "cedar", "docs/api", "the guide to returns", "active"),
    MARTEN: ("copilot", "ash", "feature/search", "search: ranking by stock", "idle"),
    STOAT: ("cursor", "oak", "feature/cart", "cart: rounding of discounts", "idle"),
    CI: ("", "builder-1", "main", "pipeline 5120", "active"),
    DEPLOYER: ("", "builder-1", "", "staging, 3 of 4 steps", "active"),
    KEEPER: ("", "builder-2", "", "release 2.14", "waiting"),
    MARIA: ("", "oak", "", "", "idle"),
}


def present(project: Demo, *agents: str, state: str | None = None) -> None:
    """Record that agents are there, by default as they are at the end."""
    for agent in agents:
        client, host, branch, doing, at_end = _AGENTS[agent]
        place = {"client": client, "host": host, "branch": branch, "session": "", "pid": ""}
        place["cwd"] = f"/srv/{host}/shop"
        bus = project.bus(agent)
        bus.runner.run(presence.here(bus.scope, doing=doing, state=state or at_end, place=place))


def _said(agent: str, text: str, topic: str | None = None) -> Callable[[Demo], object]:
    return lambda project: project.bus(agent).speak(text, topic=topic)


def _note(agent: str, key: str, value: str, *tags: str) -> Callable[[Demo], object]:
    return lambda project: project.bus(agent).jot(key, value, tags=tags)


def _conversation(
    before: tuple[str, str, str, str | None], *answer: str
) -> Callable[[Demo], object]:
    """Have one agent write to another, which reads it and, with a text, answers."""
    one, other, text, topic = before

    def happens(project: Demo) -> None:
        sent = project.bus(one).tell(other, text, topic=topic)
        mine = list(project.bus(other).inbox())
        if answer and mine:
            project.bus(other).reply(sent.id, answer[0])

    return happens


def _told(one: str, other: str, text: str, *, urgent: bool = False) -> Callable[[Demo], object]:
    return lambda project: project.bus(one).tell(other, text, urgent=urgent)


def _thread(project: Demo) -> None:
    """Two agents discuss a migration, in five messages of one thread."""
    heron, badger = project.bus(HERON), project.bus(BADGER)
    asked = heron.tell(BADGER, "Can migration 42 drop orders.return_code?", topic="db")
    project.thread = asked.id
    list(badger.inbox())
    answer = badger.reply(asked.id, "Not yet: the nightly export still reads it. Is a view enough?")
    list(heron.inbox())
    more = heron.reply(answer.id, "A view works. I keep the column until 2.15.")
    list(badger.inbox())
    badger.reply(more.id, "Then #409 is fine with me. Approved.")
    list(heron.inbox())


def _flags(project: Demo) -> None:
    ci, heron = project.bus(CI), project.bus(HERON)
    ci.announce("build:main", ttl=1500)
    heron.announce("schema:returns")
    project.bus(FINCH).announce("docs:site", ttl=2400)


def _outcomes(project: Demo) -> None:
    ci = project.bus(CI)
    ci.announce("tests:pr-409", ttl=600)
    ci.satisfy("tests:pr-409", note="412 passed in 3 min 20 s")
    ci.announce("e2e:nightly", ttl=600)
    ci.fail("e2e:nightly", note="checkout.spec: timeout after 30 s at step 'pay'")
    project.bus(DEPLOYER).satisfy("deploy:preview-409", note="https://preview-409.shop.example")


def _leases(project: Demo) -> None:
    project.bus(OTTER).lease("src/parser/**", why="nested quotes (#412)", ttl=2400)
    project.bus(HERON).lease(
        "db/migrations/**", "src/orders/returns.py", why="table of returns", ttl=2400
    )
    project.bus(FINCH).lease("docs/returns.md", why="the guide to returns", ttl=1800)
    project.bus(LYNX).lease(
        "src/checkout/**", "templates/checkout.html", why="one-page checkout", ttl=3000
    )
    # It is held: that a lease was refused is what the project shows.
    with contextlib.suppress(LeaseHeld):
        project.bus(MARTEN).lease("src/orders/*.py", why="stock in search results")


_RETURNS = """\
POST /orders/{id}/returns
  reason   one of: damaged, wrong-size, late, other
  pieces   how many, at most what was bought
201 with the return's id; 409 if the order was shipped more than 30 days ago."""

DAY: tuple[tuple[float, Callable[[Demo], object]], ...] = (
    (1210, lambda project: present(project, *_AGENTS, state="idle")),
    (1200, _note(MARIA, "returns: scope", "Within 30 days, no exchanges in 2.14.", "decision", "returns")),
    (1180, _note(HERON, "returns: api", _RETURNS, "api", "returns")),
    (600, _note(BADGER, "review: order", "Oldest first; migrations: two readers.", "decision", "review")),
    (300, _note(CI, "runner image", "ubuntu-24.04, node 20, postgres 15", "ci")),
    (200, lambda project: present(project, STOAT)),
    (190, _said(STOAT, "cart rounding is half done, see feature/cart; off until tomorrow", "cart")),
    (64, lambda project: present(project, OTTER, HERON, FINCH, MARTEN, MARIA)),
    (59, lambda project: present(project, LYNX, KEEPER, DEPLOYER, state="active")),
    (53, lambda project: present(project, BADGER, CRANE, CI)),
    (63, _said(MARIA, "2.14 goes out today if staging is green by noon", "release")),
    (58, _said(CI, "pipeline 5118: 1,204 tests passed", "build")),
    (52, _thread),
    (47, _said(OTTER, "nested quotes: reproduced, the lexer drops the second one", "parser")),
    (44, _outcomes),
    (41, _said(CI, "e2e:nightly failed at checkout.spec; the rest is green", "build")),
    (38, _conversation((LYNX, OTTER, "Do you touch the CSV import?", "parser"), "No, only src/parser.")),
    (35, _note(LYNX, "checkout: flaky step", "'pay' waits for the mock bank: it is late.", "e2e", "ci")),
    (31, _said(LYNX, "the mock bank starts 4 s late; raising the wait to 10 s", "checkout")),
    (27, _note(KEEPER, "release 2.14", "#398 #401 #405 #409; #412 if it is in by 11:00", "release")),
    (24, _conversation((KEEPER, CRANE, "Please read the changelog of 2.14.", "release"), "Done.")),
    (22, _leases),
    (20, _flags),
    (17, _said(DEPLOYER, "staging: database migrated, 3 of 4 steps", "deploy")),
    (14, _conversation((HERON, FINCH, "The 409 of returns is new: note 'returns: api'", None))),
    (12, lambda project: present(project, LYNX, KEEPER)),
    (12, _told(KEEPER, OTTER, "Will #412 be in by 11:00?")),
    (11, _told(BADGER, MARTEN, "#407 needs a test for sold-out articles.")),
    (9, _told(CI, MARTEN, "feature/search: 2 of 1,207 tests fail", urgent=True)),
    (8, _told(MARIA, MARTEN, "Which index does the ranking need?")),
    (7, _said(BADGER, "#409 is approved; #407 waits for a test", "review")),
    (6, _told(FINCH, MARIA, "May the guide show prices with tax?")),
    (5, _told(HERON, LYNX, "src/orders/returns.py is mine until 10:20, then yours.")),
    (4, _said(CI, "pipeline 5120: compiled, 840 of 1,207 tests done", "build")),
    (3, lambda project: present(project, HERON, BADGER, LYNX, FINCH, KEEPER)),
    (2, _said(OTTER, "the lexer keeps both quotes now, tests follow", "parser")),
    (1, lambda project: present(project, OTTER, CI, DEPLOYER)),
)  # fmt: skip

# Agent: the flags that it waits for, and since how many minutes.
_WAITING = {
    LYNX: (12, "build:main"),
    KEEPER: (7, "build:main", "deploy:staging"),
    MARTEN: (3, "schema:returns"),
}


def wait(project: Demo) -> None:
    """Record that agents wait for flags: the server would date a real wait now."""
    for agent, (minutes, *flags) in _WAITING.items():
        bus = project.own_bus(agent)
        since = round((project.clock.now() - minutes * 60) * 1000)
        for flag in flags:
            record = f"{flag}\nsatisfied\n{agent}\n{since}\ndemo"
            step = Command("ZADD", bus.scope.keys.waiting, since + 86_400_000, record)
            bus.runner.run(one_step(step))
