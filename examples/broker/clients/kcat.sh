#!/usr/bin/env bash
# kcat, which is librdkafka: kcat.sh BROKER TOPIC. A consumer of a topic that does not exist, and an
# idempotent producer; then members of a group.
set -euo pipefail
broker=$1 topic=$2 out=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null; rm -f "$out"' EXIT
see() { # Until so many lines are there.
    for _ in $(seq 200); do
        [[ $(grep -c "$1" "$out") -lt $2 ]] || return 0
        sleep 0.1
    done
    echo "no $2 lines of $1 in: $(cat "$out")" >&2 && exit 1
}
kcat -b "$broker" -t "$topic" -p 0 -C -u -X allow.auto.create.topics=true >"$out" 2>&1 &
see 'Reached end' 1
seq 1000 | kcat -b "$broker" -t "$topic" -p 0 -P -X enable.idempotence=true
see '^[0-9]' 1000
cmp <(grep '^[0-9]' "$out") <(seq 1000)
kill %1

# Emptied here: the shell of a job does it late, when `see` may have seen the former lines.
: >"$out"
kcat -b "$broker" -u -X auto.offset.reset=earliest -G "$topic-readers" "$topic" >"$out" 2>&1 &
see '^[0-9]' 1000
kill -INT %2 && wait %2 # It commits, and leaves.
echo 1001 | kcat -b "$broker" -t "$topic" -p 1 -P
: >"$out"
kcat -b "$broker" -u -X auto.offset.reset=earliest -G "$topic-readers" "$topic" >"$out" 2>&1 &
see '^1001$' 1
[[ $(grep -c '^[0-9]' "$out") == 1 ]] # What was committed does not come again.
