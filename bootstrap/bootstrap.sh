#!/usr/bin/env bash
# Runs the steps of /etc/trainyard.env's mode in order and leaves exactly one record: ready.json or failed.json.
#   bake   the image part (steps/image)
#   node   the per-node part (steps/node), on an image with the same key
#   both   the image part unless the image has it, then the per-node part
# By hand, after mending what failed: systemctl restart trainyard-bootstrap
set -euo pipefail
export LC_ALL=C.UTF-8 NO_COLOR=1

BOOTSTRAP=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SETTINGS=${TRAINYARD_PREFIX:-}/etc/trainyard.env
CURRENT=settings # the step that an unexpected end is blamed on

# KEY=value lines, values taken as they are: the file is data, not a script.
read_settings() {
    local line
    [[ -r $SETTINGS ]] || return 0
    while IFS= read -r line || [[ -n $line ]]; do
        line=${line%$'\r'} # from an editor on Windows
        [[ $line =~ ^(TRAINYARD_[A-Z_]+|STEP_TIMEOUT)=(.*)$ ]] || continue
        export "${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
    done <"$SETTINGS"
}
read_settings
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$BOOTSTRAP/lib.sh"

record() { python3 -I -S "$BOOTSTRAP/record.py" "$@"; }

tell() {
    say "$*"
    say "== $*" >>"$LOG"
}

# event STEP STATE [SECONDS]
event() {
    printf '{"time": %s, "step": "%s", "state": "%s"%s}\n' \
        "$EPOCHREALTIME" "$1" "$2" "${3:+, \"seconds\": $3}" >>"$STATE/progress.jsonl"
}

give_up() { # STEP REASON
    record failed "$1" "$2"
    tell "failed in step $1: $2"
    exit 1
}

# An end that nothing above foresaw (a bug here, a stop from outside) is a failure with a record like any other.
on_exit() {
    local code=$?
    [[ -e $STATE/ready.json || -e $STATE/failed.json ]] || record failed "$CURRENT" "the bootstrap itself ended with code $code"
}

check_settings() {
    [[ -r $SETTINGS ]] || give_up settings "/etc/trainyard.env is missing: nothing says what this machine is to be"
    local key allowed
    while read -r key allowed; do
        [[ " $allowed " == *" ${!key:-} "* ]] || give_up settings "$key is '${!key:-}' in /etc/trainyard.env, allowed: ${allowed// /, }"
    done <<-LIST
	TRAINYARD_MODE bake node both
	TRAINYARD_PROFILE native ipex
	TRAINYARD_COLLECTIVES gloo ccl
	TRAINYARD_CLUSTER local aws-xeon azure-xeon
	LIST
    for key in TRAINYARD_MAX_HOURS TRAINYARD_IDLE_MINUTES; do
        [[ ${!key:-} =~ ^[0-9]{1,5}$ ]] || give_up settings "$key is '${!key:-}' in /etc/trainyard.env, allowed: whole numbers from 0 (never)"
    done
    [[ -n ${TRAINYARD_IMAGE:-} ]] || give_up settings "TRAINYARD_IMAGE is missing in /etc/trainyard.env"
    [[ -n ${TRAINYARD_NODE:-} ]] || give_up settings "TRAINYARD_NODE is missing in /etc/trainyard.env"
    [[ $STEP_TIMEOUT =~ ^[1-9][0-9]*$ ]] || give_up settings "STEP_TIMEOUT is '$STEP_TIMEOUT', allowed: whole seconds from 1"
}

# The node's own end, before anything else: a node that cannot be made ready, or whose settings make no sense, costs as
# much. An image brings the timer running; a builder only takes it along for the image.
start_limits() {
    local unit=$BOOTSTRAP/trainyard-limits
    if [[ ${TRAINYARD_MODE:-} == bake ]]; then
        systemctl link "$unit.service" && systemctl enable "$unit.timer"
    else
        systemctl start trainyard-limits.timer ||
            { systemctl link "$unit.service" && systemctl enable --now "$unit.timer"; }
    fi
}

