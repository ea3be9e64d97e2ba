"""Which project a directory belongs to: a repository's own, the same in its clones and work trees."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, strategies as st

from agentbus.core import names, repository, settings
from agentbus.errors import ConfigError, InvalidName
from tests import profiles  # noqa: F401 (loads the profile)
from tests.repositories import SOMEBODY, give_away, make_repository

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: pathlib.Path) -> Git:
    """Return a function that runs git in a directory below the test's."""

    def run(*words: str, at: str = ".") -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=tmp_path / at,
            env={**os.environ, "GIT_ALLOW_PROTOCOL": "file", "GIT_CONFIG_NOSYSTEM": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.removesuffix("\n")

    return run


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that goes to a directory below the test's and returns its project."""

    def project(at: str) -> str:
        monkeypatch.chdir(tmp_path / at)
        return settings.resolve().project

    return project


def made(git: Git, at: str, origin: str | None = None) -> None:
    """Make a repository with a commit, and an origin that nobody fetches from."""
    git("init", "-q", at)
    git("commit", "-q", "--allow-empty", "-m", "x", at=at)
    if origin is not None:
        git("remote", "add", "origin", origin, at=at)


# -- by the URL of origin --


def test_repositories_of_one_name_have_projects_of_their_own(git, here):
    made(git, "x/app", "https://github.com/x/app.git")
    made(git, "y/app", "https://github.com/y/app.git")
    made(git, "z/app")
    made(git, "w/app")

    found = [here(f"{owner}/app") for owner in "xyzw"]

    assert len(set(found)) == 4
    assert all(len(one) == len("app-abcd") and one.startswith("app-") for one in found)
    assert all(names.project(one) for one in found)


def test_clones_of_one_remote_meet_wherever_and_however_they_were_cloned(git, here):
    made(git, "one", "git@github.com:x/app.git")
    made(git, "two/deeper", "https://ada:secret@GitHub.com/x/app")

    assert here("one") == here("two/deeper")
    assert here("one").startswith("app-")


def test_the_remote_called_origin_decides(git, here):
    made(git, "fork", "git@github.com:ada/app.git")
    git("remote", "add", "upstream", "git@github.com:x/app.git", at="fork")
    made(git, "plain")
    git("remote", "add", "upstream", "git@github.com:x/app.git", at="plain")

    assert here("fork") == names.repository_project("github.com/ada/app")
    assert here("plain").startswith("plain-")


HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{2,5}){1,2}", fullmatch=True)
WORDS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda word: not word.endswith(".git")
)
USERS = st.sampled_from(["", "git@", "ada@", "ada:se%40cret@"])
PORTS = st.sampled_from(["", ":22", ":443", ":8443"])
ENDS = st.sampled_from(["", ".git", "/", ".git/", "//", "/.git"])
SCHEMES = st.sampled_from(["https", "http", "ssh", "git", "git+ssh", "ssh+git", "HTTPS", "ftps"])


@st.composite
def ways_to(draw: st.DrawFn, host: str, path: str) -> str:
    """Draw a URL of the repository with this path on this host."""
    mixed = "".join(draw(st.sampled_from([c, c.upper()])) for c in host)
    user, end = draw(USERS), draw(ENDS)
    if draw(st.booleans()):
        return f"{draw(SCHEMES)}://{user}{mixed}{draw(PORTS)}/{path}{end}"
    user = user.partition(":")[0].removesuffix("@")
    place = draw(st.sampled_from([mixed, f"[{mixed}:2222]"]))
    slash = draw(st.sampled_from(["", "/", "~/"]))
    return f"{user and f'{user}@'}{place}:{slash}{path}{end}"


@given(data=st.data(), host=HOSTS, path=st.lists(WORDS, min_size=1, max_size=4).map("/".join))
def test_every_way_to_a_repository_is_one_address(data, host, path):
    one, other = data.draw(ways_to(host, path)), data.draw(ways_to(host, path))

    assert names.repository_address(one) == names.repository_address(other) == f"{host}/{path}"


@given(
    data=st.data(),
    places=st.lists(
        st.tuples(HOSTS, st.lists(WORDS, min_size=1, max_size=3).map("/".join)),
        min_size=2,
        max_size=2,
        unique=True,
    ),
)
def test_no_two_repositories_are_one_address(data, places):
    one, other = (data.draw(ways_to(*place)) for place in places)

    assert names.repository_address(one) != names.repository_address(other)


