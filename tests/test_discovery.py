"""Servers that must be found first: the master that sentinels name, a cluster's right shard."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import redis

import agentbus
import agentbus.aio
from agentbus.errors import ConfigError
from tests.proxy import Impostor
from tests.servers import Server, free_port
from tests.test_backends import async_round_trip, round_trip

_SLOTS = 16384
_GLANCE = 0.01


def joined(replica: Server, primary: Server) -> None:
    """Return once a replica has all that its primary has."""
    with redis.Redis(unix_socket_path=primary.socket, single_connection_client=True) as other:
        other.set("there", "1")
        assert other.wait(1, 0) == 1
        other.delete("there")
    assert replica.ask("ROLE")[0] == b"slave"


# -- sentinels --


class Sentinel:
    """One real sentinel, which decides alone and soon."""

    def __init__(self, place: pathlib.Path, primary: Server, *, down: int = 500) -> None:
        self.port = free_port()
        place.mkdir()
        config = place / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {place}\n"
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds main {down}\n"
            "sentinel failover-timeout main 3000\n"
        )
        self._words = [primary.binary, str(config), "--sentinel"]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def __enter__(self) -> Sentinel:
        self._process = subprocess.Popen(self._words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        while "+monitor" not in (line := self._process.stdout.readline()):
            assert line, "the sentinel ended before it was ready"
        # Whatever it says from now on must not fill the pipe.
        self._drain = threading.Thread(target=self._process.stdout.read)
        self._drain.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._drain.join()
        with self._process:
            pass

    def knows_a_replica(self) -> None:
        """Return once the sentinel knows whom to promote."""
        with redis.Redis(port=self.port, decode_responses=True) as other:
            while not any(
                known["flags"] == "slave" and known["slave-repl-offset"] != "0"
                for known in other.sentinel_slaves("main")
            ):
                time.sleep(_GLANCE)


@pytest.fixture
def replica(own_server, tmp_path) -> Iterator[Server]:
    own_server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    options = ("--replicaof", "127.0.0.1", str(own_server.port))
    with Server(tmp_path / "replica", *options) as server:
        joined(server, own_server)
        yield server


@pytest.fixture
def sentinel(own_server, replica, tmp_path) -> Iterator[Sentinel]:
    with Sentinel(tmp_path / "sentinel", own_server) as started:
        yield started


async def test_the_master_that_a_sentinel_names(sentinel, project):
    await asyncio.to_thread(round_trip, sentinel.url, project)
    await async_round_trip(sentinel.url, project)


def test_a_plain_url_of_a_sentinel_is_answered_with_the_one_to_write(sentinel, real_shell):
    plain = f"redis://127.0.0.1:{sentinel.port}"

    for verb in (["speak", "hi"], ["list"], ["doctor"], ["health"], ["metrics"]):
        done = real_shell.run(*verb, "--url", plain)

        assert done.returncode == 2, verb
        assert "is a sentinel" in done.stderr
        assert f"write redis+sentinel://127.0.0.1:{sentinel.port}/SERVICE in" in done.stderr
        assert "too old" not in done.stderr


def test_the_first_sentinel_that_answers_is_enough(sentinel, project):
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main"

    round_trip(url, project)


async def test_a_sentinel_is_asked_for_its_masters_and_for_nothing_else(sentinel, project):
    with redis.Redis(port=sentinel.port) as administrator:
        rule = ("on", ">s3same", "resetchannels", "-@all", "+sentinel|masters")
        administrator.execute_command("ACL", "SETUSER", "finder", *rule)
        url = f"{sentinel.url}?sentinel_username=finder&sentinel_password=s3same"

        await asyncio.to_thread(round_trip, url, project)
        await async_round_trip(url, project)

        assert administrator.execute_command("ACL", "LOG") == []


def test_a_database_behind_a_sentinel(sentinel, own_server, project):
    with agentbus.connect(f"{sentinel.url}/4", project=project) as bus:
        bus.speak("in four")
    with agentbus.connect(f"{own_server.url}?db=4", project=project) as bus:
        assert [said.text for said in bus.overhear()] == ["in four"]


@pytest.mark.parametrize("login", ["", "?sentinel_password=wr0ng"])
def test_a_sentinel_that_refuses_the_login_is_a_mistake_of_configuration(
    sentinel, real_shell, login
):
    with redis.Redis(port=sentinel.port) as admin:
        admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">right")

    done = real_shell.run("speak", "hi", "--url", sentinel.url + login)

    assert done.returncode == 2
    assert "refused the user or the password" in done.stderr
    assert "wr0ng" not in done.stdout + done.stderr
    real_shell.ok("speak", "hi", "--url", f"{sentinel.url}?sentinel_password=right")


def test_verbs_find_the_master(sentinel, real_shell):
    real_shell.ok("speak", "hi", "--url", sentinel.url)

    assert "hi" in real_shell.ok("overhear", "--url", sentinel.url)


async def test_a_bus_follows_a_failover(sentinel, own_server, replica, project):
    # given buses that are connected to the master, one of them waiting
    await asyncio.to_thread(sentinel.knows_a_replica)
    async with agentbus.aio.connect(sentinel.url, project=project, deadline=60) as abus:
        waiting = asyncio.ensure_future(abus.await_("promoted", timeout=120))
        await abus.speak("before")
        with agentbus.connect(sentinel.url, project=project, agent="ada", deadline=60) as bus:
            await asyncio.to_thread(bus.speak, "before, too")
            await asyncio.to_thread(joined, replica, own_server)

            # when the master dies
            await asyncio.to_thread(own_server.kill)

            # then what is said and done next reaches the new one
            await asyncio.to_thread(bus.speak, "after")
            await abus.speak("after, too")
            await asyncio.to_thread(bus.satisfy, "promoted")
            assert (await waiting)[0].state == "satisfied"
            said = [m.text for m in await asyncio.to_thread(lambda: list(bus.overhear()))]
    assert said[:2] == ["before", "before, too"]
    assert {"after", "after, too"} < set(said)
    assert replica.ask("ROLE")[0] == b"master"


def test_sentinels_that_are_not_there_are_told_in_a_sentence(real_shell):
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/main"

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url, timeout=15)

    assert done.returncode == 1
    assert "sentinel" in done.stderr
    assert "Traceback" not in done.stderr


def test_sentinels_that_never_answer_are_given_up(real_shell):
    with Impostor(b"") as silent:
        hosts = ",".join([f"127.0.0.1:{silent.port}"] * 10)
        url = f"redis+sentinel://{hosts}/main"

        done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url, timeout=15)

    assert done.returncode == 1


def test_a_service_that_the_sentinels_do_not_know_is_told_in_a_sentence(sentinel, real_shell):
    url = sentinel.url.replace("/main", "/other")

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url)

    assert done.returncode in {1, 2}
    assert "other" in done.stderr


@pytest.mark.parametrize("url", ["redis+sentinel://127.0.0.1:1", "redis+sentinel:///main"])
def test_a_sentinel_url_that_lacks_a_part_is_refused(real_shell, url):
    assert real_shell.run("speak", "hi", "--url", url).returncode == 2


# -- a cluster --


class Cluster:
    """Three real masters that share the slots."""

    def __init__(self, nodes: list[Server], buses: list[int]) -> None:
        self.nodes = nodes
        third = _SLOTS // 3
        for number, node in enumerate(nodes):
            last = _SLOTS - 1 if number == 2 else (number + 1) * third - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", number * third, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in nodes:
            while b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                time.sleep(_GLANCE)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def owner(self, project: str) -> Server:
        """Return the node that has a project's keys."""
        (found,) = [n for n in self.nodes if n.ask("KEYS", f"{{{project}}}:*")]
        return found

    def give_away(self, project: str, to: Server) -> None:
        """Move the project's slot, with its keys, to another node."""
        giver = self.owner(project)
        slot = giver.ask("CLUSTER", "KEYSLOT", f"{{{project}}}:x")
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", giver.ask("CLUSTER", "MYID"))
        giver.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask("CLUSTER", "MYID"))
        for key in giver.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000):
            giver.ask("MIGRATE", "127.0.0.1", to.port, key, 0, 5000)
        for node in (to, giver, *self.nodes):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.ask("CLUSTER", "MYID"))