# Everything a step started carries its id in the environment, also what left its process group or was orphaned.
kill_leftovers() {
    local pid found round
    for round in 1 2 3 4 5; do
        found=
        while IFS= read -r pid; do
            found=1
            kill -KILL "$pid" 2>/dev/null || true # it may end by itself meanwhile
        done < <(grep -lszx "TRAINYARD_STEP_ID=$1" /proc/[0-9]*/environ | cut -d/ -f3)
        [[ -n $found ]] || return 0
        tell "killed what step ${CURRENT} left running (round $round)"
    done
}

why() { # STEP CODE SECONDS LOG_OFFSET
    if [[ -s $STATE/reason ]]; then
        cat "$STATE/reason"
    elif ((${3%.*} >= STEP_TIMEOUT)); then
        printf 'did not end within %s s and was killed' "$STEP_TIMEOUT"
    else
        printf 'exit code %s: %s' "$2" "$(tail -c "+$(($4 + 1))" "$LOG" | grep '[[:alnum:]]' | tail -n 1 | cut -c -400)"
    fi
}

run_step() {
    local file=$1 name=${1##*/} id=$$.$RANDOM code=0 start took offset reason
    name=${name#*-}
    CURRENT=$name
    event "$name" start
    tell "step $name"
    rm -f "$STATE/reason"
    offset=$(stat -c %s "$LOG")
    start=${EPOCHREALTIME/./}
    TRAINYARD_STEP_ID=$id timeout --kill-after=5 "$STEP_TIMEOUT" "$file" >>"$LOG" 2>&1 </dev/null 9>&- || code=$?
    took=$((${EPOCHREALTIME/./} - start))
    printf -v took '%d.%03d' $((took / 1000000)) $((took / 1000 % 1000))
    if ((code == 0)); then
        event "$name" "done" "$took"
        return
    fi
    kill_leftovers "$id"
    event "$name" failed "$took"
    reason=$(why "$name" "$code" "$took" "$offset")
    give_up "$name" "$reason"
}

run_part() {
    local file
    for file in "$BOOTSTRAP/steps/$1"/[0-9]*; do
        run_step "$file"
    done
}

image_part() {
    rm -f "$IMAGE_JSON" # until it is whole again, no node may trust it
    # The company's pip settings, in the words that uv and Python's own TLS understand.
    local settings
    settings=$(python3 -I "$BOOTSTRAP/pip_settings.py")
    eval "$settings"
    # On the environment's own file system: uv links instead of copying, and /tmp may be memory.
    export UV_CACHE_DIR=$OPT/.uv-cache
    run_part image
    record image
}

main() {
    mkdir -p "$STATE" "$OPT" "${LOG%/*}" "${RUNTIME_ENV%/*}"
    exec 9>"$STATE/lock"
    flock --nonblock 9 || { say "another bootstrap is running"; exit 1; }
    rm -f "$STATE/ready.json" "$STATE/failed.json"
    : >"$STATE/progress.jsonl"
    trap on_exit EXIT
    trap 'exit 143' TERM INT
    tell "bootstrap of ${TRAINYARD_NODE:-?}, mode ${TRAINYARD_MODE:-?}, $(date -u +%FT%TZ)"
    CURRENT=limits
    start_limits >>"$LOG" 2>&1 || give_up limits "the timer of its hours cannot be started: $(tail -n 1 "$LOG")"
    CURRENT=settings
    check_settings
    if [[ $TRAINYARD_MODE == bake ]] || { [[ $TRAINYARD_MODE == both ]] && ! image_matches; }; then
        image_part
    fi
    if [[ $TRAINYARD_MODE != bake ]]; then
        run_part node
    fi
    CURRENT=record
    record ready
    tell "ready"
}

main
