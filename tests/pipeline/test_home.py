"""Where Spark starts from: directories of links to what is installed, and classes that were kept."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import types

import pyspark
import pytest

from agentbus.pipeline.spark import classes, home, java
from tests.pipeline import clusters

START = """
import json, sys
from agentbus.pipeline.spark.session import session
spark = session("local[1]", conf=json.loads(sys.argv[1]))
"""
COUNT = f"{START}spark.range(3).count()"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, at a path with a blank and a quote."""
    place = tmp_path / 'the "cache"'
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return place


def test_python_in_spark_imports_what_is_installed_and_compiled(spark):
    def found(_n: int) -> tuple[str, str]:
        import py4j
        import pyspark

        return os.path.realpath(pyspark.__cached__), os.path.realpath(py4j.__file__)

    ((compiled, py4j),) = spark.sparkContext.parallelize([1], 1).map(found).collect()

    assert compiled == os.path.realpath(pyspark.__cached__)
    assert os.path.exists(compiled)
    assert py4j == os.path.realpath(sys.modules["py4j"].__file__ or "")


@pytest.mark.usefixtures("cache")
def test_many_that_make_the_links_at_once_find_them_whole():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        homes = set(pool.map(lambda _: home.path(), range(64)))

    (made,) = map(pathlib.Path, homes)
    assert sorted(os.listdir(made)) == sorted(os.listdir(home.installed()))
    assert os.listdir(made.parent) == ["home"]


def test_a_cache_that_cannot_be_written_to_is_no_hindrance(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))

    made = home.path()

    assert not made.startswith(str(tmp_path))
    assert os.access(f"{made}/bin/spark-submit", os.X_OK)


@pytest.mark.usefixtures("cache")
def test_without_a_file_of_classes_java_gets_no_options_for_it():
    assert classes.options(java.find()) == []


@pytest.mark.slow
def test_spark_starts_and_says_nothing_if_java_cannot_use_the_file(cache, tmp_path):
    file = classes.path(java.find())
    file.write_bytes(b"no archive of classes")

    done = clusters.run(START, "{}", home=tmp_path / "home", XDG_CACHE_HOME=str(cache))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("cache")
def test_each_release_of_a_java_has_a_file_of_its_own_by_the_switch_that_it_knows(tmp_path):
    program = tmp_path / "java"
    program.touch()
    first = classes.path(java.Java(str(program), 24, ""))
    os.utime(program, ns=(1, 1))
    second = classes.path(java.Java(str(program), 25, ""))
    second.touch()

    assert first != second
    assert not classes.options(java.Java(str(program), 24, ""))[0].startswith('"-XX:AOTCache=')
    assert (
        classes.options(java.Java(str(program), 25, ""))[0] == f'"-XX:AOTCache={_quoted(second)}"'
    )


def _quoted(path: pathlib.Path) -> str:
    return str(path).replace('"', '\\"')


def test_nothing_is_prepared_where_nothing_can_be_kept(shell, tmp_path):
    (tmp_path / "file").touch()

    done = shell.run("spark", "--prepare", env={"XDG_CACHE_HOME": str(tmp_path / "file")})

    assert done.returncode == 2
    assert f"{tmp_path}/file/agentbus cannot be written to" in done.stderr


@pytest.fixture
def prepared(monkeypatch, tmp_path):
    """Return the processes that are started to store the classes of a Java that has none."""
    started = []
    found = java.find()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTBUS_SPARK_PREPARE")
    monkeypatch.setattr(classes, "_started", [])
    monkeypatch.setattr(
        classes,
        "subprocess",
        types.SimpleNamespace(
            DEVNULL=subprocess.DEVNULL,
            Popen=lambda words, **options: started.append((words, options)),
        ),
    )
    classes.options(found)
    return found, started


def test_the_first_session_has_its_classes_stored_once(prepared, monkeypatch):
    found, started = prepared

    classes.prepare_later()
    classes.prepare_later()

    ((words, options),) = started
    assert words[-1].endswith("run(['spark', '--prepare'])")
    assert options["start_new_session"]
    # The process finds the same Java, and so writes the file that the next session looks for.
    monkeypatch.setenv("JAVA_HOME", options["env"]["JAVA_HOME"])
    assert classes.path(java.find()) == classes.path(found)


def test_a_storing_that_came_to_nothing_is_tried_again_after_an_hour(prepared):
    found, started = prepared
    classes.prepare_later()
    os.utime(classes.path(found).with_suffix(".preparing"), (0, 0))

    classes.prepare_later()

    assert len(started) == 2


def test_classes_are_not_stored_where_that_is_off_or_was_done(prepared, monkeypatch):
    found, started = prepared
    with monkeypatch.context() as off:
        off.setenv("AGENTBUS_SPARK_PREPARE", "off")
        classes.prepare_later()
    classes.path(found).touch()

    classes.prepare_later()

    assert started == []


@pytest.mark.slow
def test_spark_starts_from_the_classes_that_were_kept(shell, cache, tmp_path):
    options = {"env": {"XDG_CACHE_HOME": str(cache)}, "timeout": 600}
    (before,) = shell.records("spark", **options)
    ((made,), (same,)) = (shell.records("spark", "--prepare", **options) for _ in range(2))
    log = tmp_path / "log"
    listing = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={log}"}

    done = clusters.run(
        COUNT, json.dumps(listing), home=tmp_path / "home", XDG_CACHE_HOME=str(cache)
    )

    assert done.returncode == 0, done.stderr
    assert before["classes"] is None
    assert made == same
    assert made["classes"] == str(classes.path(java.find()))
    assert made["bytes"] == os.path.getsize(made["classes"])
    spark = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    # Java keeps no lambda that may be sent elsewhere, and such are all of Scala's.
    loaded = [line for line in spark if "$$Lambda" not in line]
    kept = [line for line in loaded if "shared objects file" in line]
    assert len(kept) > 0.9 * len(loaded)
