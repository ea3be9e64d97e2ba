"""The real clients: what `agentbus install` puts into them, finds there, and leaves at the end."""

from __future__ import annotations

import json
import pathlib
import re
import tomllib
from typing import Any

import pytest

from agentbus.agents.install import trust
from tests.clients.running import installed
from tests.installing import User
from tests.servers import Server

# The bus of the check is opened in this process, and left as it is where a process ends.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

CLIENTS = ("claude", "codex", "copilot", "gemini", "opencode")
_HOOKS = {"Stop": [{"hooks": [{"type": "command", "command": "echo mine"}]}]}
_OTHERS = {"hooks": _HOOKS, "enabledPlugins": {"format@tools": False}, "note": "h\u00e9l\u00e8ne"}
# Settings as a person writes them, with comments where the client allows them.
SETTINGS = {
    "claude": (".claude/settings.json", json.dumps(_OTHERS, indent=7) + "\n\n"),
    "codex": (
        ".codex/config.toml",
        (
            '# mine\nmodel = "x"   # why\n\n[plugins."format@tools"]\nenabled = false # off\n'
            '[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "echo mine"\n'
        ),
    ),
    "copilot": (".copilot/settings.json", "// mine\n{\n   /* why */\n" + json.dumps(_OTHERS)[1:]),
    "gemini": (".gemini/settings.json", '// mine\n{\n     "ui": {"hideTips": true} // yes\n}\n'),
    "opencode": (
        ".config/opencode/opencode.jsonc",
        # It writes the first line by itself.
        '{"$schema": "https://opencode.ai/config.json",\n // mine\n\t"autoupdate": false,\n}',
    ),
}


@pytest.fixture
def user(tmp_path: pathlib.Path, valkey: Server) -> User:
    user = User(tmp_path)
    user.environment |= {
        "AGENTBUS_URL": valkey.url,
        "PATH": f"{installed()}:/usr/bin:/bin",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "COPILOT_AUTO_UPDATE": "false",
        **{
            f"OPENCODE_DISABLE_{name}": "1"
            for name in ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        },
    }
    # OpenCode would ask for a package for more than a minute, where nothing answers.
    (user.home / ".npmrc").write_text("offline=true\n")
    return user


def meaning(client: str, text: str) -> Any:
    """Return what settings say, without our entries, and without what is empty."""
    bare = re.sub(r"//.*|/\*.*?\*/", "", text)
    found = tomllib.loads(text) if client == "codex" else json.loads(bare)
    for name in ("enabledPlugins", "extraKnownMarketplaces", "plugins", "marketplaces"):
        for ours in ("agentbus", "agentbus@agentbus"):
            found.get(name, {}).pop(ours, None)
    return {name: value for name, value in found.items() if value != {}}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_installed_once_works_and_has_its_settings_back(user, client):
    place, text = SETTINGS[client]
    settings = user.home / place
    settings.parent.mkdir(parents=True)
    settings.write_text(text)

    steps = user.install(client)
    after = settings.read_text()
    for _ in range(2):
        assert {line.rpartition(": ")[2] for line in user.install(client)} == {"already"}
    assert settings.read_text() == after
    comments = re.compile(r"(?:#|// |/\*) ?(?:mine|why|off|yes)")
    if client == "copilot":
        # Its own command drops them.
        assert (
            steps[-1]
            == "copilot: keep a copy of ~/.copilot/settings.json, which lost its comments: done"
        )
    else:
        assert comments.findall(after) == comments.findall(text)
    if client not in ("gemini", "opencode"):
        assert meaning(client, after) == meaning(client, text)
    code, found = user.check(client)
    wrong = {check: one["found"] for (_, check), one in found.items() if one["status"] != "ok"}
    if client == "codex":
        assert wrong.pop("trust").startswith("not trusted yet: ")
        assert code == 6
    assert wrong == {}

    user.uninstall(client)
    assert settings.read_text() == text
    assert not (user.home / ".local/share/agentbus").exists()
    assert user.check(client)[0] == 6


def test_codex_is_well_once_the_user_has_trusted_the_hooks(user):
    user.install("codex")
    program = str(installed() / "codex")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in user.environment.items():
            patch.setenv(name, value)
        listed = trust.hooks(program, str(user.root))
    # As its `/hooks` does it.
    config = user.home / ".codex/config.toml"
    with config.open("a") as file:
        for hook in listed:
            command, content = hook["currentHash"].split("/")
            file.write(f'\n[hooks.state."{hook["key"]}"]\ntrusted_hash = "{command}"\n')
            file.write(f'trusted_content_hash = "{content}"\n')

    code, found = user.check("codex")

    assert code == 0, found
    assert found["codex", "trust"]["found"] == f"{len(listed)} hooks are trusted"