@given(url=st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_url_makes_a_project(url):
    made = names.repository_project(names.repository_address(url))

    assert names.project(made) == made
    assert made[-5] == "-"
    assert made[-4:].isalpha()
    assert made[-4:].islower()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("git@[::1]:x/app.git", "::1/x/app"),
        ("ssh://git@[::1]:22/x/app", "::1/x/app"),
        ("ssh://git@host/~/app.git", "host/app"),
        ("ssh://git@host/~ada/app.git", "host/~ada/app"),
        ("https://host/x/my%20app.git", "host/x/my app"),
        ("https://host/x/app.js.git", "host/x/app.js"),
        ("file:///srv/app.git", "/srv/app"),
        ("file://localhost/srv/app", "/srv/app"),
        ("file://github.com/srv/app", "/srv/app"),
        ("https://evil.example#@github.com/x/app", "evil.example/#@github.com/x/app"),
        ("https://evil.example?@github.com/x/app", "evil.example/?@github.com/x/app"),
        ("https://github.com@evil.example/x/app", "evil.example/x/app"),
        ("https://ada:a%2fb@host/x/app", "host/x/app"),
        ("ssh://evil.example%2f@github.com/x/app", "evil.example/@github.com/x/app"),
        ("ssh://git@[evil.example]@github.com/x/app", ""),
        ("git@[evil.example]@github.com:x/app", ""),
        ("evil.example:[github.com]:x/app", "evil.example/[github.com]:x/app"),
        ("ssh://[github.com/x/app", ""),
        ("https://github.com:evil.example/x/app", ""),
        ("https://evil.example\\@github.com/x/app", ""),
        ("hg::[github.com]:x/app", "hg::[github.com]:x/app"),
        ("s3://github.com/x/app", "s3://github.com/x/app"),
        ("/srv/x://github.com/x/app", "/srv/x://github.com/x/app"),
        ("host:x[1]/app", "host/x[1]/app"),
        ("/srv//./app.git/", "/srv/app"),
        ("../app", "../app"),
        ("codecommit::us-east-1://app", "codecommit::us-east-1://app"),
        ("ext::ssh -p 2 host %S app", "ext::ssh -p 2 host %S app"),
    ],
)
def test_unusual_urls_have_an_address(url, address):
    assert names.repository_address(url) == address


def test_the_letters_differ_where_addresses_do():
    # As many collisions as four random letters would have: 438, give or take three deviations.
    addresses = [f"github.com/user{number}/app" for number in range(20_000)]

    assert len({names.repository_project(one) for one in addresses}) > 20_000 - 438 - 63


def test_the_letters_never_change():
    # They are in the keys of everybody's projects.
    assert names.repository_project("github.com/x/app") == "app-hmuw"
    assert names.repository_project("/home/ada/x y") == "x-y-hrdl"
    assert names.repository_project("github.com/x/日本") == "agentbus-qqzp"


@pytest.mark.parametrize("url", ["git@[evil.example]@github.com:x/app", "https://:/x/app"])
def test_an_origin_that_could_be_read_in_two_ways_names_no_project(url, git, here, tmp_path):
    made(git, "app", url)

    assert here("app") == names.repository_project(str(tmp_path / "app"))
    assert settings.resolve().sources["project"] == f"path {tmp_path / 'app'}"


# -- by its path --


def test_a_clone_of_a_local_repository_meets_it(git, here):
    made(git, "app")
    git("clone", "-q", "app", "elsewhere")
    git("clone", "-q", "--bare", "app", "bare.git")
    git("remote", "remove", "origin", at="bare.git")
    git("clone", "-q", "bare.git", "of-bare")
    made(git, "relative", "../app/.git")

    assert here("elsewhere") == here("app") == here("relative")
    assert here("of-bare") == here("bare.git")
    assert here("of-bare").startswith("bare-")


def test_a_symbolic_link_to_a_repository_leads_to_its_project(git, here, tmp_path):
    made(git, "app")
    (tmp_path / "link").symlink_to("app")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").symlink_to("../app/.git")

    assert here("link") == here("app") == here("tree")


