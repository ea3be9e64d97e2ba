"""The units of systemd and the manifests of Kubernetes are well-formed, and call what there is."""

from __future__ import annotations

import configparser
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest
import yaml

from agentbus.commands._parser import parse
from tests.servers import Shell, program

EXAMPLES = pathlib.Path(__file__).parents[1] / "docs/examples"
UNITS = sorted((EXAMPLES / "systemd").iterdir())
# Services of a host, each with a user of its own.
SERVICES = sorted((EXAMPLES / "deploy").glob("*.service"))
DEPLOY = (EXAMPLES.parent / "how-to/deploy.md").read_text()
MANIFESTS = sorted((EXAMPLES / "kubernetes").iterdir())
IMAGE = (EXAMPLES / "deploy/Dockerfile").read_text()
COMPOSE = yaml.safe_load((EXAMPLES / "deploy/compose.yml").read_text())
OBJECTS = list(yaml.safe_load_all((EXAMPLES / "deploy/kubernetes.yml").read_text()))
DEPLOYMENTS = [each for each in OBJECTS if each["kind"] == "Deployment"]


def unit(path: pathlib.Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=True)
    found.optionxform = str
    found.read_string(path.read_text())
    return found


def containers(manifest):
    spec = manifest["spec"]
    while "containers" not in spec:
        spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec["template"]["spec"]
    return spec["containers"]


@pytest.mark.parametrize("path", [p for p in UNITS if p.suffix == ".service"], ids=lambda p: p.name)
def test_a_unit_calls_what_there_is_and_is_not_restarted_where_it_would_fail_again(path):
    service = unit(path)["Service"]

    program, *words = shlex.split(service["ExecStart"])

    assert program == "%h/.local/bin/agentbus"
    assert parse(words) is not None
    if "--continuous" in words:
        assert service["RestartPreventExitStatus"].split() == ["2", "4"]
        assert service["Restart"] == "on-failure"


@pytest.mark.parametrize("path", SERVICES, ids=lambda p: p.name)
def test_a_service_of_a_host_calls_what_there_is_and_knows_its_project(path):
    service = unit(path)["Service"]

    program, *words = shlex.split(service["ExecStart"])

    assert program == "/opt/shop/venv/bin/agentbus"
    assert parse(words) is not None
    # A wrong setting is not tried again and again, and names the project.
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["EnvironmentFile"] == "/etc/agentbus/shop.env"
    assert f"`{path.name}`" in DEPLOY
    if "--grace" in words:
        grace = int(words[words.index("--grace") + 1])
        assert int(service["TimeoutStopSec"]) > grace


def test_each_timer_has_its_service():
    timers = [path for path in UNITS if path.suffix == ".timer"]

    assert [path.stem for path in timers] == ["agentbus-compact", "agentbus-report"]
    for path in timers:
        assert path.with_suffix(".service") in UNITS
        assert unit(path)["Timer"]["OnCalendar"].endswith(" UTC")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    for path in [*UNITS, *SERVICES]:
        # The programs and the user are not on this machine.
        text = path.read_text().replace("%h/.local/bin/agentbus", "/bin/true")
        text = text.replace("/opt/shop/venv/bin/agentbus", "/bin/true").replace("=shop", "=root")
        name = path.name.replace("@.", "@1.")
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )

    mine = [line for line in done.stderr.splitlines() if "agentbus-" in line]
    assert mine == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "manifest",
    [*(yaml.safe_load(path.read_text()) for path in MANIFESTS), *OBJECTS],
    ids=lambda each: f"{each['kind']} {each['metadata']['name']}",
)
def test_kubernetes_knows_every_field_of_a_manifest(manifest):
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="the dependency group 'manifests' has it"
    )

    for version in ("1.31", schemas.latest_version()):
        schemas.validate(manifest, version, strict=True)
        with pytest.raises(schemas.ValidationError):
            schemas.validate(manifest | {"specs": {}}, version, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_a_manifest_calls_what_there_is_and_mounts_what_it_names(path):
    manifest = yaml.safe_load(path.read_text())

    assert (manifest["apiVersion"], manifest["kind"]) == (
        ("apps/v1", "Deployment") if path.stem == "archive" else ("batch/v1", "CronJob")
    )
    (container,) = containers(manifest)
    assert parse(container["args"]) is not None
    assert container["volumeMounts"] == [{"name": "bus", "mountPath": "/data"}]
    if manifest["kind"] == "CronJob":
        job = manifest["spec"]["jobTemplate"]["spec"]
        (rule,) = job["podFailurePolicy"]["rules"]
        assert rule["onExitCodes"]["values"] == [2, 4]
        # Kubernetes takes such a policy with this alone.
        assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("manifest", DEPLOYMENTS, ids=lambda each: each["metadata"]["name"])
def test_a_deployment_calls_what_there_is_and_has_no_more_rights_than_it_needs(manifest):
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert parse(container["args"]) is not None
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    # A password stands in the secret alone.
    (url,) = [each for each in container["env"] if each["name"] == "AGENTBUS_URL"]
    assert set(url) == {"name", "valueFrom"}
    assert "--grace" not in container["args"] or pod["terminationGracePeriodSeconds"] > 60


def test_the_probe_of_a_worker_passes_while_it_works_or_its_server_is_away(real_shell: Shell):
    (worker,) = [each for each in DEPLOYMENTS if each["metadata"]["name"] == "agentbus-worker"]
    probe = worker["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]

    def probed(**more: str) -> int:
        path = f"{pathlib.Path(program()).parent}:{os.environ['PATH']}"
        environment = {**real_shell.environment, "AGENTBUS_AGENT": "pod-1", "PATH": path, **more}
        return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode

    absent = probed()
    task = real_shell.ok("publish", "jobs", "hello").strip()
    with real_shell.start("work", "jobs", "--agent", "pod-1", "--", "cat") as running:
        real_shell.ok("result", task, "--wait", "60")
        working = probed()
        away = probed(AGENTBUS_URL="redis://127.0.0.1:1", AGENTBUS_DEADLINE="0.2")
        running.kill()

    assert (absent, working, away) == (1, 0, 0)


def test_the_image_and_the_laptop_call_what_there_is_without_root():
    lines = IMAGE.splitlines()
    last = lines.index("FROM python:3.13-slim-trixie")

    assert "USER 10001" in lines[last:]
    assert 'ENTRYPOINT ["agentbus"]' in lines[last:]
    for service in COMPOSE["services"].values():
        # No port is open to other machines: the server has no password.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if "build" in service:
            assert parse(service["command"]) is not None
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
