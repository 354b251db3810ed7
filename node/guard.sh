#!/bin/bash
# Runs the command in $0 and ends it, with all it started, once this shell's standard input ends: that is
# the SSH channel, so Ctrl-C, a killed fab and a lost connection all stop the command on the node too.
# Only the command holds the output, which therefore ends with it; bash's own notices about jobs go nowhere.
exec 3>&1 4>&2 >/dev/null 2>&1
# A process group of its own, in which keyboard signals keep their meaning. Not by bash's job control (set -m): with that a
# command that somebody stops (SIGSTOP) would count as ended.
setsid env --default-signal=INT,QUIT bash -c "$0" </dev/null >&3 2>&4 3>&- 4>&- &
job=$!
exec 3>&- 4>&-
{
    while IFS= read -r -d '' _; do :; done
    # In a pod the input also ends as soon as the command has closed its output, as mv does before it exits.
    [ -z "${KUBERNETES_SERVICE_HOST:-}" ] || sleep 0.5
    kill -TERM -- "-$job"
    sleep 2
    kill -KILL -- "-$job"
} <&0 &
guard=$!
wait "$job"
code=$?
kill -KILL "$guard"
exit "$code"
