#!/bin/bash
# Prints how this node's bootstrap goes, as it happens, until its record is there or standard input ends. A shell script
# by itself, as it runs before anything else is put on the node; with the argument `bare` its exit code answers that alone.
# Only shell built-ins in the loop: many nodes may share few cores, and all of them are busy booting.
#   step <line of progress.jsonl>
#   ready <record> | failed <record>
#   unreadable <path>
#   bare                         no bootstrap was ever put here, and none is on its way
state=${TRAINYARD_PREFIX:-}/var/lib/trainyard
booted=${TRAINYARD_PREFIX:-}/run/systemd/inaccessible/reg # made by this boot's init before anything else, and never touched again

this_boot() { # a record from before a reboot does not count
    [[ -e $1 && ! (-e $booted && $1 -ot $booted) ]]
}

over() { # sets word and file
    for word in failed ready; do
        file=$state/$word.json
        this_boot "$file" && return
    done
    return 1
}

steps() { # the lines of progress.jsonl that are new since the last call
    local line lines progress=$state/progress.jsonl
    this_boot "$progress" || return
    mapfile -t lines <"$progress"
    ((${#lines[@]} < seen)) && seen=0 # the bootstrap began again
    for line in "${lines[@]:seen}"; do
        [[ $line == *"}" ]] || break # half a line: it is still being written
        echo "step $line"
        ((seen += 1))
    done
}

is_bare() { # cloud-init writes its result last: until then it may bring the bootstrap, unless it is switched off
    [[ ! -e ${TRAINYARD_PREFIX:-}/opt/trainyard/bootstrap && ! -e $state/progress.jsonl ]] &&
        [[ ! -d ${TRAINYARD_PREFIX:-}/run/cloud-init || -e ${TRAINYARD_PREFIX:-}/run/cloud-init/result.json ||
            -e ${TRAINYARD_PREFIX:-}/run/cloud-init/disabled ]]
}

if [[ ${1:-} == bare ]]; then # `fab status` asks for this alone
    is_bare
    exit
fi
seen=0
if is_bare; then
    echo bare
    exit 0
fi
if ! over; then
    until over; do
        steps
        read -r -t 0.3
        (($? > 128)) || exit 0 # not a timeout: the reader is gone
    done
    steps # those between the last look and the record
fi # else the boot is over already, and its record says everything
if text=$(<"$file"); then
    echo "$word ${text//$'\n'/ }"
else
    echo "unreadable $file"
fi
