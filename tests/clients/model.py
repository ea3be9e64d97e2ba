"""A scripted model on loopback, in the four forms in which coding agents' clients ask one.

Its script is a list of answers: a tool to call, or a text that ends the turn. Every request is kept, split
into texts by the level at which the client gives them to the model.
"""

from __future__ import annotations

import json
import pathlib
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from tests.clients.forms import WRITE, Answer, Call, Request, Say, Together, api

Step = Answer | Callable[[Request], Answer]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that was killed has left its connections."""


class Model:
    """The model: answers each request that offers tools by the next step, all others by a word."""

    def __init__(self, *script: Step, socket: str) -> None:
        self.requests: list[Request] = []
        """Those that the script has answered."""
        self.others: list[Request] = []
        """Those for titles, summaries, and the like."""
        self.errors: list[str] = []
        self._script = list(script)
        self._lock = threading.Condition()
        self.socket = socket
        pathlib.Path(socket).unlink(missing_ok=True)
        self._server = _Server(socket, self._handler())

        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def answered(self, number: int, within: float = 120.0) -> bool:
        """Wait until so many requests have come; tell whether they have."""
        with self._lock:
            return self._lock.wait_for(lambda: len(self.requests) >= number, within)

    def _answer(self, request: Request) -> tuple[Answer, int]:
        with self._lock:
            if not request.tools:
                self.others.append(request)
                return Say("ok"), 0
            self.requests.append(request)
            self._lock.notify_all()
            number = len(self.requests)
            step = self._script.pop(0) if self._script else Say()
            try:
                answer = step if isinstance(step, (Call, Together, Say)) else step(request)
                if isinstance(answer, Call) and answer.tool not in request.tools:
                    answer = Call(request.named(answer.tool), answer.input)
            except Exception as error:  # noqa: BLE001 (the test shows it)
                self.errors.append(f"request {number}: {type(error).__name__}: {error}")
                answer = Say("failed")
            return answer, number

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(b'{"data": [], "models": []}', "application/json")

            def do_POST(self) -> None:
                body = json.loads(
                    self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"
                )
                path = self.path.partition("?")[0]
                if path.endswith(("count_tokens", ":countTokens")):
                    self._send(b'{"input_tokens": 9, "totalTokens": 9}', "application/json")
                    return
                if api(path) is None:
                    self._send(b"{}", "application/json", 404)
                    return
                request = Request(path, body)
                answer, number = model._answer(request)
                streams = bool(body.get("stream")) or path.endswith(":streamGenerateContent")
                events, whole = WRITE[api(path)](answer, number, request)
                if streams:
                    self._send("".join(events).encode(), "text/event-stream")
                else:
                    self._send(json.dumps(whole).encode(), "application/json")

            def _send(self, data: bytes, kind: str, status: int = 200) -> None:
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    # The client was killed.
                    return

            def log_message(self, *_: object) -> None:
                return

        return Handler
