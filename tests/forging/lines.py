"""Command lines of every verb that reads what others wrote, at a small project."""

from __future__ import annotations

import json

from tests.forging.sound import CONSUMER, FLAG, FLOW, MESSAGE, NOTE, QUEUE, SCHEDULE

# These read neither the bus, nor a database, nor an archive.
READ_NOTHING = {
    *("help", "version", "completion", "spark", "whoami"),
    *("install", "uninstall"),
}
# What has files of its own: `archives.py` and `ledgers.py` have their lines. `wake` waits without end.
ELSEWHERE = {"archive", "replay", "report", "events", "outbox", "consume", "supervise", "wake"}

# What a verb reads from stdin; the others read `1`.
_CALLS = (
    *(("catch_up", {}), ("who", {}), ("lease", {}), ("receipts", {"id": "1-1@bob"})),
    *(("note", {"tags": ["a"]}), ("flag", {"name": FLAG, "do": "take"})),
)
STDIN = {
    "mcp": "".join(
        f'{{"jsonrpc": "2.0", "id": {number}, "method": "tools/call",'
        f' "params": {{"name": "{name}", "arguments": {json.dumps(given)}}}}}\n'
        for number, (name, given) in enumerate(_CALLS)
    ).encode(),
    "hook": json.dumps(
        {
            "session_id": "s-1",
            "cwd": ".",
            "stop_hook_active": False,
            "tool_name": "Edit",
            "tool_input": {"file_path": "src/a.py"},
        }
    ).encode(),
}

