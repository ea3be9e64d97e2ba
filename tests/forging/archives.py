"""Archives that somebody changed: their log, their files, and what lies beside them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

from hypothesis import strategies as st

from tests.forging.values import blobs, json_like
from tests.pipeline.archives import row, write_archive

T = 1_763_640_000_000
# Each line that reads an archive; those that write end before Spark would start, or need none.
LINES = [
    *("archive status {}", "archive status {} --json", "archive release {}", "archive verify {}"),
    *(
        "archive compact {} --dry-run",
        "archive compact {}",
        "archive {}",
        "archive {} --hold --json",
    ),
    *(
        "replay {} --dry-run",
        "replay {} --to-queue other --json",
        "replay {} --stream q:mail --id r1",
    ),
    *("report tasks {}", "report all {} --json", "report activity {} --since 1h --csv {}/x.csv"),
]
_PATHS = [
    *(
        "kind=channel/../../outside/kept",
        "../outside/kept",
        "/etc/passwd",
        "_delta_log/x",
        "kind=queue",
        "",
    ),
    *(
        "kind=queue/date=2025-11-20/../../../outside/kept",
        "kind=queue/date=2025-11-20/0-0.parquet\\n",
        "file:///etc/passwd",
    ),
]
_NAMES = [
    *("_delta_log/00000000000000000099.json", "_delta_log/00000000000000000004.json"),
    *("_delta_log/00000000000000000002.checkpoint.parquet", "_delta_log/_last_checkpoint"),
    *("_delta_log/" + "9" * 20 + ".json", "_delta_log/x.json", "_delta_log/.tmp-1"),
    *("kind=queue/x.parquet", "kind=position/date=1970-01-01/x.parquet", "x"),
]


class Change:
    """One change of an archive's directory."""

    def __init__(self, what: str, at: int, value: Any) -> None:
        self.what = what
        self.at = at
        self.value = value

    def __repr__(self) -> str:
        return f"Change({self.what!r}, {self.at}, {self.value!r:.300})"

    def make(self, archive: pathlib.Path, outside: pathlib.Path) -> None:
        """Change the archive; nothing is written elsewhere."""
        known = sorted(each for each in archive.rglob("*") if each.is_file() or each.is_symlink())
        place = known[self.at % len(known)] if known else archive / "x"
        if self.what == "new":
            place = archive / _NAMES[self.at % len(_NAMES)]
        elif self.what == "json":
            logged = sorted((archive / "_delta_log").glob("*.json"))
            place = logged[self.at % len(logged)] if logged else place
        if self.what == "link":
            target = place if self.at % 2 or place.parent == archive else place.parent
            is_link = target.is_symlink() or not target.is_dir()
            target.unlink(missing_ok=True) if is_link else shutil.rmtree(target)
            target.symlink_to(outside / ("kept" if self.at % 2 else ""))
            return
        if self.what == "gone":
            place.unlink(missing_ok=True)
            return
        if place.is_symlink() or place.is_dir():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(self.value)


def sound(place: pathlib.Path) -> list[bytes]:
    """Make an archive, and return the texts of its log."""
    for batch in range(3):
        write_archive(
            place / "archive",
            [
                row("ch:main", f"{T + batch}-0", agent="bob", message="hi", topic="t"),
                row("q:mail", f"{T + batch}-1", fields={"payload": "1"}),
                row("metrics", f"{T + batch}-2", fields={"queue": "mail"}),
            ],
            "app",
        )
    return [each.read_bytes() for each in sorted((place / "archive/_delta_log").glob("*.json"))]


def changes(logged: list[bytes]) -> st.SearchStrategy[list[Change]]:
    """Return one to three changes; `logged` are the texts of the sound log."""
    numbers = st.integers(0, 40)
    texts = st.sampled_from(logged).flatmap(_forged)
    one = st.one_of(
        st.builds(Change, st.just("json"), numbers, texts),
        st.builds(Change, st.just("json"), numbers, texts),
        st.builds(Change, st.sampled_from(["new", "over"]), numbers, texts | blobs),
        st.builds(Change, st.sampled_from(["gone", "link"]), numbers, st.just(b"")),
    )
    return st.lists(one, min_size=1, max_size=3)


@st.composite
def _forged(draw: st.DrawFn, text: bytes) -> bytes:
    """Return the text of a commit with a path that leads elsewhere, or with any part replaced."""
    actions = [json.loads(line) for line in text.splitlines()]
    at = draw(st.integers(0, len(actions) - 1))
    added = actions[at].get("add")
    if added and draw(st.booleans()):
        added["path"] = draw(st.sampled_from(_PATHS))
        if draw(st.booleans()):
            actions.append({"remove": {"path": added["path"], "dataChange": True}})
    else:
        actions[at] = draw(json_like(actions[at]))
    return b"\n".join(json.dumps(action).encode() for action in actions)


def renew(place: pathlib.Path, template: pathlib.Path) -> None:
    """Have the archive as it was made, beside a directory that is none of its business."""
    for name in ("archive", "outside"):
        shutil.rmtree(place / name, ignore_errors=True)
    shutil.copytree(template / "archive", place / "archive")
    (place / "outside").mkdir()
    for name in ("kept", "00c0ffee-0.parquet", "00000000000000000001.json"):
        (place / "outside" / name).write_bytes(b"not of the archive")
        # As old as what a sweep removes.
        os.utime(place / "outside" / name, (0, 0))


def elsewhere(place: pathlib.Path) -> dict[str, bytes]:
    """Return all that lies outside of the archive."""
    found = {}
    for top, folders, files in os.walk(place):
        folders[:] = [one for one in folders if pathlib.Path(top, one) != place / "archive"]
        found |= {os.path.join(top, one): pathlib.Path(top, one).read_bytes() for one in files}
    return found
