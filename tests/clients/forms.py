"""The four forms in which clients ask a model: what a request holds, and how an answer is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Above the level of a tool, and what the model itself or a tool has said.
ABOVE = ("system", "developer", "user")
MODEL, TOOL = "assistant", "tool"


class Call(NamedTuple):
    """A tool that the model calls."""

    tool: str
    input: dict[str, Any]


class Together(NamedTuple):
    """Tools that the model calls at once, in the forms of Chat and Gemini."""

    calls: tuple[Call, ...]


class Say(NamedTuple):
    """A text with which the model ends its turn."""

    text: str = "Done."


class Part(NamedTuple):
    """A text of a request, and at which level the model has it."""

    level: str
    text: str


class Request:
    """What a client asked of the model."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self.path = path
        self.body = body
        self.parts = list(_READ[api(path)](body))
        # By their full names, each with the object that describes it.
        self.tools = dict(_tools(body))

    def at(self, *levels: str) -> str:
        """Return all texts of these levels."""
        return "\n".join(part.text for part in self.parts if part.level in levels)

    @property
    def above(self) -> str:
        """All that stands above the level of a tool."""
        return self.at(*ABOVE)

    @property
    def everywhere(self) -> str:
        """All texts."""
        return "\n".join(part.text for part in self.parts)

    @property
    def from_tools(self) -> str:
        """All that tools returned."""
        return self.at(TOOL)

    @property
    def last(self) -> str:
        """What came after the model's last answer."""
        end = max((n for n, part in enumerate(self.parts) if part.level == MODEL), default=-1)
        return "\n".join(part.text for part in self.parts[end + 1 :])

    def named(self, tool: str) -> str:
        """Return the full name of a tool that ends in this one; `KeyError` if there is none."""
        for name in self.tools:
            if name == tool or name.endswith((f"__{tool}", f"_{tool}", f"-{tool}", f".{tool}")):
                return name
        raise KeyError(f"no tool {tool!r} among {sorted(self.tools)}")


Answer = Call | Together | Say


def api(path: str) -> str | None:
    for end, api in (
        ("/messages", "messages"),
        ("/responses", "responses"),
        ("/chat/completions", "chat"),
        ("enerateContent", "gemini"),
    ):
        if path.endswith(end):
            return api
    return None


# -- what a client sends --


