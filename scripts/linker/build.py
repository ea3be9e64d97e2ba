"""The steps of setuptools that write the linked modules, and compile their socket, into what is built."""

from __future__ import annotations

import os
import pathlib
import sys

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

from linker.sources import Sources
from linker.verbs import VERBS, linked

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = "agentbus/linked"
# What is added to the name of the file of each part.
PARTS = ("", "_after", "_rare")
# Without a compiler, quick verbs load Python's own module, and take 1 to 2 % longer.
SOCKET = Extension(
    "agentbus.linked.unix_socket",
    ["scripts/linker/unix_socket.c"],
    optional=True,
    # Fewer pages to map and protect: it loads in 165 us instead of 208.
    extra_link_args=["-s", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"],
)


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
        own = [str(path.relative_to(ROOT)) for path in sorted(HERE.glob("*.*"))]
        files: list[str] = super().get_source_files()
        return [*files, *own]


class BdistWheel(bdist_wheel):  # type: ignore[misc]
    """Builds a wheel for this platform; with AGENTBUS_PURE, one for all, without the socket."""

    def finalize_options(self) -> None:
        """Name the platform in the wheel's tag if something is to be compiled."""
        if sys.platform == "linux" and not os.environ.get("AGENTBUS_PURE"):
            self.distribution.ext_modules = [SOCKET]
        super().finalize_options()


class BuildExt(build_ext):  # type: ignore[misc]
    """Compiles the socket of the linked modules, which an editable install does not have."""

    def finalize_options(self) -> None:
        """Leave out of an editable install what would be written among the sources."""
        super().finalize_options()
        if self.inplace:
            self.extensions: list[Extension] = []
