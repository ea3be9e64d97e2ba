"""The documentation names everything there is, its links lead somewhere, and its blocks can be read.

That its examples run is in `test_docs_examples.py`; how blocks are marked, in `pages.py`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

import agentbus
import agentbus.aio
from agentbus import errors
from agentbus.commands._declare import GLOBAL, VERBS, module
from agentbus.commands._parser import parse as parse_line
from agentbus.core import names, settings
from agentbus.core.keys import Keys
from agentbus.core.record import Record
from agentbus.store import schemes
from tests.pages import NOT_RUN, PAGES, ROOT, Block, blocks, named
from tests.torture.modes import MODES

REFERENCE = ROOT / "docs/reference"
LANGUAGES = {"console", "python", "output", "yaml", "json", "ini", "sql", "text"}
MARKS = {*NOT_RUN, "waits", "terminal=2", "terminal=3"}
CODE_SPAN = re.compile(r"(`+)(?!`)(?=.*?\S).+?(?<!`)\1(?!`)", re.DOTALL)
# Where links to files of the repository lead that stand on pages which are shown elsewhere, too.
REPOSITORY = re.compile(r"https://github\.com/agentbus-toolkit/agentbus/(?:blob|tree|raw)/main/")


@functools.cache
def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def section(name: str, title: str) -> str:
    """Return what stands under a heading, up to the next heading of its level."""
    found = re.search(
        rf"^(#+) `?{re.escape(title)}`?$(.*?)(?=^\1 |\Z)", page(name), re.MULTILINE | re.DOTALL
    )
    assert found, f"{name} has no section {title!r}"
    return found[2]


# -- the reference is complete ------------------------------------------------------------------


def test_every_verb_is_described_with_all_its_options():
    missing = []
    for verb in VERBS:
        text = section("cli.md", verb)
        for param in module(verb).VERB.params:
            missing += [f"{verb} {name}" for name in param.names if f"`{name}" not in text]
            missing += [f"{verb} {name}" for name in param.choices if f"`{name}`" not in text]
        if not re.search(r"\bPython:\s", text):
            missing.append(f"{verb}: its twin in Python")

    assert missing == []


def test_no_verb_is_given_an_option_that_it_lacks():
    invented = []
    for verb in VERBS:
        known = {name for param in (*module(verb).VERB.params, *GLOBAL) for name in param.names}
        described = re.findall(r"^\| `(--[a-z-]+)", section("cli.md", verb), re.MULTILINE)
        invented += [f"{verb} {name}" for name in described if name not in known]

    assert invented == []


def test_every_field_that_the_help_promises_is_described():
    filler = {"for", "and", "its", "fields", "where", "the", "bus", "spoke", "as"}
    missing = []
    for verb in VERBS:
        _, _, told = module(verb).VERB.text.partition("JSON:")
        fields = re.findall(r"\b[a-z]+(?:_[a-z]+)*\b", re.sub(r"\(.*?\)", "", told.split(".")[0]))
        text = section("cli.md", verb)
        missing += [f"{verb}: {name}" for name in fields if name not in filler and name not in text]

    assert missing == []


def test_every_global_option_is_described():
    text = section("cli.md", "Global options")

    assert [name for param in GLOBAL for name in param.names if f"`{name}" not in text] == []


def test_every_exit_code_is_described():
    assert [
        (name, code)
        for name in ("cli.md", "errors.md")
        for code in errors.EXIT_CODES
        if f"| {code} |" not in section(name, "Exit codes")
    ] == []


def error_classes() -> list[type[errors.AgentBusError]]:
    return [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.AgentBusError)
    ]


def test_every_error_is_described_with_its_exit_code():
    assert [
        error.__name__
        for error in error_classes()
        if f"| `{error.__name__}` | {error.exit_code} |" not in page("errors.md")
    ] == []


def key_patterns() -> list[str]:
    documented = (inspect.getdoc(found) or "" for found in vars(Keys).values())
    return sorted({key for text in documented for key in re.findall(r"`(<P>:[^`]+)`", text)})


def test_every_key_is_described():
    patterns = key_patterns()

    assert len(patterns) > 30
    assert [key for key in patterns if f"| `{key}`" not in page("keys.md")] == []


def test_every_method_that_builds_a_key_says_which():
    builders = {name for name in vars(Keys) if name[0] != "_"} - {
        "project",
        "kind",
        "pattern",
        "patterns",
        "open_pattern",
        "stream",
    }

    for name in builders:
        assert (inspect.getdoc(getattr(Keys, name)) or "").startswith("`<P>:"), name


def test_every_word_that_a_project_may_not_hold_is_listed():
    text = section("keys.md", "Reserved words")

    assert [kind for kind in sorted(names.KEY_KINDS) if f"`{kind}`" not in text] == []


def test_every_setting_is_described_with_its_variables():
    offenders = []
    for setting, variables in settings.VARIABLES.items():
        rows = [
            row for row in page("settings.md").splitlines() if row.startswith(f"| `{setting}` |")
        ]
        if (
            len(rows) != 1
            or any(f"`{variable}" not in rows[0] for variable in variables)
            or ("in files" in rows[0]) != (setting in settings.IN_FILES)
        ):
            offenders.append((setting, rows))

    assert offenders == []


def test_every_scheme_is_described_with_its_options():
    assert [
        f"{scheme}: {option}"
        for scheme in schemes._SCHEMES
        for option in options_of(scheme)
        if f"| `{option}` |" not in section("urls.md", f"{scheme}://")
    ] == []


def options_of(scheme: str) -> list[str]:
    """Return the options of a URL, as the error about an unknown one lists them."""
    with pytest.raises(errors.ConfigError) as refusal:
        schemes.backend(f"{scheme}://a/b?no-such-option=1", "p")
    return re.findall(r"\w+", (refusal.value.hint or "").partition(":")[2])


def test_every_public_name_is_described():
    assert [name for name in agentbus.__all__ if not _described(name)] == []


def _described(name: str) -> bool:
    value = getattr(agentbus, name)
    if isinstance(value, type) and issubclass(value, Exception):
        return f"`{name}`" in page("errors.md")
    return re.search(rf"<!-- api: agentbus\.{name}\b|`{name}`", page("python.md")) is not None


def methods() -> list[str]:
    return [name for name in dir(agentbus.Bus) if name[0] != "_"]


def queue_methods() -> list[str]:
    # Those are described with the methods of a bus that they stand for.
    return sorted(
        {name for name in dir(agentbus.Queue) if name[0] != "_"} - {"pause", "resume", "paused"}
    )


def test_the_reference_of_python_has_each_method_and_value_and_is_up_to_date():
    values = [
        name
        for name in agentbus.__all__
        if isinstance(value := getattr(agentbus, name), type) and issubclass(value, Record)
    ]
    wanted = [
        *(f"Bus.{name}" for name in methods()),
        *(f"Queue.{name}" for name in queue_methods()),
        *values,
    ]
    missing = [name for name in wanted if f"<!-- api: agentbus.{name} " not in page("python.md")]

    command = [sys.executable, str(ROOT / "scripts/api-reference"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert missing == []
    assert checked.returncode == 0, checked.stderr


def test_the_reference_shows_which_arguments_have_no_keyword():
    assert "def step(name: str, function: Callable[P, R], /, *args:" in page("python.md")
    assert "def handle(bus: Any, task_id: str, /) ->" in page("python.md")


def test_every_option_of_subscribe_is_named_with_its_default():
    text = " ".join(section("python.md", "subscribe").split())
    found = inspect.signature(agentbus.Worker).parameters.values()
    options = {each.name: each.default for each in found if each.kind is each.KEYWORD_ONLY}
    shown = {
        name: json.dumps(default) if isinstance(default, str) else repr(default)
        for name, default in options.items()
        if name not in ("loop", "arun")
    }

    assert [name for name in shown if f"`{name}={shown[name]}`" not in text] == []


def test_every_method_of_the_asynchronous_bus_is_described():
    text = page("python.md")

    assert [name for name in dir(agentbus.AsyncBus) if name[0] != "_" and name not in text] == []


def test_the_glossary_has_each_term_once_in_order():
    text = (ROOT / "docs/glossary.md").read_text()

    terms = [term.lower() for term in re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)]

    assert terms == sorted(set(terms))


# -- the links lead somewhere -------------------------------------------------------------------


@functools.cache
def prose(path: pathlib.Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(path: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(path: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        target, _, anchor = link.partition("#")
        if own := REPOSITORY.match(target):
            yield ROOT / target[own.end() :], anchor
        elif "://" not in link:
            yield (path.parent / target).resolve() if target else path, anchor


def test_every_link_within_the_repository_leads_somewhere():
    broken = [
        f"{named(path)}: {target}#{anchor}"
        for path in PAGES
        for target, anchor in links(path)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]

    assert broken == []


def test_pages_link_to_files_outside_of_the_documentation_by_their_addresses():
    """The site has no other files; on the site, a relative link to one leads nowhere."""
    docs = ROOT / "docs"
    lost = [
        f"{named(path)}: {link}"
        for path in PAGES
        if path.is_relative_to(docs)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(path))
        if "://" not in link and not (path.parent / link).resolve().is_relative_to(docs)
    ]

    assert lost == []


def test_nothing_is_installed_from_an_index_that_lacks_it():
    """`agentbus-toolkit` is in no index yet, and `agentbus` there is another project."""
    wrong = [
        f"{named(path)}: {line.strip()}"
        for path in [*PAGES, *(ROOT / "docs/examples").rglob("*.*")]
        for line in path.read_text().splitlines()
        # Clients install the plugin `agentbus@agentbus` from a folder of this machine.
        if re.search(r"\binstall\b.*[ '\"]agentbus(-toolkit)?\b(?!@)", line) and "git+" not in line
    ]

    assert wrong == []


def test_no_code_span_is_empty_or_left_open():
    broken = [
        f"{named(path)}: {line.strip()}"
        for path in PAGES
        for line in CODE_SPAN.sub("", prose(path)).splitlines()
        if "`" in line
    ]

    assert broken == []


def test_the_site_has_every_page_in_its_navigation():
    def pages(found: object) -> Iterator[str]:
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict | list):
            for each in found.values() if isinstance(found, dict) else found:
                yield from pages(each)

    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))

    assert sorted(listed) == sorted(
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")
    )


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs/README.md"

    linked = {target for target, _ in links(index)}

    assert {path for path in PAGES if path not in (index, ROOT / "README.md")} <= linked


# -- the blocks ----------------------------------------------------------------------------------


def test_every_block_is_of_a_kind_that_is_checked():
    offenders = {}
    for path in PAGES:
        for block in blocks(path):
            if wrong := _wrong_with(block, path):
                offenders[f"{named(path)}:{block.line}"] = wrong

    assert offenders == {}


def _wrong_with(block: Block, path: pathlib.Path) -> str | None:
    if block.language not in LANGUAGES or not set(block.marks) <= MARKS:
        return f"unknown: {block.language} {block.marks}"
    try:
        if block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python" and "signature" not in block.marks:
            compile(block.text, named(path), "exec", 0x2000)
    except (yaml.YAMLError, ValueError, SyntaxError) as error:
        return str(error)
    return None


def test_the_pages_list_and_count_the_wrong_implementations_of_torture():
    controls = {(name, control) for name, mode in MODES.items() for control in mode.controls}
    guarantees = (ROOT / "docs/explanation/guarantees.md").read_text()

    listed = re.findall(r"^\| (\w+) \| `(\w+)`", guarantees, re.MULTILINE)
    assert set(listed) == controls
    assert f"all {len(controls)} deliberately wrong" in (ROOT / "README.md").read_text()


def test_every_command_line_that_is_not_run_can_be_read():
    offenders = []
    for path in PAGES:
        for block in blocks(path):
            if block.language == "console" and "no-run" in block.marks:
                offenders += [
                    f"{named(path)}:{block.line}: {command}"
                    for command, _ in block.commands()
                    if not _can_be_read(command)
                ]

    assert offenders == []


def _can_be_read(command: str) -> bool:
    name, *words = shlex.split(command)
    if name != "agentbus" or set(words) & {">>", ">", "|", "&&"}:
        return True
    try:
        return parse_line(words) is not None
    except errors.UsageError:
        return False


def test_the_asynchronous_runner_knows_a_coroutine():
    """`0x2000` above is the flag by which `compile` takes an `await` at the top."""
    code = compile("await asyncio.sleep(0)", "x", "exec", 0x2000)

    assert asyncio.run(eval(code, {"asyncio": asyncio})) is None


# -- no page gives a secret away ----------------------------------------------------------------

# Every user of a machine can read the arguments of processes, and files of the usual umask.
GIVING_AWAY = {
    "a password in an argument": re.compile(
        r"--(?:url|database|remote)[ =]\S*://[^\s/@]*:[^\s/@]+@|redis-cli\b.*\s(?:-a|--pass)\s"
        r"|redis-cli\b.*\s-u\s+\S*:\S+@|psql\b.*://[^\s/@]*:[^\s/@]+@|;token="
    ),
    "a file that others can read": re.compile(r"^(?!.*umask 077).*openssl rand.*(?:>|\btee\b)"),
    "a server elsewhere, without TLS": re.compile(
        r"redis-cli (?!.*--tls)(?:.* )?-h (?!127\.|local)"
    ),
}


@pytest.mark.parametrize("why", GIVING_AWAY)
def test_no_command_line_of_pages_examples_and_help_gives_a_secret_away(why):
    files = [ROOT / "README.md"]
    for folder in ("docs", "commands", "agentbus/core", "agentbus/admin", "scripts"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in ("", ".md", ".py", ".sh", ".yml", ".yaml", ".service", ".ini", ".toml")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if GIVING_AWAY[why].search(line)
    ]

    assert found == []
