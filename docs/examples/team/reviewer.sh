#!/bin/sh
# Reviews what it is shown; what was polished should in its opinion be polished a little more.
#
# usage: agentbus work agent.reviewer -- reviewer.sh
set -eu
. "$(dirname "$0")/agent.sh"

case $type in
  critique)
    hand_on polish
    verb='wants more polish on'
    ;;
  chore) verb='did the chore:' ;;
  *) verb=reviewed ;;
esac
say "$verb $task ($AGENTBUS_PRIORITY)"
printf '%s\n' "$verb $task"
