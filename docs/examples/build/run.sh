#!/usr/bin/env bash
# Runs the builder, the tester and the deployer, three processes that know only the bus.
#
# usage: run.sh [FOLDER]
#
# FOLDER (by default a temporary one, removed at the end) receives the build and `deployed/`.
# The bus is whatever AGENTBUS_URL says, else the embedded server. The project is a separate one,
# removed at the end; EXAMPLE_PROJECT names another one, which is kept.
# Each role gets its own process group, so that one signal ends it with all its children.
set -eum
unset CDPATH
here=$(cd "$(dirname "$0")" && pwd)
# What the scripts read as text must be text, whatever the user's settings say.
export AGENTBUS_JSON=0
export AGENTBUS_PROJECT="${EXAMPLE_PROJECT:-example-build-$(date +%s)-$$}"
made=
running=

finish() {
  code=$?
  trap - EXIT
  for pid in $running; do kill -- "-$pid" 2>/dev/null || :; done
  wait 2>/dev/null || :
  [ -n "${EXAMPLE_PROJECT:-}" ] || agentbus clear --force >/dev/null 2>&1 || :
  [ -z "$made" ] || rm -rf "$made"
  exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ $# -gt 0 ]; then
  mkdir -p "$1"
  folder=$(cd "$1" && pwd)
else
  made=$(mktemp -d)
  folder=$made
fi

# A script that waits may start first: the order does not matter.
AGENTBUS_AGENT=deployer "$here/deployer.sh" "$folder" &
deployer=$!
AGENTBUS_AGENT=tester "$here/tester.sh" &
tester=$!
AGENTBUS_AGENT=builder "$here/builder.sh" "$folder" &
builder=$!
running="$builder $tester $deployer"

result=0
for pid in $running; do
  wait "$pid" || result=$?
  # Without one of them the others would only wait in vain.
  [ "$result" -eq 0 ] || break
done
if [ "$result" -ne 0 ]; then
  echo "run       | a role failed with code $result" >&2
  exit "$result"
fi
running=
echo "run       | all three ended well; 20 + 22 = $(printf '20\n22' | sh "$folder/deployed/total")"
