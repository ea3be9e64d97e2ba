"""Tests of a verb that is interrupted where Python lets no exception out: in a callback, or a finalizer."""

import pytest

# Interrupts this process while a module is imported, in the callback of a weak reference: `import` itself
# has such callbacks, and a Ctrl-C may come in one of them.
_IN_A_CALLBACK = """
import os, signal, sys, weakref

class Value:
    pass

def on_import(event, args):
    if event == "import" and args[0] == os.environ["AT"]:
        value = Value()
        here = weakref.ref(value, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del value

sys.addaudithook(on_import)
"""


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        (("await", "never", "--timeout", "20"), "agentbus.commands._waiting"),
        (("monitor", "--timeout", "20"), "agentbus.store.followers"),
        (("work", "jobs", "--", "true"), "agentbus.commands.work"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_interrupt_within_a_callback_ends_a_verb_that_waits(
    real_shell, tmp_path, line, imported
):
    (tmp_path / "sitecustomize.py").write_text(_IN_A_CALLBACK)

    done = real_shell.run(*line, env={"PYTHONPATH": str(tmp_path), "AT": imported})

    assert done.returncode == 130
    assert "Traceback" not in done.stderr
