"""The rules for names, projects and bodies: what is accepted is stored as it is, byte for byte."""

from __future__ import annotations

import shlex
import unicodedata

import pytest
from hypothesis import example, given, strategies as st

from agentbus.core import names
from agentbus.core.names import shell_word
from agentbus.errors import InvalidName, InvalidPayload
from tests import profiles  # noqa: F401 (loads the profile)

anything = st.text(st.characters(exclude_categories=()), max_size=300)


def fits(text: str, most: int) -> bool:
    try:
        return 1 <= len(text.encode()) <= most
    except UnicodeEncodeError:
        return False


@given(text=anything)
@example("a" * 256)
@example("a" * 257)
@example("é" * 128)
@example("é" * 129)
@example("a\x85b")
@example("\ud800")
@example("")
def test_a_name_has_1_to_256_bytes_and_no_control_characters(text):
    good = fits(text, 256) and not any(unicodedata.category(c) == "Cc" for c in text)

    if good:
        assert names.name("topic", text) == text
    else:
        with pytest.raises(InvalidName) as refused:
            names.name("topic", text)
        assert refused.value.exit_code == 2
        assert refused.value.hint
        assert str(refused.value).isprintable()
        assert str(refused.value).isascii()


@pytest.mark.parametrize("value", [None, 1, b"x", True, ["a"], 1.5])
def test_a_name_is_text(value):
    with pytest.raises(InvalidName, match=type(value).__name__):
        names.name("agent", value)


@pytest.mark.parametrize(
    "text",
    ["a:b", "*", "a b", " ", "-", "--all", "%", "%3A", "[x]", "{x}", "$(reboot)", "日本", "\\"],
)
def test_a_name_is_no_pattern_and_no_separator(text):
    assert names.name("flag", text) == text


def test_a_tag_holds_no_comma():
    assert names.tag("a:b") == "a:b"
    with pytest.raises(InvalidName, match="comma"):
        names.tag("a,b")


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "agentbus:demo",
        "A.b_c-9",
        "app:x:y",
        "{app}",
        "{app:x}",
        "a" * 128,
        "q",
        "jot",
        ".",
        "-",
    ],
)
def test_projects_that_are_accepted(text):
    assert names.project(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "a:", ":a", "a::b", "*", "ap?", "[a]pp", "a b", "a/b", "é", "a\n", "a\0b", "²"),
        *("{}", "{a", "a}", "{a}b", "a{b}", "{{a}}", "{a}:b", "a" * 129, "\ud800"),
        *(f"app:{kind}" for kind in sorted(names.KEY_KINDS)),
        *("app:x:flag", "{app:ch}", "app:jot:x"),
    ],
)
def test_projects_that_are_refused(text):
    with pytest.raises(InvalidName) as refused:
        names.project(text)
    assert refused.value.hint


@given(text=anything | st.text("ab:{}*?[]\\ .-_q", max_size=140))
def test_a_project_is_accepted_as_it_is_or_refused_in_a_sentence(text):
    try:
        accepted = names.project(text)
    except InvalidName as refused:
        assert str(refused).isprintable()  # noqa: PT017
    else:
        assert accepted == text
        assert not set(accepted) & set("*?[]\\^ \n")


@given(text=anything)
def test_a_body_is_text_without_nul(text):
    good = fits(text, names.MAX_BODY_BYTES) and "\0" not in text

    if good:
        assert names.body("message", text) == text
    else:
        with pytest.raises(InvalidPayload) as refused:
            names.body("message", text)
        assert refused.value.exit_code == 2


@pytest.mark.parametrize("character", ["a", "é", "\U0001f600"])
def test_a_body_is_measured_in_bytes(character):
    most = names.MAX_BODY_BYTES // len(character.encode())

    assert names.body("note", character * most)
    with pytest.raises(InvalidPayload, match="bytes"):
        names.body("note", character * (most + 1))


@given(text=st.text("a%:3A25B", max_size=12))
def test_an_escaped_name_is_read_back(text):
    assert names.unescape(names.escape(text)) == text
    assert ":" not in names.escape(text)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
@example("a'b; rm -rf ~ $(id) `id` \\ \"")
def test_a_name_in_a_command_for_the_user_stays_one_word(name):
    assert shlex.split(f"agentbus await {shell_word(name)}") == ["agentbus", "await", name]
