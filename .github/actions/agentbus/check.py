#!/usr/bin/env python3
"""Checks the server by `agentbus doctor`, with an annotation for each finding, and exits as it does."""

import json
import subprocess
import sys

KINDS = {"ok": "", "warning": "warning", "failed": "error"}


def escaped(text: str) -> str:
    """Return a text as the runner wants it in one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def main() -> None:
    """Run the check and print what it finds."""
    done = subprocess.run(
        ["agentbus", "doctor", "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    for line in done.stdout.splitlines():
        finding = json.loads(line)
        kind = KINDS[finding["status"]]
        text = ": ".join(filter(None, (finding["found"], finding["remedy"])))
        shown = (
            f"::{kind} title=AgentBus, {finding['check']}::" if kind else f"{finding['check']}: "
        )
        print(shown + escaped(text))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
