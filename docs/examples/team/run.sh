#!/bin/sh
# Runs a team: a router, three agents and a fourth that fails; gives it work, shows who did what.
#
# usage: run.sh
#
# The bus is whatever AGENTBUS_URL says, else the embedded server. The project is a separate one,
# removed at the end; EXAMPLE_PROJECT names another one, which is kept.
set -eu
unset CDPATH
cd "$(dirname "$0")"
export AGENTBUS_JSON=0 AGENTBUS_AGENT=run AGENTBUS_CONFIG="$PWD/agentbus.yaml"
export AGENTBUS_PROJECT="${EXAMPLE_PROJECT:-example-team-$(date +%s)-$$}"
# Longer than any wait here takes, so that nothing hangs.
patience=60
logs=$(mktemp -d)
running=
halted=

finish() {
  code=$?
  trap - EXIT
  trap '' HUP INT TERM
  for pid in $running; do kill "$pid" 2>/dev/null || :; done
  wait
  if [ -z "${EXAMPLE_PROJECT:-}" ]; then
    agentbus clear --force >/dev/null 2>&1 || :
  elif [ -n "$halted" ]; then
    # Leave nothing halted for the next run.
    agentbus resume >/dev/null || :
  fi
  # Of a run that failed the agents' own words say more than all the rest.
  [ "$code" -eq 0 ] || tail -n 5 "$logs"/* >&2 2>/dev/null || :
  rm -rf "$logs"
  exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

title() { printf '\n== %s\n' "$1"; }

# write_item OPTIONS...: a task as another program writes it, field by field. Its priority and its
# work item are fields like all others, and an empty agent_id is none.
write_item() {
  redis-cli "$@" XADD "$AGENTBUS_PROJECT:q:incoming" '*' task 'the release' type docs \
    inbox_id desk-1 priority high work_item_id W-17 work_item '{"repo": "shop"}' agent_id '' \
    >/dev/null
}

agentbus route team.yaml --check

title 'The work: what is published before there is a team waits for it'
ids=$(agentbus publish incoming --lines <tasks.jsonl)
login='{"task": "the broken login", "type": "build"}'
urgent=$(agentbus publish incoming "$login" --priority critical)
shop=$(echo "$ids" | head -n 1)
news=$(agentbus publish incoming '{"task": "the new shop", "type": "docs"}' --after "$shop")
song=$(agentbus publish incoming '{"task": "a song", "type": "sing"}')
ids="$urgent $ids $news"
echo "$(echo $ids $song | wc -w | tr -d ' ') tasks; one of them waits until the shop is built"

# Each is one process, and knows nothing but its queue.
agentbus route team.yaml --agent router >"$logs/router" 2>&1 &
router=$!
running=$router
agents=
for agent in builder reviewer writer flaky; do
  agentbus work "agent.$agent" --agent "$agent" -- "./$agent.sh" >/dev/null 2>"$logs/$agent" &
  agents="$agents $!"
  running="$router $agents"
done

title 'What became of it'
for id in $ids; do
  # A task keeps its id on its way. Buried: exit 8.
  code=0
  result=$(agentbus result "$id" --wait "$patience" 2>"$logs/why") || code=$?
  case $code in
    0) printf '%s\n' "$result" ;;
    8) sed -n "s/.*' was buried: /buried: /p" "$logs/why" ;;
    *) cat "$logs/why" >&2; exit "$code" ;;
  esac
done
agentbus result "$song" --wait "$patience" >/dev/null 2>&1 || [ $? -eq 8 ]
agentbus dlq list incoming --group router | sed 's/.* Bury: /buried: /'

title 'The order in which the builder worked'
# Of the worker's log, the lines of the program that end with the priority.
sed -n 's/^[^ ]* | \(.*)\)$/\1/p' "$logs/builder"

title 'Two agents that would hand a matter to each other forever'
agentbus publish incoming '{"task": "the button", "type": "polish"}' >/dev/null
agentbus overhear --topic coordination --since 0-0 --follow --max 1 --timeout "$patience" |
  sed 's/.*: it goes/it goes/'

title 'A task by plain redis-cli, written twice'
url=${AGENTBUS_URL:-$(agentbus whoami --json | sed 's/{[^{]*"url": "\([^"]*\)".*/\1/')}
case $url in
  # A password would show in the list of processes; options of a URL are none of redis-cli's.
  *@* | *\?*) set -- ;;
  unix://*) set -- -s "${url#unix://}" ;;
  redis://*) set -- -u "$url" ;;
  *) set -- ;;
esac
if [ $# -gt 0 ] && command -v redis-cli >/dev/null; then
  write_item "$@"
  # The same work_item_id: the router moves it once, and counts this one as a duplicate.
  write_item "$@"
  agentbus overhear --topic inbox --since 0-0 --follow --max 1 --timeout "$patience" |
    sed 's/.*\] //'
else
  echo 'skipped: there is no redis-cli, or it cannot reach this server'
fi

title 'agentbus halt, and agent list: nobody takes anything any more'
halted=yes
agentbus halt --why 'the day is over'
agentbus agent list

title 'agentbus dlq list agent.flaky'
agentbus dlq list agent.flaky

title 'agentbus health'
agentbus health || [ $? -eq 6 ]

kill "$router"
wait "$router"
running=$agents
title 'The router goes home'
grep -v ' INFO agentbus: ' "$logs/router"
