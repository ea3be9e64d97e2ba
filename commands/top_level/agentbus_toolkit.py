"""Runs the command `agentbus-toolkit` if its script found no linked module.

A top-level module, since the package `agentbus` may be another project's.
"""

import _imp
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader


def main() -> None:
    """Run the verb's linked module in the first package on the path, else the verb itself."""
    names = ("agentbus/", "agentbus.py")
    searched = next(
        (place for place in sys.path if any(os.path.exists(f"{place}/{name}") for name in names)),
        "",
    )
    verb = sys.argv[1] if sys.argv[1:] and sys.argv[1].isalpha() else ""
    linked = f"{searched}/agentbus/linked/{verb}"
    if verb and os.path.exists(f"{linked}.py"):
        _run(linked, f"linked_{verb}", searched)
    try:
        from agentbus.commands._main import main as run
    except ImportError as error:
        raise SystemExit(
            f"agentbus-toolkit: {error}\nhint: if another project's 'agentbus' is installed here, "
            "uninstall it ('pip uninstall agentbus') and install agentbus-toolkit again"
        ) from None
    run()


def _run(linked: str, name: str, searched: str) -> None:
    """Run a linked module, or its bytecode if it was not compiled, or that cannot be loaded here."""
    path = f"{linked}{_imp.extension_suffixes()[0]}"
    try:
        made = _imp.create_dynamic(ModuleSpec(name, None, origin=path))
    except ImportError:
        code = SourceFileLoader("agentbus", f"{linked}.py").get_code("agentbus")
        # `searched` tells it that no other package comes first.
        exec(code or "", {"__name__": "__main__", "searched": searched})  # noqa: S102 (as Python runs a script)
    else:
        vars(made)["searched"] = searched
        _imp.exec_dynamic(made)
