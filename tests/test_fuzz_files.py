"""Whatever stands in a file or the environment: it is understood, or refused in a sentence."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from hypothesis import given, strategies as st

from agentbus.core import settings
from tests import inprocess
from tests.hostile import World, hostile, raw
from tests.profiles import few
from tests.test_fuzz_commands import check, interrupted

pytestmark = pytest.mark.filterwarnings("ignore")

_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    hostile,
    st.sampled_from(["ada", "10/min", "1", "-1", "*", "mail", "round_robin", "json", "30s", "a.*"]),
)


def _tree(keys: list[str], plain: st.SearchStrategy[object] = _plain) -> st.SearchStrategy[object]:
    """Return what a document may hold that has mostly the right words, in any place."""
    key = st.sampled_from(keys) | st.sampled_from(keys) | hostile
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(key, inner, max_size=4),
        max_leaves=12,
    )


def _file(keys: list[str]) -> st.SearchStrategy[bytes]:
    """Return a file's contents: a mapping that may be right, a damaged one, or any bytes."""
    whole = st.dictionaries(st.sampled_from(keys), _tree(keys), max_size=4).map(_dumped)
    damaged = st.tuples(whole, st.integers(0, 200), raw).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    )
    return st.one_of(whole, whole, damaged, raw)


def _dumped(value: object) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


SETTINGS = sorted(
    {*settings.IN_FILES, *settings.IN_OWN_FILE, "queues", "bound", "attempts", "mail"}
)
RULES = [
    *(
        "agents",
        "rules",
        "default",
        "queue",
        "teams",
        "team",
        "limit",
        "limits",
        "work_type",
        "to",
        "by",
    ),
    *("match", "task", "ada", "bob", "name", "group", "version", "loops", "hops"),
]
SCHEMA = [
    *(
        "orders",
        "placed",
        "type",
        "properties",
        "required",
        "$ref",
        "$defs",
        "items",
        "allOf",
        "anyOf",
    ),
    *(
        "enum",
        "const",
        "additionalProperties",
        "pattern",
        "minimum",
        "$id",
        "$schema",
        "prefixItems",
    ),
]
REFS = st.sampled_from(
    ["#", "#/$defs/a", "#/nowhere", "http://nowhere.invalid/x", "object", "string", "["]
)


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    made.renew()
    yield made
    made.close()


@pytest.fixture(scope="module")
def here(world, tmp_path_factory):
    """Stand deep in a directory of these tests' own, and return their environment."""
    deep = tmp_path_factory.mktemp("files").joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(deep)
        yield {
            "HOME": str(deep / "home"),
            "AGENTBUS_URL": world.url,
            "AGENTBUS_AGENT": "ada",
            "AGENTBUS_PROJECT": world.project,
            "AGENTBUS_LOG_LEVEL": "off",
        }


@pytest.fixture(autouse=True)
def alone(here):
    """Leave nothing of one test to the next."""
    yield
    pathlib.Path(".agentbus.yaml").unlink(missing_ok=True)


def run(environment: dict[str, str], *argv: str, codes: set[int]) -> inprocess.Done:
    with inprocess.environment(environment), interrupted(10.0) as late:
        done = inprocess.run(*argv)
    assert not late, argv
    check(done, list(argv), codes)
    return done


@few()
@given(data=_file(SETTINGS))
def test_a_config_file_of_any_kind_is_understood_or_refused(data, here, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any-config.yaml"
    path.write_bytes(data)
    near = {**here, "AGENTBUS_CONFIG": str(path)}

    run(near, "whoami", codes={0, 2})
    # What a policy may say is looked at by those who need it.
    run(near, "publish", "mail", "1", codes={0, 1, 2})
    run(near, "health", codes={0, 2, 6})


@few()
@given(data=_file(SETTINGS))
def test_a_config_file_that_lies_nearby_is_understood_or_refused(data, here):
    pathlib.Path(".agentbus.yaml").write_bytes(data)

    run(here, "whoami", "--json", codes={0, 2})
    run(here, "list", "--queues", codes={0, 2})


@few()
@given(data=_file(RULES), task=_tree(["type", "task", "agent_id", "work_type"]))
def test_a_file_of_rules_is_understood_or_refused(data, task, here):
    pathlib.Path("rules.yaml").write_bytes(data)
    pathlib.Path("task.json").write_bytes(json.dumps(task).encode())

    run(here, "route", "rules.yaml", "--check", codes={0, 2})
    run(here, "route", "rules.yaml", "--explain", "task.json", codes={0, 2, 5})


@few()
@given(
    data=st.dictionaries(
        st.sampled_from(SCHEMA),
        st.dictionaries(st.sampled_from(SCHEMA), _tree(SCHEMA, _plain | REFS), max_size=2),
        max_size=2,
    ).map(lambda value: json.dumps(value).encode())
    | raw
)
def test_a_file_of_schemas_is_understood_or_refused(data, here):
    pathlib.Path("schemas.json").write_bytes(data)

    run(here, "events", "check", "json", "schemas.json", codes={0, 2, 6})


@few()
@given(data=raw)
def test_a_body_in_a_file_is_kept_as_it_is_or_refused(data, here, world):
    pathlib.Path("body").write_bytes(data)

    if run(here, "jot", "k", "@body", codes={0, 2}).code == 0:
        assert world.client.hget("app:jot:k", "value") == data
    run(here, "speak", "@body", codes={0, 2})
    world.client.delete("app:q:mail")
    if run(here, "publish", "mail", "@body", codes={0, 2}).code == 0:
        ((_, fields),) = world.client.xrange("app:q:mail")
        # What is no JSON is a text.
        assert json.loads(fields[b"payload"]) in [data.decode(), *_read(data)]


def _read(data):
    try:
        return [json.loads(data)]
    except ValueError:
        return []


# What has a process killed, in tests, is no user's.
VARIABLES = sorted(
    {
        name
        for name in vars(settings).values()
        if isinstance(name, str) and name.startswith("AGENTBUS_")
    }
    | {
        *(
            "AGENTBUS_AGENT",
            "AGENTBUS_PROJECT",
            "AGENTBUS_JSON",
            "AGENTBUS_LOG_LEVEL",
            "AGENTBUS_CONFIG",
        ),
        *("AGENTBUS_DEADLINE", "AGENTBUS_MAX_BODY", "AGENTBUS_DATABASE", "AGENTBUS_WEBHOOKS"),
        *("AGENTBUS_WEBHOOK_SECRET", "AGENTBUS_WEBHOOK_ALLOW", "NO_COLOR", "COLUMNS", "TZ", "LANG"),
    }
)
_said = (
    st.sampled_from(
        ["", "0", "1", "-1", "nan", "inf", "1e400", "9" * 400, "true", "off", "yes", "٣"]
    )
    | hostile
).map(
    # What an environment can hold, and nothing that leads out of where the test stands.
    lambda text: text.replace("\0", "").replace("/", "./").encode("utf-8", "replace").decode()
)


@few()
@given(changes=st.dictionaries(st.sampled_from(VARIABLES), _said, min_size=1, max_size=3))
def test_every_variable_is_understood_or_refused_by_verbs_that_use_the_server(changes, here):
    near = {**here, **changes}

    run(near, "whoami", codes={0, 2})
    run(near, "speak", "hi", codes={0, 2})
    run(near, "publish", "mail", "1", codes={0, 1, 2})
    run(near, "outbox", "status", codes={0, 1, 2, 5})
