"""Compiles a linked module and its socket into one extension, by Cython.

To load it takes three quarters of the time of its bytecode. Only the first part is compiled:
the others are loaded while the server answers, or seldom.
"""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

from setuptools.errors import CompileError

# Functions are plain built-in ones: no code object is made for each when the module is loaded.
_DIRECTIVES = {"binding": False, "infer_types": False, "language_level": 3}
# To unpack the strings would take longer than to read them; the other leaves a third less to compile.
MACROS = [("CYTHON_COMPRESS_STRINGS", "0"), ("CYTHON_UNPACK_METHODS", "0")]
# To optimize more takes the compiler three times as long, for no difference that can be measured.
COMPILE_ARGS = ["-Og", "-g0", "-fno-inline", "-fvisibility=hidden", "-w"]
# Fewer pages to map and protect.
LINK_ARGS = ["-s", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"]


def module_name(verb: str) -> str:
    """Return the name of the module that is compiled, which its initialization function has."""
    return f"linked_{verb}"


def translate(path: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Write a linked module and its socket in C, and return the paths; what fails is a CompileError."""
    folder.mkdir(parents=True, exist_ok=True)
    module, made, socket = (folder / f"{path.stem}{end}" for end in (".py", ".c", "_socket.c"))
    module.write_text(source(path.read_text(encoding="utf-8")), encoding="utf-8")
    # A file for each verb: they are compiled at the same time, and each leaves its object file beside it.
    own = pathlib.Path(__file__).with_name("unix_socket.c")
    socket.write_text(f'#include "{own}"\n', encoding="utf-8")
    given = [f"--directive={key}={value}" for key, value in _DIRECTIVES.items()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cython", *given, "--module-name", module_name(path.stem)),
            *("--output-file", str(made), str(module)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CompileError(f"Cython does not translate {path.name}: {done.stderr.strip()}")
    return [str(made), str(socket)]


def source(text: str) -> str:
    """Return the text of a linked module as it is compiled."""
    module = _Compiled().visit(ast.parse(text))
    ending = module.body.pop()
    # It is always the program: `if __name__ == "__main__"`.
    module.body += ending.body
    _bind_methods(module)
    return f"import cython\n{ast.unparse(ast.fix_missing_locations(module))}\n"


def _bind_methods(module: ast.Module) -> None:
    """Make functions of Python of those that classes have: a built-in one does not become a method."""
    bodies = [one.body for one in ast.walk(module) if isinstance(one, ast.ClassDef)]
    values = [one.value for body in bodies for one in body if isinstance(one, ast.Assign)]
    named = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
    given = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.name in named]
    # A class also has what a function that it calls makes, such as the one that stands for a later part.
    inside = [each for body in (*bodies, *(one.body for one in given)) for each in body]
    for one in (*given, *inside):
        if isinstance(one, ast.FunctionDef):
            one.decorator_list.append(ast.parse("cython.binding(True)", mode="eval").body)


class _Compiled(ast.NodeTransformer):
    """Changes what Cython does not take, and what a built-in function does not have."""

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_FILE":
            node.value = ast.Name("__file__", ast.Load())
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        if isinstance(node.type, ast.Tuple):
            # Types that were imported or not: `(*a, B)` is `a + (B,)`.
            found = [
                one.value if isinstance(one, ast.Starred) else ast.Tuple([one], ast.Load())
                for one in node.type.elts
            ]
            whole = found[0]
            for other in found[1:]:
                whole = ast.BinOp(whole, ast.Add(), other)
            node.type = whole
        return node