@contextlib.contextmanager
def clustered(place: pathlib.Path) -> Iterator[Cluster]:
    """Start a cluster, which takes two seconds before it takes writes."""
    with contextlib.ExitStack() as opened:
        nodes, buses = [], []
        for number in range(3):
            buses.append(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]))
            nodes.append(opened.enter_context(Server(place / str(number), *options)))
        yield Cluster(nodes, buses)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(shared_cluster) -> Cluster:
    """An empty cluster, which no test kills or changes."""
    for node in shared_cluster.nodes:
        node.ask("FLUSHALL")
    return shared_cluster


@pytest.fixture
def own_cluster(tmp_path) -> Iterator[Cluster]:
    """A cluster of the test's own, to be killed and changed."""
    with clustered(tmp_path) as started:
        yield started


@pytest.mark.parametrize("number", range(4))
async def test_projects_on_any_shard(cluster, project, number):
    await asyncio.to_thread(round_trip, cluster.url, f"{project}-{number}")
    await async_round_trip(cluster.url, f"{project}-{number}")


def test_all_keys_of_a_project_lie_on_one_shard(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        bus.speak("hi", topic="t")
        bus.jot("key", "value", tags=["a", "b"])
        bus.announce("flag")
        bus.satisfy("flag")
        list(bus.overhear("t"))

    keys = [key for node in cluster.nodes for key in node.ask("KEYS", "*")]
    assert cluster.owner(project)
    assert all(key.startswith(f"{{{project}}}:".encode()) for key in keys)


def test_tasks_wait_for_others_on_a_cluster(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        ids = [bus.queue(name).publish(name) for name in ("one", "two")]
        bus.queue("next").publish("done", after=ids)
        bus.queue("next").publish("buried", after=bus.queue("bad").publish("bad"))

        def handler(delivery):
            if delivery.payload == "bad":
                raise agentbus.Bury("no")
            done.append(delivery.payload)

        done: list[str] = []
        for name in ("one", "two", "bad", "next"):
            bus.subscribe(name, handler, drain=True).run()

        assert done == ["one", "two", "done"]
        assert [letter.payload for letter in bus.queue("next").dead_letters()] == ["buried"]


def test_a_project_that_is_wrapped_already_is_the_same_one(cluster, project):
    with agentbus.connect(cluster.url, project=project, agent="ada") as bus:
        bus.speak("hi")
    with agentbus.connect(cluster.url, project=f"{{{project}}}", agent="bob") as bus:
        assert [said.text for said in bus.overhear()] == ["hi"]


def test_verbs_find_the_shard(cluster, real_shell):
    real_shell.ok("speak", "hi", "--url", cluster.url)
    real_shell.ok("jot", "key", "value", "--tag", "t", "--url", cluster.url)

    assert "hi" in real_shell.ok("overhear", "--url", cluster.url)
    assert "key" in real_shell.ok("list", "--url", cluster.url)
    assert real_shell.run("clear", "--force", "--url", cluster.url).returncode == 0
    assert [node.ask("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_the_projects_of_this_shard_are_listed_and_the_others_reported(
    cluster, project, real_shell
):
    names = [f"{project}-{number}" for number in range(6)]
    for name in names:
        real_shell.ok("speak", "hi", "--url", cluster.url, "--project", name)
    near = {name for name in names if cluster.owner(name) is cluster.owner(names[0])}

    done = real_shell.run("projects", "--url", cluster.url, "--project", names[0])

    listed = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert listed == {f"{{{name}}}" for name in near}
    assert f"only the projects on the shard of {{{names[0]}}} are listed" in done.stderr


async def test_a_bus_follows_a_slot_that_moves(own_cluster, project):
    cluster = own_cluster
    async with agentbus.aio.connect(cluster.url, project=project, deadline=30) as abus:
        with agentbus.connect(cluster.url, project=project, agent="ada", deadline=30) as bus:
            waiting = asyncio.ensure_future(abus.await_("flag", timeout=60))
            await abus.speak("one")
            await asyncio.to_thread(bus.speak, "two")
            giver = cluster.owner(project)
            taker = next(node for node in cluster.nodes if node is not giver)

            await asyncio.to_thread(cluster.give_away, project, taker)

            await asyncio.to_thread(bus.speak, "three")
            await abus.speak("four")
            await asyncio.to_thread(bus.satisfy, "flag")
            assert (await waiting)[0].by == "ada"
            said = [m.text for m in await asyncio.to_thread(lambda: list(bus.overhear()))]
    assert said[:4] == ["one", "two", "three", "four"]
    assert cluster.owner(project) is taker


def test_a_shard_that_is_down_is_told_within_the_deadline(own_cluster, project, real_shell):
    with agentbus.connect(own_cluster.url, project=project, agent="ada") as bus:
        bus.speak("hi")
    own_cluster.owner(project).kill()
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in own_cluster.nodes)

    done = real_shell.run(
        *("overhear", "--deadline", "1", "--url", f"redis+cluster://{hosts}"), timeout=15
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_cluster_that_is_not_there_is_told_in_a_sentence(real_shell):
    url = f"redis+cluster://127.0.0.1:{free_port()}"

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url, timeout=15)

    assert done.returncode == 1
    assert "cluster" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_never_answers_is_given_up(real_shell):
    with Impostor(b"") as silent:
        hosts = ",".join([f"127.0.0.1:{silent.port}"] * 10)
        url = f"redis+cluster://{hosts}"

        done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url, timeout=15)

    assert done.returncode == 1
    assert "unexpectedly" not in done.stderr


def test_a_wrong_password_for_a_cluster_is_a_mistake_of_configuration(cluster, real_shell):
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "ada", "on", ">right", "~*", "+@all")
    url = f"redis+cluster://ada:wr0ng@127.0.0.1:{cluster.nodes[0].port}"

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url)

    assert done.returncode == 2
    assert "wr0ng" not in done.stdout + done.stderr


