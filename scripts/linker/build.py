"""The steps of setuptools that write the linked modules into what is built, and compile them."""

from __future__ import annotations

import os
import pathlib
import sys

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

from linker.compile import COMPILE_ARGS, LINK_ARGS, MACROS, translate
from linker.sources import Sources
from linker.verbs import VERBS, linked

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = "agentbus/linked"
# What is added to the name of the file of each part.
PARTS = ("", "_after", "_rare")
# The verbs whose modules are compiled, which takes some ten seconds for each.
COMPILED = tuple(VERBS)


def names() -> list[str]:
    """Return the names of the files that are written."""
    return [f"{verb}{part}.py" for verb in VERBS for part in PARTS]


def write(root: pathlib.Path, folder: pathlib.Path, *, whole: bool = False) -> None:
    """Write the linked module of each quick verb, in one part if `whole`."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = Sources(root)
    for verb in VERBS:
        for part, text in zip(PARTS, linked(sources, verb, whole=whole), strict=True):
            (folder / f"{verb}{part}.py").write_text(text, encoding="utf-8")


class BuildPy(build_py):  # type: ignore[misc]
    """Builds the package; an editable install has no linked modules, which would not follow its sources."""

    def run(self) -> None:
        """Copy the sources, and link."""
        super().run()
        if not self.editable_mode:
            write(ROOT, pathlib.Path(self.build_lib, FOLDER))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that are written."""
        made = [str(pathlib.Path(self.build_lib, FOLDER, name)) for name in names()]
        outputs: list[str] = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, *made]

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs, with those of this step."""
        found = sorted(path for path in HERE.glob("*") if path.is_file())
        own = [str(path.relative_to(ROOT)) for path in found]
        files: list[str] = super().get_source_files()
        return [*files, *own]


class BdistWheel(bdist_wheel):  # type: ignore[misc]
    """Builds a wheel for this platform; with AGENTBUS_PURE, one for all, of which nothing is compiled."""

    def finalize_options(self) -> None:
        """Name the platform in the wheel's tag if something is to be compiled."""
        if sys.platform == "linux" and not os.environ.get("AGENTBUS_PURE"):
            # Without a compiler, quick verbs load bytecode, and take 1.4 to 3.7 % longer.
            self.distribution.ext_modules = [
                Extension(
                    f"agentbus.linked.{verb}",
                    [],
                    define_macros=MACROS,
                    extra_compile_args=COMPILE_ARGS,
                    extra_link_args=LINK_ARGS,
                    optional=True,
                )
                for verb in COMPILED
            ]
        super().finalize_options()


class BuildExt(build_ext):  # type: ignore[misc]
    """Compiles the linked modules, which an editable install does not have, several at a time."""

    def finalize_options(self) -> None:
        """Leave out of an editable install what would be written among the sources."""
        super().finalize_options()
        self._has_failed = False
        self.parallel: int = os.cpu_count() or 1
        if self.inplace:
            self.extensions: list[Extension] = []

    def run(self) -> None:
        """Compile; what was compiled is run by the command of this folder, which is shorter."""
        super().run()
        if any(pathlib.Path(self.build_lib, FOLDER).glob("*.so")):
            own = {path.name: str(path.relative_to(ROOT)) for path in HERE.glob("agentbus-*")}
            scripts = self.distribution.scripts
            self.distribution.scripts = [own.get(pathlib.Path(one).name, one) for one in scripts]

    def build_extension(self, ext: Extension) -> None:
        """Compile a linked module that was written into what is built, unless another one failed."""
        if self._has_failed:
            raise CompileError("nothing more is compiled")
        path = pathlib.Path(self.build_lib, f"{ext.name.replace('.', '/')}.py")
        try:
            ext.sources = translate(path, pathlib.Path(self.build_temp, "linked"))
            super().build_extension(ext)
        except Exception:
            self._has_failed = True
            raise
