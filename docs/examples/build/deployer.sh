#!/bin/sh
# Deploys what was tested, while it holds the flag `deploy`: never two at once.
#
# usage: AGENTBUS_AGENT=deployer deployer.sh FOLDER
set -eu
. "$(dirname "$0")/role.sh"
folder=$1
: "${AGENTBUS_AGENT:=deployer}"
export AGENTBUS_AGENT

say "waits for good tests"
# The tester only releases the flag after a failed test: this sleeps through the first round.
tested=$(agentbus await test --timeout 60 --json)
program=$(agentbus recall artifact)
say "hears that $(field note "$tested") is good, and deploys it"

# `hold` renews the flag for as long as the command runs, satisfies it if that succeeds, fails it
# otherwise, and ends with the command's code; 4 if another deploys for 30 s or more.
code=0
agentbus hold deploy --ttl 20 --wait 30 -- sh -eu -c '
  mkdir -p "$2"
  cp "$1" "$2/total.new"
  echo "$AGENTBUS_TOKEN" >"$2/token"
  mv "$2/total.new" "$2/total"
' deploy "$program" "$folder/deployed" || code=$?

if [ "$code" -ne 0 ]; then
  agentbus speak "deploying ended with code $code" --topic deploy >/dev/null
  say "FAILED with code $code"
  exit "$code"
fi
agentbus speak "deployed: $(field note "$tested")" --topic deploy >/dev/null
say "DEPLOYED to $folder/deployed"
