"""A backend that another package registers by an entry point serves the URLs of its scheme."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

import agentbus
import agentbus.aio
from agentbus.errors import ConfigError, UnknownBackend
from tests.servers import Server, Shell

_MODULE = """
from agentbus.backends import Backend, Target, Url


class Tunnel(Backend):
    wraps = True

    def __init__(self, url: Url, project: str) -> None:
        self.project = project
        target = Target(path=url.path, password=url.password)
        super().__init__(url.masked(), lambda within: target)


def broken(url: Url, project: str) -> Backend:
    raise RuntimeError(f"{url.password} was refused")


def nothing(url: Url, project: str) -> None:
    return None
"""
_POINTS = """
[agentbus.backends]
tunnel = tunnels:Tunnel
redis = tunnels:Tunnel
broken = tunnels:broken
nothing = tunnels:nothing
absent = tunnels:absent
"""


def install(place: pathlib.Path, name: str, points: str, module: str = "") -> None:
    """Install a distribution with a module and entry points, as an installer leaves it."""
    about = place / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    (about / "RECORD").write_text("")
    if module:
        (place / f"{name}.py").write_text(module)


@pytest.fixture
def packages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A directory on the path, in which the distribution `tunnels` is installed."""
    place = tmp_path / "site"
    install(place, "tunnels", _POINTS, _MODULE)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "tunnels", raising=False)
    return place


def url_of(server: Server, scheme: str = "tunnel") -> str:
    return f"{scheme}://{server.socket}"


@pytest.mark.usefixtures("packages")
async def test_both_buses_use_a_registered_backend(valkey: Server, project: str) -> None:
    with agentbus.connect(url_of(valkey), project=project, agent="ada") as bus:
        assert type(bus.backend).__name__ == "Tunnel"
        assert bus.project == f"{{{project}}}", "its scripts need all keys on one shard"
        bus.speak("hi")
        assert bus.backend.project == project
    async with agentbus.aio.connect(url_of(valkey), project=project, agent="bob") as abus:
        assert [said.text async for said in abus.overhear()] == ["hi"]
        await abus.clear()


def test_the_shell_uses_a_registered_backend(
    packages: pathlib.Path, valkey: Server, shell: Shell
) -> None:
    shell.environment["PYTHONPATH"] = str(packages)

    assert shell.ok("--url", url_of(valkey), "publish", "mail", "x").endswith("@mail\n")
    assert shell.ok("--url", url_of(valkey), "clear", "--force")


@pytest.mark.usefixtures("packages")
def test_a_built_in_scheme_is_not_replaced(valkey: Server) -> None:
    bus = agentbus.connect(valkey.tcp_url)

    assert type(bus.backend).__name__ == "Backend"


@pytest.mark.usefixtures("packages")
def test_an_unknown_scheme_is_answered_with_the_registered_ones() -> None:
    with pytest.raises(UnknownBackend) as refusal:
        agentbus.connect("nats://localhost")

    assert "memory://, absent://, broken://, nothing://, tunnel://" in str(refusal.value.hint)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("broken", r"the backend tunnels:broken cannot be used \(RuntimeError\)"),
        ("nothing", r"the backend tunnels:nothing returned None, not a Backend"),
        ("absent", r"the backend tunnels:absent cannot be loaded \(AttributeError: .*absent"),
    ],
)
def test_a_backend_that_does_not_work_is_a_configuration_error(scheme: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        agentbus.connect(f"{scheme}://:s3cret@host")

    assert "s3cret" not in refusal.value.message


def test_two_packages_with_one_scheme_are_refused(packages: pathlib.Path) -> None:
    install(packages, "others", "[agentbus.backends]\ntunnel = others:Tunnel\n")

    with pytest.raises(ConfigError, match="two packages register tunnel://"):
        agentbus.connect(f"tunnel://{os.devnull}")