# -- by what git is told --


def test_git_config_names_the_project(git, here):
    made(git, "app", "https://github.com/x/app.git")
    git("config", "agentbus.project", "shop", at="app")

    assert here("app") == "shop"

    git("config", "--unset", "agentbus.project", at="app")
    git("config", "AgentBus.PROJECT", "shop:two", at="app")

    assert here("app") == "shop:two"


def test_git_config_comes_after_the_config_file(git, here, tmp_path):
    made(git, "app")
    git("config", "agentbus.project", "from-git", at="app")
    (tmp_path / "app" / ".agentbus.yaml").write_text("project: from-file\n")

    assert here("app") == "from-file"


@pytest.mark.parametrize("value", ["a b", "x:flag", "*", "a" * 129, "日本"])
def test_an_invalid_project_in_git_config_is_refused_in_a_sentence(value, git, here):
    made(git, "app")
    git("config", "agentbus.project", value, at="app")

    with pytest.raises(InvalidName, match=r"git config agentbus\.project") as refused:
        here("app")

    assert refused.value.exit_code == 2
    assert str(refused.value).isprintable()


def test_an_empty_project_in_git_config_is_none(git, here):
    made(git, "app")
    without = here("app")
    git("config", "agentbus.project", "", at="app")

    assert here("app") == without


CONFIGS = [
    '[remote "origin"]\n\turl = git@h:x/app.git\n\tfetch = +a:b\n',
    '[remote "origin"]\n\turl = one\n\turl = two\n[remote "origin"]\n\turl = three\n',
    '[Remote "origin"]\nURL=h:x/app ; a comment\n',
    '[remote "Origin"]\n\turl = other\n[remote "origin"] url = h:x/app # a comment\n',
    '[remote   "origin"]\n\turl = "h:x/a b"\n',
    "[remote.origin]\n\turl = h:x/old\n[remote.Origin]\n\turl = h:x/older\n",
    '[remote "origin"]\n\turl = h:x/\\\n  app\n',
    '[remote "origin"]\n\turl = "h:x/;\\"#\\\\app\\t" rest\n',
    "# [agentbus]\n\t; project = no\n[core]\n\tx = y \\\n[agentbus]\n\tproject = no\n",
    "[agentbus]\r\n\tproject = shop\r\n",
    "[agentbus]\n\tproject\n\tproject = a\n[agentbus]\n\tproject = b\n\tprojects = c\n",
    '[agentbus "x"]\n\tproject = no\n[agentbus]\n\tproject= "shop"\n',
    '[branch "a]b"]\n\tremote = origin\n[agentbus]\n# project = no\nproject=shop;no\n',
    "\ufeff[agentbus]\n\tproject = shop\n",
    "",
]


def test_a_config_is_read_as_git_reads_it(git, tmp_path):
    file = tmp_path / "config"

    def by_git(key: str) -> list[str]:
        try:
            return git("config", "-f", str(file), "-z", "--get-all", key).split("\0")[:-1]
        except subprocess.CalledProcessError:
            return []

    read, expected = [], []
    for text in CONFIGS:
        file.write_bytes(text.encode())
        for section, key in (("remote.origin", "url"), ("agentbus", "project")):
            read.append(repository.values(text, section, key))
            expected.append([value for value in by_git(f"{section}.{key}") if value])

    assert read == expected


@given(
    url=st.one_of(
        st.text("ab:/@.[]%~-", max_size=20),
        st.builds(lambda h, p: f"git@{h}:{p}", HOSTS, WORDS),
        st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20),
    ),
    named=st.none() | st.text('abc:"#;\\ ', max_size=6),
)
def test_the_quick_reader_of_a_config_agrees_with_the_thorough_one(url, named, tmp_path_factory):
    root = tmp_path_factory.mktemp("app")
    (root / ".git").mkdir()
    text = f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n\tfetch = +a:b\n'
    if named is not None:
        text += f"[agentbus]\n\tproject = {named}\n"
    (root / ".git" / "config").write_text(text, encoding="utf-8")

    def outcome(find: Callable[[str, str], tuple[str, str]]) -> object:
        try:
            return find(str(root), f"{root}/.git")
        except InvalidName as error:
            return str(error)

    assert outcome(settings.default_project) == outcome(repository.project)


