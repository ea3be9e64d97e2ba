# What the agents share; sourced, not run. `agentbus work` gives the task to stdin, and takes what
# is printed for its result; what is said to stderr goes into the agent's own log.

# The fields of the task become variables of the same names, empty where it has none. They are data:
# quoted, they can do nothing here.
fields=$(python3 -c '
import json, shlex, sys
task = json.load(sys.stdin)
for name in ("task", "type", "work_item_id", "inbox_id"):
    print(name + "=" + shlex.quote(str(task.get(name, ""))))
')
eval "$fields"

say() {
  printf '%s\n' "$1" >&2
}

# hand_on TYPE: the same matter as a task of another type. Nobody is named: that is the router's
# business. AGENTBUS_TRAIL in the environment tells it which agents the matter has passed.
hand_on() {
  python3 -c 'import json, sys; print(json.dumps({"task": sys.argv[1], "type": sys.argv[2]}))' \
    "$task" "$1" | agentbus publish incoming - >/dev/null
}
