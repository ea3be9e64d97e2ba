"""The scopes of tools: what a client that may only read, or only talk, can call."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.agents.tools import TOOLS

_TOOLS = {tool.name: tool for tool in TOOLS}
_Calls = tuple[tuple[str, dict[str, Any]], ...]
_READ: _Calls = (
    ("catch_up", {"peek": True}),
    ("receipts", {"id": "1-1"}),
    ("lease", {}),
    ("note", {"key": "a"}),
    ("work", {"do": "list"}),
)
_TALK: _Calls = (
    ("catch_up", {}),
    ("tell", {"text": "a"}),
    ("ask", {"to": "a", "text": "b"}),
    ("reply", {"id": "1-1", "text": "a"}),
    ("who", {}),
    ("note", {"key": "a", "text": "b"}),
)
_WORK: _Calls = (
    ("lease", {"paths": ["src/**"]}),
    ("lease", {"give_up": True}),
    ("flag", {"name": "a", "do": "take"}),
    ("work", {"do": "take"}),
)
_CALLS = (("read", _READ), ("talk", _TALK), ("work", _WORK))


@pytest.mark.parametrize(("scope", "allowed"), [("read", 1), ("talk", 2), ("work", 3)])
def test_a_call_beyond_the_scope_is_refused_by_the_scope_that_it_needs(
    scope: str, allowed: int
) -> None:
    for place, (needed, calls) in enumerate(_CALLS):
        for name, given in calls:
            refusal = _TOOLS[name].refusal(given, scope)
            if place < allowed:
                assert refusal is None, (name, given)
            else:
                assert refusal is not None
                assert f"the scope {needed};" in refusal


def test_a_refused_reader_learns_how_the_tool_only_reads() -> None:
    assert "which allows peek: true" in str(_TOOLS["catch_up"].refusal({}, "read"))
    for tool in TOOLS:
        assert (tool.only_reads is not None) == bool(tool.reads_with), tool.name


def test_only_tools_that_the_scope_allows_are_listed() -> None:
    hidden = {"tell", "ask", "reply", "who", "flag"}
    assert {tool.name for tool in TOOLS if not tool.is_listed("read")} == hidden
    assert {tool.name for tool in TOOLS if not tool.is_listed("talk")} == {"flag"}
    assert all(tool.is_listed("work") for tool in TOOLS)
