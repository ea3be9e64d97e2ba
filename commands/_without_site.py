"""Runs a verb in a virtual environment whose Python was started without `site`, a quarter of its start.

`site` runs after all where a `.pth` file or a customization needs it, or a module is found nowhere else.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those that pip, virtualenv, uv and pipx leave in each environment: for what imports `distutils`, or pip.
_NEEDLESS = ("_virtualenv.pth", "distutils-precedence.pth", "pipx_shared.pth")


def needs_site(place: str) -> bool:
    """Tell whether `site` would run something that is in a place on the path of modules."""
    try:
        found = os.listdir(place)
    except OSError:
        # A file may be an archive, which can hold anything.
        return os.path.exists(place)
    return any(
        name.startswith(("sitecustomize", "usercustomize"))
        or (name.endswith(".pth") and name not in _NEEDLESS)
        for name in found
    )


def _find(name: str, path: Any = None, target: Any = None) -> Any:
    import site

    sys.meta_path.remove(_find)  # type: ignore[arg-type]
    site.main()
    found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
    return next(filter(None, found), None)


def _begin() -> None:
    gc.disable()
    # Python's own option, and this file.
    del sys.argv[:2]
    # This file is site-packages/agentbus/commands/_without_site.py.
    packages = _begin.__code__.co_filename.rsplit("/", 3)[0]
    # What PYTHONPATH names comes before Python's own.
    own = next(at for at, place in enumerate(sys.path) if place.endswith(".zip"))
    needed = any(map(needs_site, (*sys.path[:own], packages)))
    sys.path.append(packages)
    if needed:
        import site

        site.main()
    else:
        _find.find_spec = _find  # type: ignore[attr-defined]
        sys.meta_path.append(_find)  # type: ignore[arg-type]


if __name__ == "__main__":
    _begin()
    from agentbus.commands._main import main

    main()
