"""Servers behind every scheme of URL, and those that are refused."""

from __future__ import annotations

import asyncio
import pathlib
import ssl
import threading
import uuid
from collections.abc import Iterator

import pytest
import trustme

import agentbus
import agentbus.aio
from agentbus.errors import BackendUnavailable, ConfigError, UnknownBackend
from agentbus.store import failures
from agentbus.store.async_connection import _AsyncConnection
from agentbus.store.connection import Target
from tests.proxy import Impostor, Proxy
from tests.servers import Server

SECRET = "s3cret-Wort"


def round_trip(url: str, project: str) -> None:
    """Do a little of everything through a URL, blocking."""
    with agentbus.connect(url, project=project, agent="ada") as bus:
        assert bus.doctor()
        bus.speak("hi", topic="build")
        bus.jot("note", "value", tags=["t"])
        assert bus.recall("note").value == "value"
        assert [note.key for note in bus.notes(["t"])] == ["note"]
        assert [note.key for note in bus.list_()] == ["note"]
        hold = bus.announce("flag", ttl=60)
        assert hold.renew(90).ttl == 90
        bus.satisfy("flag", token=hold.token)
        (met,) = bus.await_("flag", timeout=30, delete=True)
        assert met.by == "ada"
        assert "hi" in [said.text for said in bus.overhear()]
        assert list(bus.overhear()) == []
        bus.forget("note")
        assert bus.clear()


async def async_round_trip(url: str, project: str) -> None:
    """Do a little of everything through a URL, with coroutines."""
    async with agentbus.aio.connect(url, project=project, agent="ada") as bus:
        waiting = asyncio.ensure_future(bus.await_("flag", timeout=30))
        await asyncio.gather(*(bus.speak(f"message {number}") for number in range(50)))
        await bus.jot("note", "value", tags=["t"])
        assert (await bus.recall("note")).value == "value"
        hold = await bus.announce("flag", ttl=60)
        await bus.satisfy("flag", token=hold.token)
        assert (await waiting)[0].state == "satisfied"
        assert len([said async for said in bus.overhear(limit=1000)]) == 53
        await bus.forget("note")
        assert await bus.clear()


# -- sockets and TCP --


@pytest.mark.parametrize("scheme", ["unix", "redis", "redis with a number", "unix with a number"])
async def test_plain_servers(valkey, project, scheme):
    url = {
        "unix": valkey.url,
        "redis": valkey.tcp_url,
        "redis with a number": f"{valkey.tcp_url}/3",
        "unix with a number": f"{valkey.url}?db=3",
    }[scheme]

    await asyncio.to_thread(round_trip, url, project)
    await async_round_trip(url, project)


def test_databases_keep_their_keys_apart(own_server, project):
    with agentbus.connect(f"{own_server.tcp_url}/1", project=project) as one:
        one.speak("in one")
    with agentbus.connect(f"{own_server.url}?db=2", project=project) as two:
        assert list(two.overhear()) == []
    with agentbus.connect(f"{own_server.tcp_url}?db=1", project=project) as again:
        assert [said.text for said in again.overhear()] == ["in one"]


def test_a_database_that_the_server_lacks_is_told_in_a_sentence(real_shell, valkey):
    done = real_shell.run("speak", "hi", "--url", f"{valkey.tcp_url}/99")

    assert done.returncode in {1, 2}
    assert "index is out of range" in done.stderr


def test_a_socket_whose_path_needs_escaping(own_server, project, tmp_path):
    odd = pathlib.Path(f"/tmp/ab {uuid.uuid4().hex[:8]} ü%.sock")
    odd.symlink_to(own_server.socket)
    try:
        quoted = str(odd).replace("%", "%25").replace(" ", "%20")
        round_trip(f"unix://{quoted}", project)
    finally:
        odd.unlink()


async def test_memory_lives_in_one_process(project):
    url = f"memory://{uuid.uuid4().hex}"

    await asyncio.to_thread(round_trip, url, project)
    await async_round_trip(url, project)