# -- work trees, bare repositories, submodules --


def test_worktrees_share_the_project_of_their_repository(git, here):
    made(git, "shared-name")
    git("worktree", "add", "-q", "../other", at="shared-name")
    git("worktree", "add", "-q", "inside", at="shared-name")

    assert here("other") == here("shared-name") == here("shared-name/inside")
    assert here("other").startswith("shared-name-")


def test_worktrees_share_the_config_file_of_their_repository(git, here, tmp_path):
    made(git, "app")
    git("worktree", "add", "-q", "../other", at="app")
    (tmp_path / "app" / ".agentbus.yaml").write_text("project: shop\njson: true\n")

    assert here("other") == "shop"

    (tmp_path / "other" / ".agentbus.yaml").write_text("project: nearer\n")

    assert here("other") == "nearer"
    assert settings.resolve().json


def test_a_bare_repository_and_its_worktrees_share_a_project_and_its_config_file(
    git, here, tmp_path
):
    made(git, "made")
    git("clone", "-q", "--bare", "made", "app.git")
    git("remote", "remove", "origin", at="app.git")
    git("worktree", "add", "-q", "../tree", at="app.git")

    assert here("app.git") == here("app.git/refs") == here("tree")
    assert here("tree").startswith("app-")
    assert here("tree") != here("made")

    (tmp_path / "app.git" / ".agentbus.yaml").write_text("project: shop\n")

    assert here("app.git/refs") == here("tree") == "shop"


def test_a_bare_repository_beside_its_worktrees_is_named_after_their_directory(git, here, tmp_path):
    made(git, "made")
    git("clone", "-q", "--bare", "made", "app/.bare")
    git("remote", "remove", "origin", at="app/.bare")
    (tmp_path / "app" / ".git").write_text("gitdir: ./.bare\n")
    git("worktree", "add", "-q", "main", at="app")

    assert here("app") == here("app/main") == here("app/.bare")
    assert here("app").startswith("app-")

    (tmp_path / "app" / ".agentbus.yaml").write_text("project: shop\n")

    assert {here("app"), here("app/main"), here("app/.bare")} == {"shop"}


def test_the_directory_of_git_itself_belongs_to_its_repository(git, here, tmp_path):
    made(git, "app")
    git("worktree", "add", "-q", "../other", at="app")
    (tmp_path / "app" / ".agentbus.yaml").write_text("json: true\n")

    assert here("app/.git/hooks") == here("app/.git/worktrees/other") == here("app")
    assert settings.resolve().json


def test_a_submodule_has_a_project_of_its_own(git, here, tmp_path):
    made(git, "library")
    made(git, "app")
    git("submodule", "add", "-q", str(tmp_path / "library"), "vendor/lib", at="app")
    (tmp_path / "app" / ".agentbus.yaml").write_text("project: shop\n")

    assert here("app") == "shop"
    assert here("app/vendor/lib") == here("library")


def test_a_directory_with_a_file_head_is_no_repository(here, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "HEAD").write_text("of what?\n")

    assert here("plain") == "agentbus"


# -- what must not decide --


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[pathlib.Path], None]]:
    """Return a function that gives a file to another user."""

    def give(path: pathlib.Path) -> None:
        if os.getuid() == 0:
            give_away(path)
        else:
            monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)

    return give


PARTS = [".git", "the directory", "the link", "the file", "what the file names", "the worktrees'"]


@pytest.mark.parametrize("part", PARTS)
def test_a_repository_of_another_users_decides_nothing(
    part, git, here, tmp_path, stranger, monkeypatch
):
    made(git, "app", "git@github.com:x/app.git")
    (tmp_path / "app" / ".agentbus.yaml").write_text("queues: {mail: {attempts: 1}}\n")
    git("worktree", "add", "-q", "../tree", at="app")
    own, tree, linked = tmp_path / "app" / ".git", tmp_path / "tree", tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(own)
    at, theirs = {
        ".git": ("app", own),
        "the directory": ("app", tmp_path / "app"),
        "the link": ("linked", linked / ".git"),
        "the file": ("tree", tree / ".git"),
        "what the file names": ("tree", own / "worktrees" / "tree"),
        "the worktrees'": ("tree", own),
    }[part]
    assert here(at).startswith("app-")

    stranger(theirs)

    with pytest.raises(ConfigError, match="belongs to another user") as refused:
        here(at)
    assert refused.value.exit_code == 2
    monkeypatch.setenv("AGENTBUS_PROJECT", "mine")
    if part != "the directory":
        assert here(at) == "mine"


