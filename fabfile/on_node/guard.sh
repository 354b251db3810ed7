#!/bin/bash
# Runs the command in $0 and ends it, with all it started, once this shell's standard input ends: that is
# the SSH channel, so Ctrl-C, a killed fab and a lost connection all stop the command on the node too.
# Only the command holds the output, which therefore ends with it; bash's own notices about jobs go nowhere.
exec 3>&1 4>&2 >/dev/null 2>&1
set -m # the command gets a process group of its own, and keyboard signals keep their meaning in it
bash -c "$0" </dev/null >&3 2>&4 3>&- 4>&- &
job=$!
exec 3>&- 4>&-
{
    cat
    kill -TERM -- "-$job"
    sleep 2
    kill -KILL -- "-$job"
} <&0 &
guard=$!
wait -f "$job" # until it has ended: without -f it would be over when somebody stops it (SIGSTOP)
code=$?
kill -KILL -- "-$guard"
exit "$code"
