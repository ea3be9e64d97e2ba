"""The classes that a linked module does without."""

from __future__ import annotations

import ast
import sys
from typing import Any

from tests.linking import ROOT

sys.path.append(str(ROOT / "scripts"))

from linker import runtime
from linker.classes import replace, simplify
from linker.divide import divide


def simplified(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a module has without the classes it can spare, and the classes that are left."""
    statements = ast.parse(text).body
    classes = {one.name: "home" for one in statements if isinstance(one, ast.ClassDef)}
    simplify(statements, classes)
    made: dict[str, Any] = {"_namespace": type(sys.implementation)}
    exec(ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))), made)
    return made, classes


def test_a_class_of_attributes_alone_is_a_function_that_returns_them():
    made, classes = simplified(
        "class Point:\n"
        "    __slots__ = ('x', 'y')\n"
        "    def __init__(self, x, *, y=2):\n"
        "        self.x = x\n"
        "        self.y = [y, x]\n"
        "found = Point(1)\n"
    )
    assert vars(made["found"]) == {"x": 1, "y": [2, 1]}
    assert classes == {}


def test_a_class_that_does_more_or_is_tested_for_stays():
    _, classes = simplified(
        "class Tested:\n"
        "    def __init__(self, x):\n"
        "        self.x = x\n"
        "class Twice:\n"
        "    def __init__(self, x):\n"
        "        self.x = x\n"
        "        self.y = self.x\n"
        "class Method:\n"
        "    def __init__(self, x):\n"
        "        self.x = x\n"
        "    def read(self):\n"
        "        return self.x\n"
        "assert isinstance(Tested(1), Tested)\n"
    )
    assert [*classes] == ["Tested", "Twice", "Method"]


def test_a_base_that_is_not_named_elsewhere_is_copied_into_its_class():
    made, _ = simplified(
        "class Step:\n"
        "    __slots__ = ('sent',)\n"
        "    writes = False\n"
        "    blocks = 0\n"
        "    def label(self):\n"
        "        return 'step'\n"
        "    def close(self):\n"
        "        return self.sent\n"
        "class Script(Step):\n"
        "    __slots__ = ('writes',)\n"
        "    def __init__(self):\n"
        "        self.sent = self.writes = True\n"
        "    def label(self):\n"
        "        return 'script'\n"
        "found = Script()\n"
    )
    found = made["found"]
    assert type(found).__bases__ == (object,)
    assert (found.sent, found.writes, found.blocks) == (True, True, 0)
    assert (found.label(), found.close()) == ("script", True)


def test_a_record_that_is_only_called_is_an_object_with_its_fields():
    made, known = simplified(
        "class Record:\n    pass\n"
        "class Note(Record):\n"
        "    __module__ = 'home'\n"
        "    key: str\n"
        "    tags: tuple = ()\n"
        "one, other = Note('a', tags=(1,)), Note(key='b')\n",
    )
    assert "Note" not in known
    assert (made["one"].key, made["one"].tags) == ("a", (1,))
    assert (made["other"].key, made["other"].tags) == ("b", ())


def test_a_record_with_methods_stays_a_class():
    made, known = simplified(
        "class Record:\n    pass\n"
        "class Note(Record):\n"
        "    key: str\n"
        "    def shown(self):\n        return 1\n"
        "one = Note()\n",
    )
    assert "Note" in known
    assert made["one"].shown() == 1


def test_a_base_is_inherited_from_where_its_methods_are_called_or_it_is_tested_for():
    for use in ("assert isinstance(Part(), Whole)", "assert issubclass(Part, Whole)"):
        made, _ = simplified(
            "class Whole:\n    def read(self):\n        return 1\n"
            "class Part(Whole):\n    pass_ = 1\n" + use
        )
        assert made["Part"].__bases__ == (made["Whole"],)
    made, _ = simplified(
        "class Whole:\n    def read(self):\n        return 1\n"
        "class Part(Whole):\n    def read(self):\n        return super().read() + 1\n"
    )
    assert made["Part"]().read() == 2


def test_an_object_of_a_class_that_is_only_called_has_its_methods_without_it(monkeypatch):
    first = ast.parse(
        "class Link:\n"
        "    __module__ = 'home'\n"
        "    wraps = False\n"
        "    def __init__(self, name, *, sent=0):\n"
        "        self.name = name\n"
        "        self.sent = sent\n"
        "    def send(self, *more):\n"
        "        self.sent += 1 + len(more)\n"
        "        return self\n"
        "    @property\n"
        "    def first(self):\n"
        "        return self.name[:1]\n"
        "    __getattr__ = _complete\n"
        "link = Link('a', sent=2)\n"
    ).body
    later = ast.parse("def Link__close(self):\n    return self.name\nLink.close = Link__close").body
    replace(first, later)
    made: dict[str, Any] = {"_object": runtime._object}
    exec(ast.unparse(ast.fix_missing_locations(ast.Module(first, []))), made)

    link, other = made["link"], made["Link"]("b")
    monkeypatch.setitem(vars(runtime), "Link__first", made["Link__first"])
    assert (link.first, other.first) == ("a", "b")
    assert link.send("x").send() is link
    assert (link.name, link.sent, link.wraps) == ("a", 5, False)
    assert (other.name, other.sent) == ("b", 0)
    # A later part has the method, under the name by which the object finds it.
    assert [one.name for one in later if isinstance(one, ast.FunctionDef)] == ["Link__close"]
    assert len(later) == 1


def test_a_class_stays_that_code_names_or_of_which_python_asks_more():
    begins = "class Link:\n    def __init__(self):\n        self.x = 1\n"
    for more in (
        "isinstance(1, Link)",
        "    def __enter__(self):\n        return self\n",
        "    @staticmethod\n    def y():\n        return 1\n",
        "isinstance(1, (*_here('Link'),))",
    ):
        first = ast.parse(begins + more).body
        replace(first)
        assert isinstance(first[0], ast.ClassDef)


def test_a_test_of_type_does_not_load_the_part_that_has_the_class():
    body = ast.parse(
        "class Wait:\n"
        "    def __init__(self):\n"
        "        self.seconds = 1\n"
        "def run(step):\n"
        "    return isinstance(step, (Wait, int))\n"
        "def block():\n"
        "    return Wait()\n"
    ).body
    one, two, three = (
        "\n".join(ast.unparse(ast.fix_missing_locations(each)) for each in part)
        for part in divide(body, {"run"}, (), {"run"})
    )
    assert "isinstance(step, (*_here('Wait'), int))" in one
    assert two == ""
    assert "class Wait" in three


def test_while_the_part_of_a_class_is_not_loaded_no_value_is_of_it(monkeypatch):
    assert runtime._here("Wait") == ()
    monkeypatch.setitem(vars(runtime), "Wait", int)
    assert runtime._here("Wait") == (int,)
