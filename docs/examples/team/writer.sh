#!/bin/sh
# Writes, and says on the channel when an item of the inbox is done.
#
# usage: agentbus work agent.writer -- writer.sh
set -eu
. "$(dirname "$0")/agent.sh"

case $type in
  chore) verb='did the chore:' ;;
  *) verb='wrote about' ;;
esac
say "$verb $task ($AGENTBUS_PRIORITY)"
# A program that wrote a task with redis-cli has no task id; the channel names the item instead.
if [ -n "$work_item_id" ]; then
  agentbus speak --msg "$work_item_id of $inbox_id: $verb $task" --topic inbox >/dev/null
fi
printf '%s\n' "$verb $task"
