"""`work --worktree`: the program of each task runs in a git worktree."""

from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from agentbus.client.queue import Queue
from tests.servers import Shell

COMMIT = "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm work"


def git(repository: pathlib.Path, *words: str) -> str:
    named = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(
        ["git", "-C", repository, *named, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "shop"
    (root / "src").mkdir(parents=True)
    (root / "src" / "prices.py").write_text("gross = 1\n")
    (root / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "init", "-q", "-b", "main", root], check=True)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Open a shop")
    return root


@pytest.fixture
def fifo(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="bob") as opened:
        yield opened


@pytest.fixture
def queue(bus: agentbus.Bus) -> Queue:
    return bus.queue("todo")


def work(
    shell: Shell, repository: pathlib.Path, script: str, *options: str, **given: Any
) -> subprocess.CompletedProcess[str]:
    return shell.run(
        *("work", "todo", "--worktree", "--drain", "--attempts", "1", *options),
        *("--", "sh", "-c", script),
        cwd=repository,
        **given,
    )


def branches(repository: pathlib.Path) -> list[str]:
    return git(repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


def place(repository: pathlib.Path, task_id: str) -> pathlib.Path:
    return repository.with_name("shop-worktrees") / task_id


def test_a_program_runs_on_a_new_branch_beside_the_repository(real_shell, repository, queue):
    task_id = queue.publish("look")

    done = work(real_shell, repository, 'pwd; git branch --show-current; echo "$AGENTBUS_TASK_ID"')

    assert done.returncode == 0, done.stderr
    result = queue.result(task_id)
    path = place(repository, task_id)
    assert result["output"].split("\n") == [str(path), f"agentbus/{task_id}", task_id]
    assert (result["branch"], result["worktree"]) == (None, None)
    assert not path.parent.exists()
    assert branches(repository) == ["main"]


def test_commits_stay_on_their_branch_which_the_result_names(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    work(real_shell, repository, f"echo 'gross = 119' > src/prices.py; {COMMIT}")

    branch = queue.result(task_id)["branch"]
    assert branch == f"agentbus/{task_id}"
    assert git(repository, "show", f"{branch}:src/prices.py") == "gross = 119"
    assert not place(repository, task_id).exists()
    assert (repository / "src/prices.py").read_text() == "gross = 1\n"


@pytest.mark.parametrize(
    "change",
    ["echo x > new.txt", "echo x >> src/prices.py", "git rm -q src/prices.py"],
    ids=["untracked", "changed", "staged"],
)
def test_a_worktree_with_changes_stays_and_is_named(real_shell, repository, queue, change):
    # A user who does not want to see untracked files does not want to lose them either.
    git(repository, "config", "status.showUntrackedFiles", "no")
    task_id = queue.publish("add VAT")

    done = work(real_shell, repository, change)

    path = str(place(repository, task_id))
    assert queue.result(task_id)["worktree"] == path
    assert path in done.stderr
    assert git(pathlib.Path(path), "status", "--porcelain", "-uall")


def test_commits_on_no_branch_keep_the_worktree(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    work(real_shell, repository, f"git checkout -q --detach; echo x > new.txt; {COMMIT}")

    assert queue.result(task_id)["worktree"] == str(place(repository, task_id))
    assert (place(repository, task_id) / "new.txt").exists()


def test_commits_on_another_branch_are_named_by_it(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    work(real_shell, repository, f"git switch -qc vat; echo x > new.txt; {COMMIT}")

    assert (queue.result(task_id)["branch"], branches(repository)) == ("vat", ["main", "vat"])


def test_a_branch_that_was_merged_goes(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    work(
        real_shell,
        repository,
        f"echo x > new.txt; {COMMIT}; git -C {repository} merge -q HEAD@{{0}} $(git rev-parse HEAD)",
    )

    assert queue.result(task_id)["branch"] is None
    assert branches(repository) == ["main"]
    assert (repository / "new.txt").exists()


def test_with_keep_every_worktree_stays(real_shell, repository, queue):
    task_id = queue.publish("look")

    work(real_shell, repository, "true", "--keep")

    assert queue.result(task_id)["worktree"] == str(place(repository, task_id))
    assert (place(repository, task_id) / "src/prices.py").exists()


def test_files_that_git_ignores_are_no_work(real_shell, repository, queue):
    task_id = queue.publish("look")

    work(real_shell, repository, "mkdir build; touch build/prices.o")

    assert queue.result(task_id)["worktree"] is None
    assert not place(repository, task_id).exists()


def test_the_letter_of_a_task_that_failed_names_its_worktree_and_branch(
    real_shell, repository, queue
):
    dirty = queue.publish("dirty")
    done = work(real_shell, repository, "touch new.txt; echo oops >&2; exit 1")
    committed = queue.publish("committed")
    work(real_shell, repository, f"touch new.txt; {COMMIT}; exit 65")

    first, second = queue.dead_letters()
    assert str(place(repository, dirty)) in first.error
    assert str(place(repository, dirty)) in done.stderr
    assert f"'agentbus/{committed}'" in second.error
    assert not place(repository, committed).exists()


def test_a_retry_goes_on_in_the_worktree_that_the_last_attempt_left(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    done = work(
        real_shell,
        repository,
        f"test -e new.txt && {COMMIT} && exit; touch new.txt; exit 1",
        "--attempts",
        "2",
    )

    assert f"goes on in the worktree {place(repository, task_id)}" in done.stderr
    branch = queue.result(task_id)["branch"]
    assert "new.txt" in git(repository, "ls-tree", "--name-only", branch)


def test_a_retry_goes_on_with_the_commits_of_the_last_attempt(real_shell, repository, queue):
    task_id = queue.publish("add VAT")

    work(
        real_shell,
        repository,
        f"test -e new.txt && exit; touch new.txt; {COMMIT}; exit 1",
        "--attempts",
        "2",
    )

    branch = queue.result(task_id)["branch"]
    assert "new.txt" in git(repository, "ls-tree", "--name-only", branch)


def test_what_a_killed_worker_left_is_taken_up_by_the_next_one(real_shell, repository, queue, fifo):
    task_id = queue.publish("add VAT")
    first = real_shell.start(
        *("work", "todo", "--worktree", "--visibility", "2", "--"),
        *("sh", "-c", f"echo half > new.txt; echo > {fifo}; sleep 60"),
        cwd=repository,
    )
    fifo.read_text()
    first.kill()
    first.communicate()

    done = work(real_shell, repository, f"cat new.txt; {COMMIT}", "--attempts", "3")

    assert f"goes on in the worktree {place(repository, task_id)}" in done.stderr
    assert queue.result(task_id) == {
        "output": "half",
        "branch": f"agentbus/{task_id}",
        "worktree": None,
    }


def test_a_worktree_that_git_had_not_finished_is_made_again(real_shell, repository, queue):
    task_id = queue.publish("look")
    path = place(repository, task_id)
    git(repository, "worktree", "add", "-q", "-b", f"agentbus/{task_id}", str(path))
    git(repository, "worktree", "lock", "--reason", "initializing", str(path))
    (path / "src/prices.py").unlink()

    done = work(real_shell, repository, "cat src/prices.py")

    assert queue.result(task_id)["output"] == "gross = 1", done.stderr
    assert not path.exists()


def test_a_worktree_that_was_deleted_by_hand_is_made_again(real_shell, repository, queue):
    task_id = queue.publish("look")
    path = place(repository, task_id)
    git(repository, "worktree", "add", "-q", "-b", f"agentbus/{task_id}", str(path))
    subprocess.run(["rm", "-r", path], check=True)

    done = work(real_shell, repository, "cat src/prices.py")

    assert queue.result(task_id)["output"] == "gross = 1", done.stderr


def test_files_of_others_in_its_place_are_not_touched(real_shell, repository, queue):
    task_id = queue.publish("look")
    path = place(repository, task_id)
    path.mkdir(parents=True)
    (path / "precious.txt").write_text("mine")

    work(real_shell, repository, "true")

    assert (path / "precious.txt").read_text() == "mine"
    (letter,) = queue.dead_letters()
    assert "already exists" in letter.error


def test_a_worktree_in_which_another_worker_runs_the_task_is_left_to_it(
    real_shell, repository, bus, queue
):
    path = place(repository, task_id := queue.publish("look"))
    path.mkdir(parents=True)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    worker = real_shell.start("work", "todo", "--worktree", "--", "true", cwd=repository)
    assert worker.stderr is not None
    lines = iter(worker.stderr.readline, "")

    assert any(f"{path} is in use" in line for line in lines)
    worker.terminate()
    worker.communicate()
    assert bus.task(task_id).attempts == 0
    os.close(lock)


def test_the_program_runs_in_the_directory_in_which_the_worker_was_started(
    real_shell, repository, queue
):
    task_id = queue.publish("look")

    work(real_shell, repository / "src", "pwd", env={"GIT_DIR": str(repository / ".git")})
    assert queue.result(task_id)["output"] == str(place(repository, task_id) / "src")


def test_a_name_that_no_branch_can_have_is_changed(real_shell, repository, bus):
    names = ("a b", "a..b~^", "ä/b")
    ids = [bus.queue(name).publish(1, priority="high") for name in names]
    for name in names:
        done = real_shell.run(
            *("work", name, "--worktree", "--drain", "--", "git", "branch", "--show-current"),
            cwd=repository,
        )
        assert done.returncode == 0, done.stderr
    results = [
        bus.queue(name).result(task_id)["output"] for name, task_id in zip(names, ids, strict=True)
    ]

    assert len({*results}) == 3
    assert all(result.startswith("agentbus/") for result in results)


@pytest.mark.parametrize(
    "options",
    [
        ("todo", "--keep", "--", "true"),
        ("todo", "--worktree", "--batch", "2", "--", "true"),
        ("todo", "--worktree", "--handler", "os:getcwd"),
        ("shop:tasks", "--worktree"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(real_shell, repository, options):
    assert real_shell.run("work", *options, cwd=repository).returncode == 2


def test_without_a_repository_or_a_commit_no_task_is_taken(real_shell, tmp_path, bus, queue):
    task_id = queue.publish("look")
    empty = tmp_path / "empty"
    subprocess.run(["git", "init", "-q", empty], check=True)

    for directory in (tmp_path, empty):
        refused = work(real_shell, directory, "true")
        assert refused.returncode == 2
        assert "--worktree needs a repository with a commit" in refused.stderr
    assert bus.task(task_id).state == "waiting"
