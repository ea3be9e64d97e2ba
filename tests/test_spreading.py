"""Tests that run in several processes are reported as if they ran in one."""

from __future__ import annotations

import pytest

from tests.servers import ROOT

pytest_plugins = ["pytester"]

_TESTS = """
    import os
    import signal
    import sys
    import warnings

    import pytest

    @pytest.fixture(scope="module")
    def shared():
        yield os.getpid()
        with open("torn_down", "a") as file:
            print(os.getpid(), file=file)

    @pytest.mark.parametrize("number", range(20))
    def test_passes(number, shared, tmp_path_factory):
        tmp_path_factory.mktemp(f"only-{number}", numbered=False)
        with open("ran", "a") as file:
            print(shared, tmp_path_factory.getbasetemp(), file=file)

    def test_fails():
        print("said before")
        assert [1, 2] == [1, 3]

    def test_dies():
        os.kill(os.getpid(), signal.SIGKILL)

    def test_warns():
        warnings.warn("beware", UserWarning)

    @pytest.mark.skip(reason="not today")
    def test_is_skipped():
        pass

    @pytest.fixture
    def broken():
        yield
        raise OSError("cannot be given back")

    def test_is_not_torn_down(broken):
        pass
"""


@pytest.fixture
def ran(pytester, monkeypatch):
    """Return a function that runs the tests in three processes."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plugins = ("-p", "no:cacheprovider", "-p", "tests.processes", "--processes", "3")
    return lambda *words: pytester.runpytest_subprocess(*plugins, *words)


def test_each_test_is_reported_once_with_what_it_said_and_why_it_failed(pytester, ran):
    pytester.makepyfile(_TESTS)
    done = ran("-rA")
    done.assert_outcomes(passed=22, failed=2, skipped=1, errors=1, warnings=1)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*assert [[]1, 2] == [[]1, 3]*", "*said before*"])
    done.stdout.fnmatch_lines(["*UserWarning: beware*"])
    done.stdout.fnmatch_lines(["*The process that ran *::test_dies ended with -9.*"])
    done.stdout.fnmatch_lines(["*OSError: cannot be given back*"])
    done.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_processes_share_neither_fixtures_nor_directories_and_tear_theirs_down(pytester, ran):
    pytester.makepyfile(_TESTS)
    ran("-k", "passes").assert_outcomes(passed=20)
    lines = (pytester.path / "ran").read_text().splitlines()
    processes = {line.split()[0] for line in lines}
    # Each with a directory of its own, and gone as one that was not interrupted.
    assert len(processes) == len(set(lines)) == 3
    assert sorted((pytester.path / "torn_down").read_text().split()) == sorted(processes)


def test_no_further_test_is_handed_out_after_the_first_failure(pytester, ran):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(1000))
        def test_fails(number):
            assert number < 0
        """
    )
    done = ran("-x")
    assert done.ret == 1
    assert done.parseoutcomes()["failed"] < 20
    done.stdout.fnmatch_lines(["*stopping after * failures*"])


def test_files_that_cannot_be_collected_fail_the_run(pytester, ran):
    pytester.makepyfile("import nowhere")
    done = ran()
    done.assert_outcomes(errors=1)
    assert done.ret == 2
