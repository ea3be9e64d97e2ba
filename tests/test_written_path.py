"""Files that a user names in a repository: no link that came with it leads what is written out of it."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from agentbus.commands import _spark
from agentbus.core import written_path
from agentbus.core.errors import Refused
from tests.installing import User

# For each verb that writes into a file or a directory that it is given: its words, and the link among them.
WRITES = {
    "report": (["report", "tasks", "archive", "--html", "out/page.html"], "out"),
    "report's page": (["report", "tasks", "archive", "--html", "page.html"], "page.html"),
    "schemas": (["events", "check", "string", "agreed.json", "--accept"], "agreed.json"),
    "schemas in a directory": (["events", "check", "string", "out/a.json", "--accept"], "out"),
    "archive": (["archive", "out/bus"], "out"),
    "archive as a URL": (["archive", "file://ROOT/out"], "out"),
    "compacted archive": (["archive", "compact", "out"], "out"),
    "released archive": (["archive", "release", "out"], "out"),
    "supervised archive": (["supervise", "--archive", "out"], "out"),
    "heartbeats": (["supervise", "string", "--heartbeat-dir", "out"], "out"),
}


@pytest.fixture
def user(tmp_path: pathlib.Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize("case", WRITES)
def test_a_verb_writes_through_no_link_out_of_the_repository(user, case):
    words, name = WRITES[case]
    target = user.home / "theirs"
    if "." in name:
        target.write_text("{}\n")
    else:
        target.mkdir()
    (user.root / name).symlink_to(target)
    before = user.files()

    done = user.run(*(word.replace("ROOT", str(user.root)) for word in words))

    assert done.code == 4, done.err
    assert f" is {target}".encode() in done.err
    assert user.files() == before


@pytest.mark.parametrize(
    ("link", "target", "named", "refused"),
    [
        ("out", "inside", "out/page", False),
        ("out", "../outside", "out/page", True),
        ("out", ".git/hooks", "out/page", True),
        ("out", "../outside", "../outside/page", False),
        ("out", "../outside", "inside/page", False),
        ("out", "../shop-2", "out/page", True),
        ("out", "out", "out/page", False),
    ],
)
def test_a_link_may_lead_to_other_files_of_the_repository(
    user, monkeypatch, link, target, named, refused
):
    (user.root / "inside").mkdir()
    (user.root / link).symlink_to(target)
    monkeypatch.chdir(user.root)

    if refused:
        with pytest.raises(Refused, match="which is not a file of the repository"):
            written_path.check(named)
    else:
        written_path.check(named)


def test_outside_of_a_repository_links_are_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "out").symlink_to("/nowhere")
    monkeypatch.chdir(tmp_path)

    written_path.check("out/page")


def test_a_umask_of_0_lets_verbs_of_the_pipeline_write_nothing_for_everybody(tmp_path):
    umask = os.umask(0)
    try:
        with _spark.extra():
            (tmp_path / "archive").mkdir()
            (tmp_path / "archive" / "log").write_text("said")
    finally:
        os.umask(umask)

    made = [tmp_path / "archive", tmp_path / "archive" / "log"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o775, 0o664]