def test_threads_of_a_memory_bus_share_it(project):
    with agentbus.connect(f"memory://{uuid.uuid4().hex}", project=project) as bus:
        threads = [threading.Thread(target=bus.speak, args=(str(n),)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(list(bus.overhear())) == 20


@pytest.mark.parametrize("url", ["amqp://localhost", "http://localhost", "redis2://localhost"])
def test_an_unknown_scheme_is_refused_with_those_that_are_known(real_shell, url):
    done = real_shell.run("speak", "hi", "--url", url)

    assert done.returncode == 2
    assert "redis+cluster://" in done.stderr
    with pytest.raises(UnknownBackend):
        agentbus.connect(url)


# -- users and passwords --


@pytest.fixture
def guarded(own_server, project) -> Server:
    """A server with a password, and a user who may reach one project's keys only."""
    own_server.ask("ACL", "SETUSER", "ada", "on", f">{SECRET}", f"~{project}:*", "+@all", "-acl")
    own_server.ask("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "+evalsha")
    own_server.ask("ACL", "SETUSER", "default", "resetpass", f">{SECRET}")
    return own_server


@pytest.mark.parametrize("who", ["ada", "", "default"])
async def test_a_user_with_the_right_password(guarded, project, who):
    url = f"redis://{who}:{SECRET}@127.0.0.1:{guarded.port}"

    await asyncio.to_thread(round_trip, url, project)
    await async_round_trip(url, project)


@pytest.mark.parametrize("who", ["ada:wrong-s3cret@", "nobody:wrong-s3cret@", ":wrong-s3cret@", ""])
def test_a_wrong_password_is_refused_and_shown_nowhere(guarded, real_shell, who):
    url = f"redis://{who}127.0.0.1:{guarded.port}"
    seen = []
    for words in (("speak", "hi"), ("overhear",), ("doctor",), ("announce", "f", "--json")):
        done = real_shell.run(*words, "--url", url)
        assert done.returncode == 2
        seen += [done.stdout, done.stderr]
    told = real_shell.run("whoami", "--url", url)
    seen += [told.stdout, told.stderr]
    seen += [path.read_text() for path in real_shell.home.rglob("*") if path.is_file()]

    assert len(seen) > 10
    assert "wrong-s3cret" not in "".join(seen)


async def test_a_wrong_password_is_refused_to_coroutines(guarded, project):
    url = f"redis://ada:wrong@127.0.0.1:{guarded.port}"
    async with agentbus.aio.connect(url, project=project) as bus:
        outcomes = await asyncio.gather(
            *(bus.speak("hi") for _ in range(20)), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {ConfigError}


def test_a_password_with_signs_that_mean_something_in_urls(own_server, project):
    own_server.ask("ACL", "SETUSER", "ada", "on", ">p@ss:w/o#r?d%", "~*", "+@all")

    round_trip(f"redis://ada:p%40ss%3Aw%2Fo%23r%3Fd%25@127.0.0.1:{own_server.port}", project)


def test_keys_that_a_user_may_not_reach_are_told_in_a_sentence(guarded, real_shell):
    url = f"redis://ada:{SECRET}@127.0.0.1:{guarded.port}"

    done = real_shell.run("speak", "hi", "--url", url, "--project", "another")

    assert done.returncode == 2
    assert "ACL" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_whoami_masks_the_password(real_shell, guarded):
    told = real_shell.ok("whoami", "--url", f"redis://ada:{SECRET}@127.0.0.1:{guarded.port}")

    assert "***" in told
    assert SECRET not in told


# -- TLS --


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificates(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of the authority's certificate, and of a client's with its key."""
    place = tmp_path_factory.mktemp("certificates")
    authority.cert_pem.write_to_path(str(place / "ca.pem"))
    client = authority.issue_cert("ada@example.org")
    client.cert_chain_pems[0].write_to_path(str(place / "client.pem"))
    client.private_key_pem.write_to_path(str(place / "client.key"))
    return {name: str(place / name) for name in ("ca.pem", "client.pem", "client.key")}


def tls_front(server: Server, authority: trustme.CA, host: str = "127.0.0.1") -> Proxy:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return Proxy(server.socket, tls=context)


async def test_tls_with_a_certificate_of_ones_own_authority(
    own_server, authority, certificates, project
):
    with tls_front(own_server, authority) as front:
        url = f"{front.url}?ssl_ca_certs={certificates['ca.pem']}"

        await asyncio.to_thread(round_trip, url, project)
        await async_round_trip(url, project)


def test_verbs_speak_tls(own_server, authority, certificates, real_shell):
    with tls_front(own_server, authority) as front:
        url = f"{front.url}/2?ssl_ca_certs={certificates['ca.pem']}"

        real_shell.ok("speak", "hi", "--url", url)
        assert "hi" in real_shell.ok("overhear", "--url", url)
        assert real_shell.run("doctor", "--url", url).returncode == 0


async def test_tls_with_a_users_password(own_server, authority, certificates, project):
    own_server.ask("ACL", "SETUSER", "default", "resetpass", f">{SECRET}")
    with tls_front(own_server, authority) as front:
        url = f"rediss://:{SECRET}@127.0.0.1:{front.port}?ssl_ca_certs={certificates['ca.pem']}"

        await asyncio.to_thread(round_trip, url, project)
        await async_round_trip(url, project)


def test_a_certificate_of_an_unknown_authority_is_refused(own_server, authority, real_shell):
    with tls_front(own_server, authority) as front:
        done = real_shell.run("speak", "hi", "--deadline", "600", "--url", front.url)

    assert done.returncode == 2
    assert "the certificate of 127.0.0.1 was not accepted" in done.stderr
    assert "ssl_ca_certs" in done.stderr
    assert own_server.ask("DBSIZE") == 0


@pytest.mark.parametrize("options", ["", "&ssl_check_hostname=true"])
async def test_a_certificate_for_another_host_is_refused(
    own_server, authority, certificates, project, options
):
    with tls_front(own_server, authority, "elsewhere.example") as front:
        url = f"{front.url}?ssl_ca_certs={certificates['ca.pem']}{options}"
        with agentbus.connect(url, project=project, deadline=9) as bus:
            with pytest.raises(ConfigError, match="certificate"):
                bus.speak("hi")
        async with agentbus.aio.connect(url, project=project, deadline=9) as abus:
            with pytest.raises(ConfigError, match="certificate"):
                await abus.speak("hi")

    assert own_server.ask("DBSIZE") == 0


async def test_a_server_without_tls_is_a_mistake_of_configuration(project):
    with Impostor(b"-ERR Protocol error\r\n") as plain:
        url = plain.url.replace("redis", "rediss")
        with agentbus.connect(url, project=project, deadline=9) as bus:
            with pytest.raises(ConfigError, match="does not speak TLS"):
                await asyncio.to_thread(bus.speak, "hi")
        async with agentbus.aio.connect(url, project=project, deadline=9) as abus:
            with pytest.raises(ConfigError, match="does not speak TLS"):
                await abus.speak("hi")


@pytest.mark.parametrize(
    "options", ["ssl_cert_reqs=none", "ssl_ca_certs={ca}&ssl_check_hostname=false"]
)
async def test_checks_of_certificates_may_be_left_out(
    own_server, authority, certificates, project, options
):
    with tls_front(own_server, authority, "elsewhere.example") as front:
        url = f"{front.url}?{options.format(ca=certificates['ca.pem'])}"

        await asyncio.to_thread(round_trip, url, project)
        await async_round_trip(url, project)


@pytest.fixture
def strict_front(own_server, authority) -> Iterator[Proxy]:
    """A front that asks its clients for a certificate of the same authority."""
    front = tls_front(own_server, authority)
    assert front.tls is not None
    front.tls.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(front.tls)
    with front:
        yield front


async def test_replies_that_come_in_two_records_of_tls_are_both_read():
    connection = _AsyncConnection(Target(), "test")
    asked = asyncio.ensure_future(connection.request([("PING",), ("PING",)], 5.0))
    await asyncio.sleep(0)

    # As asyncio's transport does it: the second record goes into a slice of the buffer.
    place = connection.get_buffer(-1)
    place[:9] = b"+OK\r\n:1\r\n"
    place[9:][:4] = b":2\r\n"
    connection.buffer_updated(13)

    assert await asked == [1, 2]


async def test_a_client_may_show_a_certificate(strict_front, certificates, project):
    url = (
        f"{strict_front.url}?ssl_ca_certs={certificates['ca.pem']}"
        f"&ssl_certfile={certificates['client.pem']}&ssl_keyfile={certificates['client.key']}"
    )

    await asyncio.to_thread(round_trip, url, project)
    await async_round_trip(url, project)


def test_a_client_without_a_certificate_is_not_let_in(
    strict_front, own_server, certificates, project
):
    url = f"{strict_front.url}?ssl_ca_certs={certificates['ca.pem']}"
    with agentbus.connect(url, project=project, deadline=1) as bus:
        with pytest.raises(agentbus.AgentBusError) as refusal:
            bus.recall("note")

    assert refusal.value.exit_code in {1, 2}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        # As servers with OpenSSL reject a client: in TLS 1.3 with the answer to its first request.
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "did not accept this client's certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "did not accept this client's certificate"),
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("UNEXPECTED_EOF_WHILE_READING", None),
    ],
)
def test_what_a_retry_cannot_mend_is_known_by_the_reason_of_a_tls_error(reason, said):
    error = ssl.SSLError(1, "refused")
    error.reason = reason

    found = failures.mistake(error, "bus.example")

    assert (None if found is None else found.exit_code) == (None if said is None else 2)
    assert said is None or said in str(found)


@pytest.mark.parametrize(
    "options",
    ["ssl_ca_certs=/none.pem", "ssl_certfile=/none.pem", "ssl_cert_reqs=maybe", "ssl_magic=1"],
)
def test_a_wrong_option_of_tls_is_a_mistake_of_configuration(real_shell, options):
    done = real_shell.run("speak", "hi", "--url", f"rediss://127.0.0.1:1?{options}")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


async def test_a_tls_handshake_that_is_never_answered_is_given_up(real_shell, project):
    with Impostor(b"") as silent:
        url = f"rediss://127.0.0.1:{silent.port}"

        done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url, timeout=15)
        async with agentbus.aio.connect(url, project=project, deadline=1) as bus:
            async with asyncio.timeout(15):
                with pytest.raises(BackendUnavailable):
                    await bus.speak("hi")

    assert done.returncode == 1


def test_plain_talk_to_a_tls_port_fails_in_a_sentence(own_server, authority, real_shell):
    with tls_front(own_server, authority) as front:
        url = f"redis://127.0.0.1:{front.port}"
        done = real_shell.run("overhear", "--deadline", "1", "--url", url)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_tls_talk_to_a_plain_port_fails_in_a_sentence(own_server, real_shell):
    url = f"rediss://127.0.0.1:{own_server.port}"

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
