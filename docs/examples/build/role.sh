# What the three roles share; sourced, not run.

# One printf is one write, so the lines of several processes never mix.
say() {
  printf '%-9s | %s\n' "$AGENTBUS_AGENT" "$1"
}

# field NAME JSON: the value of a field of one JSON object. A script reads JSON, never the text that
# is made for people; jq would do as well, but Python is surely there.
field() {
  printf '%s' "$2" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}
