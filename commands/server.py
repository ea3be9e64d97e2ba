"""server: control the embedded server."""

from __future__ import annotations

from agentbus.commands import _format, _values
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Verb
from agentbus.store import functions, resp
from agentbus.store.embedded import control

VERB = Verb(
    "server",
    actions(
        {
            "start": "Start it, if it does not run.",
            "stop": "Stop it.",
            "status": "Print its state; exit 5 if it does not run.",
            "run": "Keep it in the foreground, for a service manager.",
            "repair": "Repair a damaged append-only file, and keep a copy.",
            "load": "Load the functions that users with 'acl --functions' call, into the URL's server.",
        }
    ),
    text="It starts when a verb needs it, and keeps running. JSON: running, directory, socket, log,"
    " version, pid, uptime, memory, keys; for load library, functions, loaded.",
    examples=("agentbus server status", "agentbus server stop", "agentbus server repair"),
    subject="action",
)
_NOT_RUNNING = 5


def run(call: Call) -> int:
    """Run the action and print the server's state."""
    action = call.args.action
    if action == "load":
        _load(call)
        return 0
    if action == "run":
        control.run()
    if action == "repair":
        kept = control.repair()
        call.out.record(
            {"repaired": True, "copy": kept}, f"repaired; the damaged file is in {kept}"
        )
        return 0
    if action == "stop":
        stopped = control.stop()
        call.out.record({"stopped": stopped}, "stopped" if stopped else "it did not run")
        return 0
    state = control.start(call.settings.deadline) if action == "start" else control.status()
    if not state.running:
        text = f"not running; its files are in {state.directory}"
    elif state.version is None:
        text = f"running, but not answering; see {state.log}"
    else:
        text = (
            f"{state.version} running as process {state.pid} for {state.uptime:g} s,"
            f" {_format.count(state.keys or 0, 'key')}, {(state.memory or 0) / 1048576:.1f} MiB,"
            f" socket {state.socket}"
        )
    call.out.record(_values.fields(state), text)
    return 0 if state.running else _NOT_RUNNING


def _load(call: Call) -> None:
    """Load the functions, and print their library."""
    loaded = call.bus.runner.run(functions.load(), verb="server")
    number = len(resp.digests())
    fields = {"library": functions.library(), "functions": number, "loaded": loaded}
    did = "loaded" if loaded else "were there"
    call.out.record(fields, f"{functions.library()}: {number} functions {did}")