def test_a_plain_server_is_no_cluster(own_server, real_shell):
    url = f"redis+cluster://127.0.0.1:{own_server.port}"

    done = real_shell.run("speak", "hi", "--deadline", "1", "--url", url)

    assert done.returncode in {1, 2}
    assert "cluster" in done.stderr


def test_a_node_of_a_cluster_is_no_plain_server_for_other_shards(cluster, project):
    # given a plain URL of a node that does not have this project's keys
    node = cluster.nodes[0]
    notes = (f"key-{number}" for number in itertools.count())
    note = next(
        one
        for one in notes
        if node.ask("CLUSTER", "KEYSLOT", f"{project}:jot:{one}") >= _SLOTS // 3
    )
    with agentbus.connect(node.url, project=project, deadline=1) as bus:
        for call in (lambda: bus.speak("hi"), lambda: bus.recall(note)):
            with pytest.raises(ConfigError, match="is a node of a cluster") as refusal:
                call()

            assert "redis+cluster://" in str(refusal.value.hint)


def test_doctor_says_of_a_node_of_a_cluster_how_its_url_begins(cluster, real_shell):
    for node in cluster.nodes:
        done = real_shell.run("doctor", "--url", node.tcp_url)

        assert done.returncode == 6
        assert "write redis+cluster:// in the URL" in done.stdout
    assert real_shell.run("doctor", "--url", cluster.url).returncode == 0
