"""`report` writes text, JSON, CSV and a page, and refuses what it cannot do before Spark starts."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from agentbus.commands import report
from agentbus.commands._main import run
from agentbus.commands._parser import parse
from agentbus.pipeline import reports
from agentbus.pipeline.reports import NAMES
from tests.pipeline.archives import row, write_archive
from tests.pipeline.talk import HOSTILE, gap, said, task

ROWS = [
    *(said("ada", 0), said("bob", 2000), said(HOSTILE[0], 3000, "build")),
    *(said("ada", 4000, event="announced", flag="f", token=1), task("mail", 5000, "ada")),
    *(said("ada", 6000, event="satisfied", flag="f", token=1), gap("q:mail", 7000, 3)),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A small archive."""
    path = tmp_path_factory.mktemp("archive") / "bus"
    write_archive(path, ROWS)
    return path


@pytest.fixture
def ask(spark, capfd, monkeypatch):
    """Run the verb in this process, on the tests' own Spark; returns the code, stdout and stderr."""
    # A session that is open is used, and others need it after the verb.
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)

    def _ask(*words: str):
        capfd.readouterr()
        code = run(["report", *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return _ask


def test_text_shows_the_first_rows_of_each_table_and_says_what_was_lost(ask, archive):
    code, out, err = ask("flags", archive)

    assert code == 0
    assert out.startswith("project demo\n")
    assert "How long flags were held" in out
    assert any(line.split()[:4] == ["f", "1", "2", "s"] for line in out.splitlines())
    assert "3 entries were gone before they could be archived" in err


def test_json_is_a_row_a_line_with_stable_keys(ask, archive):
    code, out, _ = ask("conversations", archive, "--json", "--table", "pairs")

    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {
            "report": "conversations",
            "table": "pairs",
            "speaker": "bob",
            "answered": "ada",
            "answers": 1,
            "p50_ms": 2000.0,
            "p90_ms": 2000.0,
        }
    ]


def test_a_percentile_below_a_millisecond_is_a_bound_in_text_and_null_elsewhere(ask, tmp_path):
    counts = {"group": "default", "worker": "w", "ran": "[9,0,0,1]", "busy_ms": "5.3"}
    columns = {"queue": "mail", "event": "work", "fields": counts}
    write_archive(tmp_path, [row("metrics", "1763622000000-0", **columns)])
    words = ("tasks", tmp_path, "--table", "timings")

    (_, text, _), (_, json_, _), (_, csv_, _) = (
        ask(*words, *form) for form in ((), ("--json",), ("--csv",))
    )

    assert "0.530 ms  < 1 ms  < 1 ms  7.6 ms" in text
    assert "\n1 entry, " in text
    assert json.loads(json_)["p50_ms"] is None
    (got,) = csv.DictReader(io.StringIO(csv_))
    assert (got["p50_ms"], got["p90_ms"], float(got["p99_ms"])) == ("", "", pytest.approx(7.6))


def test_csv_is_one_table_that_a_reader_reads(ask, archive):
    code, out, _ = ask("activity", archive, "--csv", "--table", "times", "--since", "2025-11-20")

    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [(one["time"], one["messages"], one["events"], one["tasks"]) for one in rows] == [
        ("2025-11-20T07:00:00.000Z", "1", "0", "0"),
        ("2025-11-20T07:00:02.000Z", "1", "0", "0"),
        ("2025-11-20T07:00:03.000Z", "1", "0", "0"),
        ("2025-11-20T07:00:04.000Z", "0", "1", "0"),
        ("2025-11-20T07:00:05.000Z", "0", "0", "1"),
        ("2025-11-20T07:00:06.000Z", "0", "1", "0"),
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_in_csv_is_a_formula(text):
    """Agents' names and topics are anybody's; a spreadsheet would compute them."""
    assert report._cell(text) == f"'{text}"
    assert [report._cell(value) for value in ("a=1", "", -1, 1.5, None)] == [
        "a=1",
        "",
        -1,
        1.5,
        None,
    ]


def test_csv_of_several_tables_asks_which_one(ask, archive):
    code, out, err = ask("activity", archive, "--csv")

    assert (code, out) == (2, "")
    assert "--table agents|times|heat|topics" in err


def test_a_table_that_is_unknown_is_refused_with_the_list(ask, archive):
    code, _, err = ask("flags", archive, "--table", "x")

    assert code == 2
    assert "contention" in err


def test_a_page_is_written_whole(ask, archive, tmp_path):
    code, out, _ = ask("flags", archive, "--html", tmp_path / "page.html")

    assert (code, out) == (0, f"{tmp_path}/page.html\n")
    page = (tmp_path / "page.html").read_text()
    assert page.endswith("</html>\n")
    assert "<h1>demo</h1>" in page
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html"] == ["page.html"]


# -- refused before Spark starts -----------------------------------------------------------------------


def test_a_page_without_the_library_that_writes_it_names_the_extra(archive, capfd, monkeypatch):
    for name in ("page", "svg", "templates"):
        monkeypatch.delitem(sys.modules, f"{reports.__name__}.{name}", raising=False)
        monkeypatch.delattr(reports, name, raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)

    assert run(["report", "flags", str(archive), "--html", "page.html"]) == 2

    said_so = capfd.readouterr().err
    assert "needs the package jinja2" in said_so
    assert "pip install 'agentbus-toolkit[pipeline]'" in said_so


@pytest.mark.parametrize(
    ("words", "code", "said_so"),
    [
        (["all"], 2, "path of an archive"),
        (["all", "no/such/archive"], 5, "no archive"),
        (["all", ".", "--csv", "--json"], 2, "exclude each other"),
        (["all", "{archive}", "--html", "no/such/page.html"], 2, "no directory"),
        (["all", "--live", "--html", "page.html"], 2, "--live and --html exclude each other"),
        (["all", "--live", "--csv"], 2, "--live and --csv exclude each other"),
        (["all", "--live", "--table", "agents"], 2, "--live and --table exclude each other"),
        (["all", "--live", "--until", "1m"], 2, "--live and --until exclude each other"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_what_cannot_be_is_refused_at_once(capfd, archive, words, code, said_so):
    words = [word.format(archive=archive) for word in words]
    found = parse(["report", *words])
    assert found is not None

    assert run(["report", *words]) == code

    assert said_so in capfd.readouterr().err


def test_a_report_that_there_is_not_is_refused_with_those_that_there_are(capfd):
    assert run(["report", "nonsense", "."]) == 2

    assert "anomalies" in capfd.readouterr().err


def test_every_report_is_named_in_the_help():
    for name in NAMES:
        assert name in report.VERB.text


@pytest.mark.slow
def test_a_page_from_the_shell_is_quiet_and_says_where_it_is(real_shell, archive, tmp_path):
    page = str(tmp_path / "p.html")

    done = real_shell.run("report", "activity", str(archive), "--html", page, timeout=240)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{page}\n"
    assert done.stderr == ""
    assert "&lt;script&gt;" in (tmp_path / "p.html").read_text()
