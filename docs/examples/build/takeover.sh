#!/bin/sh
# A builder is killed with -9 while it holds a flag; another one takes over, with a higher token.
#
# usage: takeover.sh
#
# The project is a separate one, removed at the end; EXAMPLE_PROJECT names another, which is kept.
set -eu
. "$(dirname "$0")/role.sh"
export AGENTBUS_JSON=0
export AGENTBUS_PROJECT="${EXAMPLE_PROJECT:-example-takeover-$(date +%s)-$$}"
store=$(mktemp -d)

finish() {
  code=$?
  trap - EXIT
  [ -n "${EXAMPLE_PROJECT:-}" ] || agentbus clear --force >/dev/null 2>&1 || :
  rm -rf "$store"
  exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# publish TOKEN: what a fencing token is for. The store takes a write only from a holder who came
# later than all it has seen, so one who was thought dead, and wakes up, can spoil nothing.
publish() {
  seen=$(cat "$store/token" 2>/dev/null || echo 0)
  [ "$1" -gt "$seen" ] || return 4
  echo "$1" >"$store/token"
}

export AGENTBUS_AGENT=builder-1
say "holds the flag 'image' for 2 s at a time, and is killed with -9 at work"
# The command notes its token and kills its parent, the `hold` that would have renewed the flag.
killed=0
# The braces take what the shell itself says of the kill.
{
  agentbus hold image --ttl 2 -- sh -c '
    agentbus jot first-token "$AGENTBUS_TOKEN" >/dev/null && kill -9 "$PPID"
  '
} 2>/dev/null || killed=$?
[ "$killed" -eq 137 ] || { say "was not killed, but ended with $killed"; exit 1; }

export AGENTBUS_AGENT=builder-2
first=$(agentbus recall first-token)
# Nobody satisfied the flag and nobody says that it is free: it ends by its time to live.
say "waits for the flag, which nobody releases"
hold=$(agentbus announce image --ttl 30 --wait 20 --json)
second=$(field token "$hold")
say "takes over with token $second, after token $first"
[ "$second" -gt "$first" ]
publish "$second"

export AGENTBUS_AGENT=builder-1
say "wakes up, and knows nothing of this"
refused=0
agentbus satisfy image >/dev/null 2>&1 || refused=$?
[ "$refused" -eq 4 ] || { say "ended another's hold (exit $refused)"; exit 1; }
say "is refused by the bus: it is not the holder any more (exit 4)"
refused=0
publish "$first" || refused=$?
[ "$refused" -eq 4 ] || { say "spoilt the store"; exit 1; }
say "is refused by the store: token $first is older than $second"

export AGENTBUS_AGENT=builder-2
agentbus satisfy image --note "built by builder-2" >/dev/null
say "is done"