# `{task}` and the like are ids of the sound project. What only views comes before what changes.
LINES: dict[str, list[str]] = {
    "speak": ["hi", "hi --topic t"],
    "overhear": [
        *(
            "--last 50",
            "--last 50 --json",
            "--since 0-0 --json",
            "--peek --topic t",
            "--peek --others",
        ),
        *("--agent ada", "--topic t --json", "--catch-up", "--from-start --max 2", "--reset"),
    ],
    "monitor": ["--timeout 0.05", "--timeout 0.05 --json"],
    "top": ["--once", "--once --json"],
    "web": ["--port 0 --timeout 0.05", "--port 0 --timeout 0.05 --json"],
    "tell": ["ada hi", "bob hi --json"],
    "reply": ["1-1@bob yes"],
    "inbox": ["--peek", "--peek --json", "--all", "--json", "--agent ada"],
    "receipts": ["1-1@bob", "1-1@bob --json"],
    "who": ["", "--json", "--all", "--all --json", "--doing x"],
    "mcp": [""],
    "prime": ["", "--max-chars 600"],
    "hook": ["claude UserPromptSubmit", "claude PreToolUse", "claude Stop"],
    "jot": ["other value", f"{NOTE} changed --tag b,c", f"{NOTE} x --if-absent"],
    "recall": [NOTE, f"{NOTE} --json", "--tag a", "--tag a,b --all --json", "--tag b --latest 1"],
    "list": [
        *("", "--json", "--tag a", "--latest 3 --json", "--flags", "--flags --json", "--agents"),
        *("--agents --json", "--topics", "--topics --json", "--queues", "--queues --json"),
    ],
    "forget": [NOTE, "nothing"],
    "announce": [
        "building --ttl 9",
        "new --ttl 9 --json",
        f"{FLAG} --wait 0.05",
        "building --force",
    ],
    "await": [
        *("done-flag --timeout 0.05", "done-flag --json --timeout 0.05"),
        *(f"{FLAG} --until free --timeout 0.05", "failed-flag --timeout 0.05"),
        *(f"--any {FLAG} done-flag --json --timeout 0.05", "done-flag --delete --timeout 0.05"),
        f"{FLAG} building --until announced --timeout 0.05",
        *(f"{FLAG} --timeout 0.05", "done-flag --fresh --timeout 0.05"),
    ],
    "satisfy": ["building --note done", "building --force --json"],
    "fail": ["building --note bad", "building --force --json"],
    "release": ["building", "building --force --json"],
    "lease": [
        *("", "--json", "--check src/a.py new.py", "--check src/a.py --json --agent ada"),
        *("src/** --ttl 9 --json", "src/a.py --wait 0.05 --agent ada", "new.py --why x"),
        *("--drop new.py", "src/a.py --force --agent ada", "--drop --json"),
    ],
    "hold": ["building --wait 0.05 -- true", "new -- true", "done-flag --on-failure fail -- false"],
    "publish": [
        *(
            f"{QUEUE} 1",
            f"{QUEUE} 1 --key dedup --json",
            "new 1 --priority high",
            "worked 1 --delay 9",
        ),
        *(
            f"{QUEUE} 1 --after {{kept}}",
            f"{QUEUE} 1 --ordering-key customer",
            "new 1 --after {task}",
            "new 1 --durable disk",
            "new 1 --durable replica",
        ),
    ],
    "work": [
        "bounded --drain --drain-timeout 0.2 -- true",
        *(
            f"{QUEUE} --drain --drain-timeout 1 -- true",
            "worked --drain --drain-timeout 0.2 -- true",
        ),
        *(
            "held --drain --drain-timeout 0.2 -- true",
            f"{QUEUE} --group others --drain --drain-timeout 1 --json -- cat",
        ),
        *(f"{QUEUE} --drain --drain-timeout 1 --handler json:loads --attempts 1",),
    ],
    "result": ["{kept}", "{kept} --json", "{buried}", "{cancelled}", "{task} --wait 0.05"],
    "route": ["rules.yaml --drain", "rules.yaml --check"],
    "ask": [f"{QUEUE} 1 --timeout 0.05"],
    "dlq": [
        *(
            "list worked",
            "list worked --json",
            "show worked {letter}",
            "show worked {letter} --json",
        ),
        *("list worked --match Value --replayed", "list worked --limit 1 --after 0-0 --json"),
        *("replay worked {letter} --json", "replay worked --to other", "purge worked {letter}"),
    ],
    "pause": ["", "--json", "sound --why x --wait 0"],
    "halt": ["--wait 0", "--wait 0 --json"],
    "resume": ["held", "", "--json"],
    "agent": [
        *("list", "list --json", "list --all", "list --all --json", "get bob", "get w1 --json"),
        *("pause bob --wait 0 --json", "resume bob", "delete w1 --wait 0.05 --json"),
    ],
    "bus": [
        *("inspect bounded --json", "stats bounded", "delete bounded --force"),
        *("list", "list --json", f"inspect {QUEUE}", f"inspect {QUEUE} --json", "inspect worked"),
        *("inspect worked --last 3 --json", f"groups {QUEUE}", "groups worked --json", "stats"),
        *(
            "stats --json",
            "stats worked",
            f"delete {QUEUE} --force --json",
            "delete worked --force",
        ),
    ],
    "metrics": [
        *("", "--json", "--raw", "--raw --json", "--queue worked --since 1h"),
        *("--since 1d", "--since 1d --json", "--since 1d --raw --json"),
    ],
    "rerun": [
        *(
            f"{QUEUE} --from 0-0 --dry-run",
            "worked --from 1h --json",
            f"{QUEUE} --from 1h --group others",
        ),
    ],
    "tidy": ["", "--dry-run --json", f"{QUEUE} --json", "worked"],
    "task": [
        *("show {moved}", "show {moved} --json", "cancel {moved} --json"),
        *(
            "show {kept}",
            "show {kept} --json",
            "show {buried}",
            "show {buried} --json",
            "show {task}",
        ),
        *("show {dependent} --json", "show {delayed}", "show {retried} --json", "show {cancelled}"),
        *("set {delayed} --now", "set {dependent} --priority high --json", "set {retried} --now"),
        *("cancel {task} --json", "cancel {delayed}", "cancel {retried}", "show {ordered} --json"),
    ],
    "schedule": [
        *("list", "list --json", f"show {SCHEDULE}", f"show {SCHEDULE} --json"),
        *(f"add {SCHEDULE} chores --every 1h", "add new chores --cron @daily --json"),
        *(f"pause {SCHEDULE}", f"resume {SCHEDULE} --json", f"trigger {SCHEDULE}"),
        f"remove {SCHEDULE}",
    ],
    "token": [
        *("list", "list --json", "create other --scope read", "create cloud --json"),
        "revoke cloud --json",
    ],
    "approve": ["why --by human:anna --timeout 0.01", "why --by bob --timeout 0.01 --json"],
    "limit": [
        *("list", "list --json", "show limited", "show limited --json", "set limited --at-once 2"),
        *("set chores --per-second 3 --by tenant --json", "remove chores --json"),
    ],
    "flow": [
        *("list", "list --json", f"show {FLOW}", f"show {FLOW} --json", f"replay {FLOW}"),
        f"cancel {FLOW} --json",
    ],
    "quarantine": ["list", "list --json", f"release {CONSUMER}", "release --all --json"],
    "doctor": ["", "--json"],
    "health": ["", "--json", "--strict"],
    "projects": ["", "--json"],
    "shards": ["list", "list --json", "set 2 --json"],
    "acl": ["", "--role publisher --json"],
    "clear": ["--dry-run", "--dry-run --json", "--force --json"],
    "server": ["status", "status --json"],
}
# The views in which a sound record must be found, whatever lies beside it.
SHOWN = {
    "lease": "src/** by bob until",
    "overhear --last 50": MESSAGE,
    "overhear --last 50 --json": MESSAGE,
    "overhear --since 0-0 --json": MESSAGE,
    f"recall {NOTE}": "the value",
    "recall --tag a": "the value",
    "list": NOTE,
    "list --json": NOTE,
    "list --tag a": NOTE,
    "list --flags": FLAG,
    "list --flags --json": FLAG,
    "list --agents": "bob",
    "list --agents --json": "bob",
    "list --topics": "knowledge",
    "list --topics --json": "knowledge",
    "list --queues": QUEUE,
    "list --queues --json": QUEUE,
    "await done-flag --json --timeout 0.05": "it is done",
    "await failed-flag --timeout 0.05": "it is not",
    "result {kept}": "a result",
    "result {kept} --json": "a result",
    "result {buried}": "ValueError: no",
    "dlq list worked": "ValueError: no",
    "dlq list worked --json": "ValueError: no",
    "dlq show worked {letter}": "ValueError: no",
    "pause": "a sound reason",
    "pause --json": "a sound reason",
    "agent list --all": "bob",
    "agent list --all --json": "bob",
    "agent get bob": "bob",
    "bus list": QUEUE,
    "bus list --json": QUEUE,
    f"bus inspect {QUEUE}": "n",
    "bus inspect worked": "retried",
    "bus inspect bounded --json": "far away",
    "task show {moved}": "retrying",
    f"bus groups {QUEUE}": "others",
    "bus stats": QUEUE,
    "bus stats --json": QUEUE,
    "metrics --since 1d": "worked",
    "metrics --since 1d --json": "worked",
    "metrics --since 1d --raw --json": "worked",
    "task show {kept} --json": "done",
    "task show {buried} --json": "buried",
    "task show {delayed}": "delayed",
    **dict.fromkeys(("flow list", "flow list --json"), FLOW),
    "schedule list": SCHEDULE,
    "schedule list --json": SCHEDULE,
    "quarantine list": CONSUMER,
    "quarantine list --json": CONSUMER,
    "health --json": CONSUMER,
    "projects": "app",
    "projects --json": "app",
}


def all_lines() -> list[str]:
    """Return every line with its verb."""
    return [f"{verb} {rest}".strip() for verb, lines in LINES.items() for rest in lines]
