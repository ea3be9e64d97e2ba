"""The step of setuptools that writes the linked modules into what is built."""

from __future__ import annotations

import pathlib

from setuptools.command.build_py import build_py

from linker.sources import Sources
from linker.verbs import VERBS, linked

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = "agentbus/linked"
# What is added to the name of the file of each part.
PARTS = ("", "_after", "_rare")


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
