#!/bin/sh
# Tests each build, says on the channel how it went, and ends when one is good.
#
# usage: AGENTBUS_AGENT=tester tester.sh
set -eu
. "$(dirname "$0")/role.sh"
: "${AGENTBUS_AGENT:=tester}"
export AGENTBUS_AGENT

# check INPUT EXPECTED: runs the program for real.
check() {
  got=$(printf "$1" | sh "$program")
  [ "$got" = "$2" ] || {
    printf '%s\n' "of the input '$1' the total should be $2, and is $got"
    return 1
  }
}

run_checks() {
  check '1\n2\n3\n' 6 && check '' 0 && check '20\n22' 42
}

for round in 1 2 3; do
  # --delete consumes the completion, so that the next round waits for the next build and is not
  # content with this one. Where no build comes in time: exit 3, and `set -e` ends with that code.
  built=$(agentbus await build --delete --timeout 30 --json)
  program=$(agentbus recall artifact)
  version=$(field note "$built")
  agentbus announce test --ttl 30 >/dev/null
  say "tests $version of $(field agent_id "$built")"

  if report=$(run_checks); then
    agentbus speak "passed: $version" --topic tests >/dev/null
    agentbus satisfy test --note "$version" >/dev/null
    say "PASSED: $version"
    exit 0
  fi
  say "FAILED: $report"
  # The full report is a note; the channel gets a summary.
  printf '%s' "$report" | agentbus jot test-report - --tag tests >/dev/null
  # Released, not failed: the next round tests again, and the deployer keeps waiting.
  agentbus release test >/dev/null
  agentbus speak "failed: $version" --topic tests >/dev/null
done
say "gives up after $round rounds"
exit 1
