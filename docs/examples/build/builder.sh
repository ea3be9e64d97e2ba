#!/bin/sh
# Builds a program; hears whether its tests passed; mends it and builds again where they failed.
#
# usage: AGENTBUS_AGENT=builder builder.sh FOLDER
set -eu
. "$(dirname "$0")/role.sh"
folder=$1
: "${AGENTBUS_AGENT:=builder}"
export AGENTBUS_AGENT

write_source() {
  # It has a real bug, and a common one: a last line that ends without a newline is not counted.
  cat >"$folder/total.source" <<'SOURCE'
# total: adds up the numbers of its input, one a line.
sum=0
while read -r number; do sum=$((sum + number)); done
echo "$sum"
SOURCE
}

mend_source() {
  # Here an agent would think. This one knows what is wrong.
  sed 's/read -r number;/read -r number || [ -n "$number" ];/' "$folder/total.source" \
    >"$folder/total.mended"
  mv "$folder/total.mended" "$folder/total.source"
}

compile() {
  {
    echo '#!/bin/sh'
    echo "# version $1"
    cat "$folder/total.source"
  } >"$folder/total-$1"
  chmod +x "$folder/total-$1"
}

write_source
for version in 1 2 3; do
  # Should this process die now, the flag is free again after 30 s: no build hangs forever.
  # An assignment keeps the exit code, which a pipe would hide: 4 would mean that another builds.
  hold=$(agentbus announce build --ttl 30 --json)
  say "builds version $version (fencing token $(field token "$hold"))"
  compile "$version"

  # Where the program is goes into a note, before the flag tells anyone to look for it.
  agentbus jot artifact "$folder/total-$version" --tag build >/dev/null
  agentbus satisfy build --note "version $version" >/dev/null
  say "has built version $version"

  # Listening to one topic; --max 1 ends at the first message, --timeout where none comes.
  heard=$(agentbus overhear --topic tests --others --follow --max 1 --timeout 30 --json)
  if [ -z "$heard" ]; then
    say "heard nothing from the tester"
    exit 3
  fi
  verdict=$(field message "$heard")
  case $verdict in
    passed*)
      say "hears '$verdict', and is done"
      exit 0
      ;;
    *)
      say "hears '$verdict'; the report says: $(agentbus recall test-report)"
      mend_source
      ;;
  esac
done
say "gives up after $version versions"
exit 1