STRAYS = ["empty", "without objects", "without refs", "without HEAD", "of no branch", "a FIFO"]


@pytest.mark.parametrize("kind", STRAYS)
def test_what_git_takes_for_no_repository_is_none(kind, git, here, tmp_path):
    outer = tmp_path / "outer"
    stray = make_repository(outer / "inner")
    (outer / "inner" / "deep").mkdir()
    broken = stray / kind.removeprefix("without ")
    if kind == "empty":
        shutil.rmtree(stray)
        stray.mkdir()
    elif kind.startswith("without"):
        broken.unlink() if broken.is_file() else broken.rmdir()
    elif kind == "of no branch":
        (stray / "HEAD").write_text("what is this?\n")
    else:
        (stray / "HEAD").unlink()
        os.mkfifo(stray / "HEAD")
    if kind != "a FIFO":
        # Which git waits for.
        with pytest.raises(subprocess.CalledProcessError):
            git("rev-parse", at="outer/inner/deep")
    assert here("outer/inner/deep") == "agentbus"

    made(git, "outer", "git@github.com:x/outer.git")

    assert here("outer/inner/deep").startswith("outer-")


def test_a_repository_at_a_commit_is_one_as_much_as_at_a_branch(git, here, tmp_path):
    made(git, "app", "git@github.com:x/app.git")
    project = here("app")

    git("checkout", "-q", "--detach", at="app")
    assert here("app") == project

    (tmp_path / "app" / ".git" / "HEAD").unlink()
    (tmp_path / "app" / ".git" / "HEAD").symlink_to("refs/heads/unborn")
    assert here("app") == project


def test_a_bare_repository_that_another_user_put_into_a_shared_directory_is_none(
    here, tmp_path, stranger
):
    place = tmp_path / "common"
    for part in ("objects", "refs", "deep"):
        (place / part).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "config").write_text("[agentbus]\n\tproject = theirs\n")
    assert here("common/deep") == "theirs"

    stranger(place / "HEAD")

    assert here("common/deep") == "agentbus"


def unreadable(path: pathlib.Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path.name)


@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "loop"])
def test_a_git_config_that_cannot_be_read_is_refused_in_a_sentence(kind, here, tmp_path):
    make_repository(tmp_path / "app")
    unreadable(tmp_path / "app" / ".git" / "config", kind)

    with pytest.raises(ConfigError, match="cannot be read") as refused:
        here("app")

    assert refused.value.exit_code == 2
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "text", [b"", b"gitdir:", b"gitdir: nowhere/.git", b"\xff\xfe\0", b"nonsense"]
)
def test_a_file_git_that_leads_nowhere_is_no_repository(text, here, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / ".git").write_bytes(text)

    assert here("app") == "agentbus"


def test_git_is_not_run(git, here, monkeypatch):
    made(git, "app", "git@github.com:x/app.git")
    monkeypatch.setenv("PATH", "/nowhere")

    assert here("app").startswith("app-")


def test_whoami_says_what_the_project_was_named_after(git, real_shell, tmp_path):
    unnamed = {"AGENTBUS_PROJECT": ""}
    made(git, "app")

    def source() -> tuple[str, str]:
        (found,) = real_shell.records("whoami", cwd=tmp_path / "app", env=unnamed)
        return found["project"], found["sources"]["project"]

    place = tmp_path / "app"
    assert source() == (names.repository_project(str(place)), f"path {place}")
    git("remote", "add", "origin", "https://ada:secret@github.com/x/app.git", at="app")
    assert source() == (names.repository_project("github.com/x/app"), "origin github.com/x/app")
    git("config", "agentbus.project", "shop", at="app")
    assert source() == ("shop", "git config agentbus.project")
    shown = real_shell.ok("whoami", cwd=tmp_path, env=unnamed)
    assert "project agentbus (from default)" in shown