def _texts(content: Any) -> str:
    """Return the text of what is a text, a block, or a list of those."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_texts(block) for block in content)
    if isinstance(content, dict):
        known = [content[field] for field in ("text", "output_text") if field in content]
        return _texts(known) if known else json.dumps(content, ensure_ascii=False)
    return json.dumps(content, ensure_ascii=False)


def _messages(body: dict[str, Any]) -> Iterator[Part]:
    if body.get("system"):
        yield Part("system", _texts(body["system"]))
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else [content]:
            kind = block.get("type") if isinstance(block, dict) else "text"
            if kind == "tool_result":
                yield Part(TOOL, _texts(block.get("content", "")))
            else:
                yield Part(message["role"], _texts(block))


def _responses(body: dict[str, Any]) -> Iterator[Part]:
    if body.get("instructions"):
        yield Part("system", body["instructions"])
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message":
            yield Part(item["role"], _texts(item["content"]))
        elif kind.endswith("_output"):
            yield Part(TOOL, _texts(item.get("output", item)))
        elif kind != "additional_tools":
            yield Part(MODEL, _texts(item))


def _chat(body: dict[str, Any]) -> Iterator[Part]:
    for message in body["messages"]:
        if message.get("content"):
            yield Part(message["role"], _texts(message["content"]))
        if message.get("tool_calls"):
            yield Part(MODEL, json.dumps(message["tool_calls"]))


def _gemini(body: dict[str, Any]) -> Iterator[Part]:
    if body.get("systemInstruction"):
        yield Part("system", _texts(body["systemInstruction"]["parts"]))
    for content in body["contents"]:
        role = {"model": MODEL}.get(content.get("role"), "user")
        for part in content["parts"]:
            if "functionResponse" in part:
                yield Part(TOOL, _leaves(part["functionResponse"]["response"]))
            else:
                yield Part(role, _texts(part))


def _leaves(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(_leaves(one) for one in value.values())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tools(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    given = body.get("input")
    later = [
        tool
        for item in (given if isinstance(given, list) else ())
        # Codex has them here with some models, and those that a search found.
        if item.get("type") in ("additional_tools", "tool_search_output")
        for tool in item["tools"]
    ]
    for tool in [*(body.get("tools") or ()), *later]:
        for declared in tool.get("functionDeclarations", ()):
            yield declared["name"], declared
        for kind in ("function", "custom"):
            if kind in tool:
                yield tool[kind]["name"], tool[kind] | {"type": kind}
        if "function" in tool or "custom" in tool:
            continue
        if tool.get("type") == "namespace":
            for inner in tool.get("tools", ()):
                yield f"{tool['name']}.{inner['name']}", inner | {"namespace": tool["name"]}
        elif "name" in tool:
            yield tool["name"], tool
        elif tool.get("type") == "tool_search":
            yield "tool_search", tool


_READ: dict[Any, Callable[[dict[str, Any]], Iterator[Part]]] = {
    "messages": _messages,
    "responses": _responses,
    "chat": _chat,
    "gemini": _gemini,
}


# -- what the model answers: the events of a stream, and the whole of it --

Written = tuple[list[str], dict[str, Any]]


def _sse(*events: dict[str, Any], named: bool = True) -> list[str]:
    return [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]


def _calls(answer: Call | Together) -> tuple[Call, ...]:
    return answer.calls if isinstance(answer, Together) else (answer,)


def _as_messages(answer: Answer, number: int, request: Request) -> Written:
    assert not isinstance(answer, Together), "one call at a time in this form"
    usage = {"input_tokens": 9, "output_tokens": 9}
    if isinstance(answer, Call):
        block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": answer.tool}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.input)}
        started, whole, why = block | {"input": {}}, block | {"input": answer.input}, "tool_use"
    else:
        delta, why = {"type": "text_delta", "text": answer.text}, "end_turn"
        started, whole = {"type": "text", "text": ""}, {"type": "text", "text": answer.text}
    message = {
        "id": f"msg_{number:04}",
        "type": "message",
        "role": MODEL,
        "usage": usage,
        "model": request.body["model"],
        "stop_sequence": None,
    }
    events = _sse(
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": started},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": why, "stop_sequence": None},
            "usage": usage,
        },
        {"type": "message_stop"},
    )
    return events, message | {"content": [whole], "stop_reason": why}


def _as_responses(answer: Answer, number: int, request: Request) -> Written:
    assert not isinstance(answer, Together), "one call at a time in this form"
    item: dict[str, Any]
    if isinstance(answer, Call):
        described = request.tools.get(answer.tool, {})
        item = {"id": f"fc_{number:04}", "call_id": f"call_{number:04}", "status": "completed"}
        item["name"] = described.get("name", answer.tool)
        if answer.tool == "tool_search":
            item |= {"type": "tool_search_call", "execution": "client", "arguments": answer.input}
            del item["name"]
        elif described.get("type") == "custom":
            item |= {"type": "custom_tool_call", "input": answer.input["input"]}
        else:
            item |= {"type": "function_call", "arguments": json.dumps(answer.input)}
        if "namespace" in described:
            item["namespace"] = described["namespace"]
    else:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        item = {"id": f"msg_{number:04}", "type": "message", "role": MODEL, "content": content}
        item["status"] = "completed"
    usage = {
        "input_tokens": 9,
        "output_tokens": 9,
        "total_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {
        "id": f"resp_{number:04}",
        "object": "response",
        "created_at": 1,
        "usage": usage,
        "model": request.body["model"],
        "error": None,
        "incomplete_details": None,
    }
    started = response | {"status": "in_progress", "output": []}
    whole = response | {"status": "completed", "output": [item]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    for at, event in enumerate(events):
        event["sequence_number"] = at
    return _sse(*events), whole


def _as_chat(answer: Answer, number: int, request: Request) -> Written:
    message: dict[str, Any] = {"role": MODEL, "content": None}
    if isinstance(answer, Say):
        message["content"] = answer.text
    else:
        message["tool_calls"] = []
        for at, (tool, given) in enumerate(_calls(answer)):
            call: dict[str, Any] = {"index": at, "id": f"call_{number:04}_{at}"}
            if request.tools.get(tool, {}).get("type") == "custom":
                call |= {"type": "custom", "custom": {"name": tool, **given}}
            else:
                words = {"name": tool, "arguments": json.dumps(given)}
                call |= {"type": "function", "function": words}
            message["tool_calls"].append(call)
    why = "stop" if isinstance(answer, Say) else "tool_calls"
    head = {"id": f"chat_{number:04}", "created": 1, "model": request.body["model"]}
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    chunk = head | {"object": "chat.completion.chunk"}
    events = _sse(
        chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": why}], "usage": usage},
        named=False,
    )
    choice = {"index": 0, "message": message, "finish_reason": why}
    whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
    return [*events, "data: [DONE]\n\n"], whole


def _as_gemini(answer: Answer, number: int, request: Request) -> Written:
    parts: list[dict[str, Any]]
    if isinstance(answer, Say):
        parts = [{"text": answer.text}]
    else:
        parts = [
            {"functionCall": {"name": tool, "args": given, "id": f"call_{number:04}_{at}"}}
            for at, (tool, given) in enumerate(_calls(answer))
        ]
    content = {"role": "model", "parts": parts}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
    whole = {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": usage,
        "modelVersion": "scripted",
        "responseId": f"r{number:04}",
    }
    return _sse(whole, named=False), whole


WRITE: dict[Any, Callable[[Answer, int, Request], Written]] = {
    "messages": _as_messages,
    "responses": _as_responses,
    "chat": _as_chat,
    "gemini": _as_gemini,
}
