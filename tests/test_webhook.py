"""Webhooks: signed, retried apart from their tasks, https only, and never into private networks."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import ipaddress
import json
import os
import pathlib
import queue as queues
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
import trustme
from hypothesis import given, strategies as st

import agentbus
from agentbus.core import settings
from agentbus.core.keys import Keys
from agentbus.errors import ConfigError, UsageError
from agentbus.queues import notify, webhook_url
from agentbus.queues.notify import WEBHOOKS
from agentbus.retry import Backoff
from agentbus.workers import webhooks
from tests import profiles  # noqa: F401 (loads the profile)
from tests.conftest import Connect
from tests.repositories import make_repository
from tests.servers import Shell, ask

SECRET = "a secret of thirty-two characters"
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Receiver:
    """An https server on this machine that keeps what it is sent, and answers as it is told."""

    def __init__(self, authority: trustme.CA) -> None:
        self.got: queues.Queue[tuple[dict[str, str], bytes, str]] = queues.Queue()
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.text = b""
        self.answering = threading.Event()
        self.answering.set()
        kept = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept.got.put((dict(self.headers), body, self.path))
                kept.answering.wait()
                status, headers = kept.answers.pop(0) if kept.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(kept.text)

            def log_message(self, *_args: Any) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, *_args: Any) -> None:
                # A client that does not trust us breaks off.
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://localhost:{self._server.server_port}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, and those it starts, trust the receiver's authority."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


@pytest.fixture
def receiver(authority: trustme.CA, trusted: None) -> Iterator[Receiver]:
    with Receiver(authority) as started:
        yield started


@pytest.fixture
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks are on in the environment, and this machine is allowed by name."""
    monkeypatch.setenv("AGENTBUS_WEBHOOKS", "1")
    monkeypatch.setenv("AGENTBUS_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("AGENTBUS_WEBHOOK_ALLOW", "localhost, 127.0.0.1")


@pytest.fixture
def on(switched_on: None, connect: Connect) -> agentbus.Bus:
    """A bus with webhooks on."""
    return connect()


def finished(bus: agentbus.Bus, url: str, handler: Any = lambda d: d.payload) -> str:
    """Have a task with a webhook done, and return its id."""
    task: str = bus.queue("sums").publish(3, webhook=url, correlation_id="order-7")
    bus.subscribe("sums", handler, drain=True).run()
    return task


def sent(bus: agentbus.Bus, **options: Any) -> int:
    """Send what waits, and return how many were taken by their receivers."""
    kept = {"attempts": 2, "backoff": Backoff(first=0.01), "drain": True, **options}
    return webhooks.sender(bus, **kept).run()


def failing(_: agentbus.Delivery) -> None:
    raise agentbus.Bury("no")


# -- delivery --


def test_a_result_is_posted_signed(on: agentbus.Bus, receiver: Receiver) -> None:
    task = finished(on, receiver.url)

    assert sent(on) == 1

    headers, body, path = receiver.got.get(timeout=30)
    assert path == "/hook?a=b"
    assert json.loads(body) == {
        "ok": True,
        "task_id": task,
        "queue": "sums",
        "group": "default",
        "result": 3,
    }
    assert headers["Content-Type"] == "application/json"
    assert headers["AgentBus-Delivery"].endswith("@~webhooks")
    assert webhooks.verify(SECRET, headers, body)
    assert not webhooks.verify("another secret of many words", headers, body)


def test_the_error_of_a_buried_task_is_posted(on: agentbus.Bus, receiver: Receiver) -> None:
    finished(on, receiver.url, failing)

    assert sent(on) == 1

    _, body, _ = receiver.got.get(timeout=30)
    assert (json.loads(body)["ok"], json.loads(body)["error"]) == (False, "Bury: no")


def test_a_webhook_waits_in_its_queue_with_the_tasks_envelope(on: agentbus.Bus) -> None:
    task = finished(on, "https://example.org/hook")

    (waiting,) = on.queue(WEBHOOKS).fetch()
    assert waiting.payload["url"] == "https://example.org/hook"
    assert (waiting.correlation_id, waiting.causation_id) == ("order-7", task)


def test_a_task_may_have_a_reply_and_a_webhook(on: agentbus.Bus, receiver: Receiver) -> None:
    on.queue("sums").publish(3, webhook=receiver.url, reply_to="answers")
    on.subscribe("sums", lambda _: None, drain=True).run()

    assert sent(on) == 1
    _, body, _ = receiver.got.get(timeout=30)
    assert [payload for _, payload in on.queue("answers").peek()] == [json.loads(body)]


def test_webhooks_are_off_by_default_and_counted(bus: agentbus.Bus, project: str) -> None:
    finished(bus, "https://example.org/hook")
    finished(bus, "https://example.org/hook", failing)

    assert bus.queue(WEBHOOKS).peek() == []
    assert ask(bus, "HGET", Keys(project).stats("sums"), "webhooks_off") == b"2"
    with pytest.raises(ConfigError, match="off"):
        webhooks.sender(bus)


def test_a_sender_without_a_secret_is_refused(
    switched_on: None, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.delenv("AGENTBUS_WEBHOOK_SECRET")

    with pytest.raises(ConfigError, match="secret"):
        webhooks.sender(connect())


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_pass_is_tried_again(on: agentbus.Bus, receiver: Receiver, status: int) -> None:
    receiver.answers = [(status, {"Retry-After": "0"})]
    finished(on, receiver.url)

    assert sent(on) == 1

    first, again = (receiver.got.get(timeout=30) for _ in range(2))
    assert first[1] == again[1]
    assert first[0]["AgentBus-Delivery"] == again[0]["AgentBus-Delivery"]


def test_a_receiver_that_asks_for_no_pause_gets_the_backoff(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    receiver.answers = [(503, {"Retry-After": "0"})]
    finished(on, receiver.url)

    with webhooks.sender(on, backoff=Backoff(first=600.0, longest=900.0)) as worker:
        worker.run_once()

    retries = on.scope.keys.retries(WEBHOOKS, "default", "normal")
    _, due = ask(on, "ZRANGE", retries, 0, -1, "WITHSCORES")
    assert float(due) / 1000 > time.time() + 250


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 410])
def test_what_cannot_pass_is_buried_at_once(
    on: agentbus.Bus, receiver: Receiver, status: int
) -> None:
    receiver.answers = [(status, {"Location": receiver.url})]
    finished(on, receiver.url)

    assert sent(on) == 0

    (letter,) = on.queue(WEBHOOKS).dead_letters()
    assert (letter.attempts, str(status) in letter.error) == (1, True)
    assert receiver.got.qsize() == 1


def test_no_proxy_of_the_environment_is_used(
    on: agentbus.Bus, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    finished(on, receiver.url)

    assert sent(on) == 1


def test_a_task_of_any_id_is_posted_with_the_queue_of_its_worker(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    meta = json.dumps({"webhook": receiver.url, "id": "7-7@payments"})
    ask(on, "XADD", Keys(on.project).queue("sums"), "*", "payload", "3", "meta", meta)
    on.subscribe("sums", lambda d: d.payload, drain=True).run()

    assert sent(on) == 1
    _, body, _ = receiver.got.get(timeout=30)
    assert json.loads(body)["queue"] == "sums"


def test_a_receiver_that_never_takes_it_leaves_a_dead_letter(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    receiver.answers = [(503, {})] * 2
    task = finished(on, receiver.url)

    assert sent(on) == 0

    (letter,) = on.queue(WEBHOOKS).dead_letters()
    assert letter.attempts == 2
    assert on.queue("sums").result(task) == 3
    assert SECRET not in str(letter)


def test_a_webhook_that_was_buried_can_be_replayed(on: agentbus.Bus, receiver: Receiver) -> None:
    receiver.answers = [(404, {})]
    finished(on, receiver.url)
    sent(on)

    on.queue(WEBHOOKS).replay(on.queue(WEBHOOKS).dead_letters()[0].id)

    assert sent(on) == 1


def test_a_receiver_that_is_not_there_is_tried_again(on: agentbus.Bus) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        finished(on, f"https://localhost:{nobody.getsockname()[1]}/")

        assert sent(on) == 0

    (letter,) = on.queue(WEBHOOKS).dead_letters()
    assert (letter.attempts, "Retry" in letter.error) == (2, True)


def test_a_receiver_that_nobody_vouches_for_gets_nothing(
    on: agentbus.Bus, authority: trustme.CA
) -> None:
    with Receiver(authority) as receiver:
        finished(on, receiver.url)

        assert sent(on) == 0

        assert receiver.got.empty()
    assert "certificate" in on.queue(WEBHOOKS).dead_letters()[0].error


def test_a_receiver_that_drips_its_answer_is_given_up(
    on: agentbus.Bus, authority: trustme.CA, trusted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a receiver that never comes to the end of its first line
    monkeypatch.setattr(webhooks, "_TIMEOUT", 0.3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            raw, _ = listening.accept()
            with raw, context.wrap_socket(raw, server_side=True) as link:
                try:
                    while True:
                        link.send(b"x")
                        # Slower than this, a limit for each read would do.
                        threading.Event().wait(0.05)
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        finished(on, f"https://localhost:{listening.getsockname()[1]}/")

        # then the whole exchange ends in time
        assert sent(on, attempts=1) == 0
        thread.join(30)
        assert not thread.is_alive()

    assert "no answer within" in on.queue(WEBHOOKS).dead_letters()[0].error


def test_a_sender_beside_a_worker_sends_all_before_a_drain_ends(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    on.queue("sums").publish(3, webhook=receiver.url)

    with webhooks.beside(on, drain=lambda: True):
        on.subscribe("sums", lambda d: d.payload, drain=True).run()

    assert receiver.got.qsize() == 1


def test_nothing_is_sent_beside_where_webhooks_are_off(bus: agentbus.Bus) -> None:
    before = threading.active_count()

    with webhooks.beside(bus):
        assert threading.active_count() == before


def test_a_sender_that_was_killed_delivers_after_its_restart(
    switched_on: None, authority: trustme.CA, trusted: None, real_url: str, project: str
) -> None:
    script = (
        "import agentbus, sys\nfrom agentbus import webhook\n"
        "with agentbus.connect(sys.argv[1], project=sys.argv[2]) as bus:\n"
        "    webhook.sender(bus, visibility=0.5, count=1).run()\n"
    )
    words = [sys.executable, "-c", script, real_url, project]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        agentbus.connect(real_url, project=project, agent="ada") as bus,
        Receiver(authority) as receiver,
    ):
        # given a sender that is killed while the receiver has not answered
        receiver.answering.clear()
        finished(bus, receiver.url)
        with subprocess.Popen(words, env=environment) as first:
            unanswered = receiver.got.get(timeout=60)
            first.kill()
        receiver.answering.set()

        # when another one is started
        with subprocess.Popen(words, env=environment) as second:
            again = receiver.got.get(timeout=60)

        # then the same webhook is delivered, and known by its id
        assert second.returncode == 0
        assert again[0]["AgentBus-Delivery"] == unanswered[0]["AgentBus-Delivery"]
        assert json.loads(again[1])["result"] == 3


def test_a_drain_does_not_wait_for_a_receiver_that_is_away(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    receiver.answers = [(503, {"Retry-After": "600"})]
    on.queue("sums").publish(3, webhook=receiver.url)

    with webhooks.beside(on, drain=lambda: True):
        on.subscribe("sums", lambda d: d.payload, drain=True).run()

    assert receiver.got.qsize() == 1
    assert on.queue(WEBHOOKS).dead_letters() == []


def test_the_verb_work_sends_webhooks_beside(
    switched_on: None, receiver: Receiver, real_shell: Shell
) -> None:
    names = ("AGENTBUS_WEBHOOKS", "AGENTBUS_WEBHOOK_SECRET", "AGENTBUS_WEBHOOK_ALLOW")
    for name in (*names, "SSL_CERT_FILE"):
        real_shell.environment[name] = os.environ[name]
    real_shell.environment["PYTHONPATH"] = str(ROOT)
    task = real_shell.ok("publish", "sums", "1", "--webhook", receiver.url).strip()

    real_shell.ok("work", "sums", "--drain", "--", "echo", "7")

    headers, body, _ = receiver.got.get(timeout=30)
    assert webhooks.verify(SECRET, headers, body)
    assert (json.loads(body)["task_id"], json.loads(body)["result"]) == (task, 7)


def test_the_verb_work_takes_nothing_where_there_is_no_secret(real_shell: Shell) -> None:
    real_shell.environment |= {"PYTHONPATH": str(ROOT), "AGENTBUS_WEBHOOKS": "1"}
    real_shell.ok("publish", "sums", "1")

    done = real_shell.run("work", "sums", "--drain", "--", "echo", "7")

    assert (done.returncode, done.stdout) == (2, "")
    assert "AGENTBUS_WEBHOOK_SECRET" in done.stderr


def test_a_sender_may_be_started_from_the_shell(
    switched_on: None, receiver: Receiver, real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        finished(bus, receiver.url)
    environment = {name: value for name, value in os.environ.items() if name[:8] == "AGENTBUS"}
    environment |= {"SSL_CERT_FILE": os.environ["SSL_CERT_FILE"], "PYTHONPATH": str(ROOT)}

    (told,) = real_shell.records(
        *("work", WEBHOOKS, "--drain", "--handler", "agentbus.workers.webhooks:deliver"),
        env=environment,
    )

    assert receiver.got.qsize() == 1
    assert told["done"] == 1


def test_work_counts_the_webhooks_that_it_sent_beside(
    switched_on: None, receiver: Receiver, real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bus.queue("sums").publish_many([1, 2], webhook=receiver.url)
    environment = {name: value for name, value in os.environ.items() if name[:8] == "AGENTBUS"}
    environment |= {"SSL_CERT_FILE": os.environ["SSL_CERT_FILE"], "PYTHONPATH": str(ROOT)}

    argv = ("work", "sums", "--drain", "--handler", "builtins:repr")
    (done,) = real_shell.records(*argv, env=environment)

    assert (done["done"], done["webhooks"]) == (2, 2)


# -- where to --

PRIVATE = [
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::ffff:169.254.169.254", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "100::1", "2001::1"),
    *("2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "fc00::1", "fd12:3456::1", "fe80::1"),
    *("fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "5f00::1", "4000::1"),
    *("3fff::1", "3fff:fff:ffff::1"),
    # What only machines of Azure and of IBM Cloud reach.
    *("168.63.129.16", "161.26.0.10", "166.9.14.1", "::ffff:168.63.129.16"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
    *("2606:4700::1111", "2a00:1450::1", "2002:808:808::1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_but_a_public_one_is_global(address: str) -> None:
    assert not webhooks.is_global(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_global(address: str) -> None:
    assert webhooks.is_global(address)


@given(st.ip_addresses(v=4))
def test_an_address_of_ipv4_is_judged_alike_in_every_disguise(
    address: ipaddress.IPv4Address,
) -> None:
    number = int(address)
    translated = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + number)
    tunnelled = ipaddress.IPv6Address((0x2002 << 112) + (number << 80))
    judged = webhooks.is_global(str(address))

    assert webhooks.is_global(f"::ffff:{address}") == judged
    assert webhooks.is_global(str(translated)) == judged
    assert webhooks.is_global(str(tunnelled)) == judged
    assert not judged or address.is_global


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0x7f.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"),
        *("10.0.0.1", "169.254.169.254", "[fe80::1]", "0"),
    ],
)
def test_a_private_host_is_buried_and_never_connected_to(
    on: agentbus.Bus, monkeypatch: pytest.MonkeyPatch, connect: Connect, host: str
) -> None:
    monkeypatch.setenv("AGENTBUS_WEBHOOK_ALLOW", "127.0.0.2")
    bus = connect("carol")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        finished(bus, f"https://{host}:{listening.getsockname()[1]}/")

        assert sent(bus) == 0

        with pytest.raises(BlockingIOError):
            listening.accept()
    (letter,) = bus.queue(WEBHOOKS).dead_letters()
    assert letter.attempts == 1
    assert "AGENTBUS_WEBHOOK_ALLOW" in letter.error


def test_a_host_that_is_allowed_with_a_port_is_allowed_on_no_other_one(
    switched_on: None, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    port = urlsplit(receiver.url).port
    for allowed, count in ((f"localhost:{port}", 1), (f"localhost:{port - 1}, [::1]:443", 0)):
        monkeypatch.setenv("AGENTBUS_WEBHOOK_ALLOW", allowed)
        bus = connect("carol")
        finished(bus, receiver.url)

        assert sent(bus) == count

    (letter,) = bus.queue(WEBHOOKS).dead_letters()
    assert "not an address of the public internet" in letter.error


def test_a_dead_letter_holds_no_answer_of_a_host_in_the_own_network(
    on: agentbus.Bus, receiver: Receiver
) -> None:
    receiver.answers = [(403, {})]
    receiver.text = b"internal: hunter2"
    finished(on, receiver.url)

    assert sent(on) == 0
    (letter,) = on.queue(WEBHOOKS).dead_letters()
    assert letter.error == "Bury: the receiver answered 403"


def test_a_host_with_one_private_address_among_public_ones_is_refused(
    on: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
        for address in ("93.184.216.34", "10.0.0.1")
    ]
    monkeypatch.setattr(webhooks.socket, "getaddrinfo", lambda *_a, **_k: found)
    finished(on, "https://example.org/")

    assert sent(on) == 0

    assert "10.0.0.1" in on.queue(WEBHOOKS).dead_letters()[0].error


def test_a_name_is_resolved_once_and_the_connection_goes_where_it_led(
    on: agentbus.Bus, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = socket.getaddrinfo, []

    def rebinding(host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "192.0.2.1", *args, **options)

    monkeypatch.setattr(webhooks.socket, "getaddrinfo", rebinding)
    finished(on, receiver.url)

    assert sent(on) == 1
    assert asked == ["localhost"]


@pytest.mark.parametrize(
    "where",
    [
        *("http://example.org/", "ftp://example.org/", "example.org", "//example.org", "https://"),
        *("https:///x", "https://user@example.org/", "https://user:pw@example.org/", "", "https:x"),
        *("https://example.org:0/", "https://example.org:99999/", "https://example.org:x/"),
        *(
            "https://ex ample.org/",
            "https://example.org/\n",
            "https://example.org\t/",
            "https://[::1",
        ),
        *(
            "https://exämple.org/",
            "https://example.org/#x",
            "https://a\\@b/",
            "https://[fe80::1%25a]/",
        ),
        *(
            "https://a%2eb/",
            "https://example.org/" + "x" * 2048,
            5,
            b"https://example.org/",
            "javascript:x",
        ),
        *("https://@example.org/", "https://a,b/", "https://a*b/", "\udcff"),
    ],
    ids=lambda where: ascii(where)[:30],
)
def test_a_url_that_will_not_do_is_refused_at_publish(bus: agentbus.Bus, where: Any) -> None:
    with pytest.raises(UsageError) as refused:
        bus.queue("sums").publish(1, webhook=where)

    assert "pw" not in str(refused.value)
    assert bus.queue("sums").peek() == []


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.org", ("example.org", 443, "/")),
        ("HTTPS://Example.ORG:8443/A?b=c", ("example.org", 8443, "/A?b=c")),
        ("https://[2606:4700::1111]/", ("2606:4700::1111", 443, "/")),
        ("https://xn--exmple-cua.org?x", ("xn--exmple-cua.org", 443, "/?x")),
    ],
)
def test_a_url_is_taken_apart(url: str, target: tuple[str, int, str]) -> None:
    found = webhook_url.target(url)

    assert (found.host, found.port, found.path) == target


@given(st.text(max_size=40) | st.text("https:/.@[]%#?a1\\", max_size=30).map("https://".__add__))
def test_any_text_is_a_target_or_a_usage_error(url: str) -> None:
    try:
        found = webhook_url.target(url)
    except UsageError:
        return
    assert found.path.startswith("/")
    assert 0 < found.port < 65536
    assert f"{found.host}{found.path}".isprintable()
    assert not set(found.host) & set("/?#@%\\ ")


@pytest.mark.parametrize(
    "payload", [None, 5, {}, {"url": "https://example.org/"}, {"url": 5, "body": 1}]
)
def test_what_is_no_webhook_is_buried(on: agentbus.Bus, payload: Any) -> None:
    stream = Keys(on.project).queue(WEBHOOKS)
    ask(on, "XADD", stream, "*", "payload", json.dumps(payload))

    assert sent(on) == 0
    assert on.queue(WEBHOOKS).dead_letters()[0].attempts == 1


@pytest.mark.parametrize(
    "mac",
    [
        *(lambda _: None, lambda _: "", lambda _: 5),
        lambda url: notify.webhook_mac("another secret", url, {"ok": True}),
        lambda url: notify.webhook_mac(SECRET, url, {"ok": False}),
        lambda url: notify.webhook_mac(SECRET, f"{url}c", {"ok": True}),
    ],
)
def test_what_no_worker_with_the_secret_appended_is_not_posted(
    on: agentbus.Bus, receiver: Receiver, mac: Any
) -> None:
    payload = {"url": receiver.url, "body": {"ok": True}, "mac": mac(receiver.url)}
    ask(on, "XADD", Keys(on.project).queue(WEBHOOKS), "*", "payload", json.dumps(payload))

    assert sent(on) == 0
    assert receiver.got.empty()
    (letter,) = on.queue(WEBHOOKS).dead_letters()
    assert (letter.attempts, "not appended by a worker" in letter.error) == (1, True)


def test_a_worker_without_the_secret_appends_no_webhook(
    switched_on: None, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTBUS_WEBHOOK_SECRET")
    bus = connect()

    finished(bus, "https://example.org/hook")

    assert ask(bus, "EXISTS", Keys(bus.project).queue(WEBHOOKS)) == 0
    assert bus.stats("sums")[0].counters["webhooks_off"] == 1


# -- signatures --


@given(st.binary(max_size=200), st.integers(0, 10**11))
def test_what_was_signed_is_verified_and_what_was_changed_is_not(body: bytes, now: int) -> None:
    signed = {webhooks.SIGNATURE.lower(): webhooks.sign(SECRET, body, now=now)}

    assert webhooks.verify(SECRET, signed, body, now=now + 300)
    assert not webhooks.verify(SECRET, signed, body + b"x", now=now)
    assert not webhooks.verify(SECRET + "x", signed, body, now=now)
    assert not webhooks.verify(SECRET, signed, body, now=now + 301)
    assert not webhooks.verify(SECRET, signed, body, now=now - 301)
    assert webhooks.verify(SECRET, signed, body, 400, now=now + 301)


def test_an_empty_secret_is_refused() -> None:
    """Anybody could sign with it."""
    stamp = str(int(time.time()))
    forged = hmac.new(b"", f"{stamp}.".encode() + b"{}", hashlib.sha256).hexdigest()
    with pytest.raises(ConfigError, match="empty"):
        webhooks.verify("", {webhooks.SIGNATURE: f"t={stamp},v1={forged}"}, b"{}")
    with pytest.raises(ConfigError, match="empty"):
        webhooks.sign("", b"{}")


def test_a_new_time_needs_a_new_signature() -> None:
    stamp, _, rest = webhooks.sign(SECRET, b"x", now=1000).partition(",")

    forged = {webhooks.SIGNATURE: f"t=2000,{rest}"}

    assert stamp == "t=1000"
    assert not webhooks.verify(SECRET, forged, b"x", now=2000)


def test_one_sound_signature_among_several_is_enough() -> None:
    header = f"{webhooks.sign(SECRET, b'x')},v1={'0' * 64},v2=what"

    assert webhooks.verify(SECRET, {webhooks.SIGNATURE: header}, b"x")


@given(st.text(max_size=60) | st.text("tv1=,0123456789²é", max_size=30))
def test_any_header_is_answered_without_an_error(header: str) -> None:
    assert not webhooks.verify(SECRET, {webhooks.SIGNATURE: header}, b"x", now=0)
    assert not webhooks.verify(SECRET, {}, b"x")


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        *((None, None), ("0", 0.0), ("7", 7.0), ("999999999999", 3600.0), ("-5", None), ("", None)),
        *(("soon", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("1e9", None), ("²", None)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
    ],
)
def test_a_receivers_wish_is_kept_within_bounds(said: str | None, pause: float | None) -> None:
    assert webhooks._pause(said) == pause


# -- settings --


def test_the_settings_come_from_the_environment_or_the_users_own_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = pathlib.Path(os.environ["HOME"], ".config", "agentbus", "config.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(f"webhooks: on\nwebhook_secret: {SECRET}\nwebhook_allow: [Hooks.internal]\n")

    found = settings.resolve()

    assert (found.webhooks, found.webhook_secret) == (True, SECRET)
    assert found.webhook_allow == ("hooks.internal",)
    monkeypatch.setenv("AGENTBUS_WEBHOOKS", "0")
    assert not settings.resolve().webhooks


@pytest.mark.parametrize(
    "line", ["webhooks: true", f"webhook_secret: {SECRET}", "webhook_allow: [localhost]"]
)
def test_a_file_that_comes_with_a_repository_sets_nothing_of_webhooks(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    make_repository(tmp_path)
    (tmp_path / ".agentbus.yaml").write_text(f"{line}\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="is not allowed in a project") as refused:
        settings.resolve()

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("AGENTBUS_WEBHOOK_SECRET", "short"), ("AGENTBUS_WEBHOOK_SECRET", "sesame\n" * 8)),
        *(("AGENTBUS_WEBHOOKS", "perhaps"), ("AGENTBUS_WEBHOOK_ALLOW", "*.example.org")),
        *(("AGENTBUS_WEBHOOK_ALLOW", "a:0"), ("AGENTBUS_WEBHOOK_ALLOW", "[::1]:99999")),
        *(("AGENTBUS_WEBHOOK_ALLOW", "a:b"), ("AGENTBUS_WEBHOOK_ALLOW", "h:1:2")),
        *(("AGENTBUS_WEBHOOK_ALLOW", "https://a/"), ("AGENTBUS_WEBHOOK_SECRET", "sesame" * 99)),
    ],
)
def test_a_setting_that_will_not_do_is_refused_without_showing_a_secret(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError, match=variable) as refused:
        settings.resolve()

    assert "sesame" not in str(refused.value)
    assert "short" not in str(refused.value)


def test_a_program_that_does_a_task_does_not_get_the_secret(real_shell: Shell) -> None:
    real_shell.environment |= {"PYTHONPATH": str(ROOT), "AGENTBUS_WEBHOOK_SECRET": SECRET}
    task = real_shell.ok("publish", "sums", "1").strip()

    real_shell.ok("work", "sums", "--drain", "--", "sh", "-c", "env")

    assert SECRET not in real_shell.ok("result", task)
    assert SECRET not in real_shell.ok("whoami", "--json")


def test_the_clock_of_a_signature_is_this_machines() -> None:
    before = int(time.time())

    stamp = int(webhooks.sign(SECRET, b"").partition(",")[0].removeprefix("t="))

    assert before <= stamp <= int(time.time())
