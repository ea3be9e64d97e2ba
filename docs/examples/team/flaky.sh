#!/bin/sh
# Uploads things over a bad line: the pictures at the second attempt, anything else never.
#
# usage: agentbus work agent.flaky -- flaky.sh
set -eu
. "$(dirname "$0")/agent.sh"

if [ "$task" != "the pictures" ] || [ "$AGENTBUS_ATTEMPT" -lt 2 ]; then
  # Any exit code but 0 and 65 means: try again, and bury it after the last attempt.
  say "the line broke while $task went up (attempt $AGENTBUS_ATTEMPT)"
  exit 1
fi
say "uploaded $task (attempt $AGENTBUS_ATTEMPT)"
printf '%s\n' "uploaded $task"
