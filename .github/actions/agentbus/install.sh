#!/usr/bin/env bash
# Installs AgentBus into an environment of its own, which the action caches, and sets up the steps that follow.
set -euo pipefail
fail() { echo "::error title=AgentBus::$1"; exit 2; }

[ -n "$URL" ] || fail "the input 'url' is empty: is the secret set, and may this workflow read it?"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$PYTHON is no Python 3.11 or newer: set the input 'python'"
case $VERSION in
  [0-9]*) what="agentbus-toolkit==$VERSION" ;;
  *) what=$VERSION ;;
esac
# What is cached runs with the Python that made it alone.
place="$HOME/.cache/agentbus-action/$("$PYTHON" -c 'import platform; print(platform.python_version())')"
if ! [ -e "$place/ready" ]; then
  rm -rf "$place"
  "$PYTHON" -m venv "$place"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$what" || fail "pip could not install $what"
  touch "$place/ready"
fi
mkdir -p "$place/commands"
ln -sf ../bin/agentbus "$place/commands/agentbus"
# Only the command, so that the job's own Python stays first on PATH.
echo "$place/commands" >>"$GITHUB_PATH"
echo "::add-mask::$URL"
for setting in "AGENTBUS_URL=$URL" "AGENTBUS_PROJECT=$PROJECT" "AGENTBUS_AGENT=$AGENT"; do
  case $setting in *$'\n'*) fail "${setting%%=*} has more than one line" ;; esac
  echo "$setting" >>"$GITHUB_ENV"
done
"$place/bin/agentbus" --version
