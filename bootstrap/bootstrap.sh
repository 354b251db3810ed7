#!/usr/bin/env bash
# Runs the steps for the mode in /etc/trainyard.env in order, and leaves exactly one record: ready.json or failed.json.
#   bake   the image part (steps/image)
#   node   the per-node part (steps/node), on an image with the same key
#   both   the image part unless the image has it, then the per-node part
# A step is a file that bash reads with -euo pipefail, after lib.sh.
# To repeat it by hand, after repairing what failed: systemctl restart trainyard-bootstrap
set -euo pipefail
export LC_ALL=C.UTF-8 NO_COLOR=1

BOOTSTRAP=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SETTINGS=${TRAINYARD_PREFIX:-}/etc/trainyard.env
CURRENT=settings # the step to blame for an unexpected end

# KEY=value lines. Values are taken literally: the file is data, not a script.
if [[ -r $SETTINGS ]]; then
    while IFS= read -r line || [[ -n $line ]]; do
        line=${line%$'\r'} # from an editor on Windows
        [[ $line =~ ^(TRAINYARD_[A-Z_]+|STEP_TIMEOUT)=(.*)$ ]] || continue
        export "${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
    done <"$SETTINGS"
fi
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$BOOTSTRAP/lib.sh"

record() { python3 -I -S "$BOOTSTRAP/record.py" "$@"; }

# To the console and to the log.
announce() {
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
    announce "failed in step $1: $2"
    exit 1
}

# An unexpected end (a bug here, a kill from outside) also leaves a record of its failure.
on_exit() {
    local code=$?
    [[ -e $STATE/ready.json || -e $STATE/failed.json ]] || record failed "$CURRENT" "the bootstrap itself ended with code $code"
}

check_settings() {
    [[ -r $SETTINGS ]] || give_up settings "/etc/trainyard.env is missing: it has this machine's settings"
    local key allowed
    while read -r key allowed; do
        [[ " $allowed " == *" ${!key:-} "* ]] || give_up settings "$key is '${!key:-}' in /etc/trainyard.env, allowed: ${allowed// /, }"
    done <<-LIST
	TRAINYARD_MODE bake node both
	TRAINYARD_PROFILE native ipex cuda
	TRAINYARD_COLLECTIVES gloo ccl
	TRAINYARD_CLUSTER local aws-xeon azure-xeon
	LIST
    for key in TRAINYARD_MAX_HOURS TRAINYARD_IDLE_MINUTES; do
        [[ ${!key:-} =~ ^[0-9]{1,5}$ ]] || give_up settings "$key is '${!key:-}' in /etc/trainyard.env, allowed: whole numbers from 0 (never)"
    done
    for key in TRAINYARD_IMAGE TRAINYARD_NODE; do
        [[ -n ${!key:-} ]] || give_up settings "$key is missing in /etc/trainyard.env"
    done
    [[ $STEP_TIMEOUT =~ ^[1-9][0-9]*$ ]] || give_up settings "STEP_TIMEOUT is '$STEP_TIMEOUT', allowed: whole seconds from 1"
}

# The node's limits come before everything else: a node that cannot be made ready, or with invalid settings, costs as much
# as a good one. On an image the timer runs already; a builder only enables it for the image.
start_limits() {
    local unit=$BOOTSTRAP/trainyard-limits
    if [[ ${TRAINYARD_MODE:-} == bake ]]; then
        systemctl link "$unit.service" && systemctl enable "$unit.timer"
    else
        systemctl start trainyard-limits.timer ||
            { systemctl link "$unit.service" && systemctl enable --now "$unit.timer"; }
    fi
}

# Every process that a step started has the step's id in its environment, even in another process group or orphaned.
kill_leftovers() {
    local pid found round
    for round in 1 2 3 4 5; do
        found=
        while IFS= read -r pid; do
            found=1
            kill -KILL "$pid" 2>/dev/null || true # it may have ended by itself
        done < <(grep -lszx "TRAINYARD_STEP_ID=$1" /proc/[0-9]*/environ | cut -d/ -f3)
        [[ -n $found ]] || return 0
        announce "killed processes that step ${CURRENT} left running (round $round)"
    done
}

why() { # CODE SECONDS LOG_OFFSET
    if [[ -s $STATE/reason ]]; then
        cat "$STATE/reason"
    elif ((${2%.*} >= STEP_TIMEOUT)); then
        printf 'did not end within %s s and was killed' "$STEP_TIMEOUT"
    else
        printf 'exit code %s: %s' "$1" "$(tail -c "+$(($3 + 1))" "$LOG" | grep '[[:alnum:]]' | tail -n 1 | cut -c -400)"
    fi
}

run_step() {
    local file=$1 id=$$.$RANDOM code=0 start took offset reason
    CURRENT=${file##*/} CURRENT=${CURRENT#*-}
    event "$CURRENT" start
    announce "step $CURRENT"
    rm -f "$STATE/reason"
    offset=$(stat -c %s "$LOG")
    start=${EPOCHREALTIME/./}
    # shellcheck disable=SC2016 # $0 and $1 are those of the new shell
    TRAINYARD_STEP_ID=$id timeout --kill-after=5 "$STEP_TIMEOUT" \
        bash -euo pipefail -c '. "$0/lib.sh"; . "$1"' "$BOOTSTRAP" "$file" >>"$LOG" 2>&1 </dev/null 9>&- || code=$?
    took=$((${EPOCHREALTIME/./} - start))
    printf -v took '%d.%03d' $((took / 1000000)) $((took / 1000 % 1000))
    if ((code == 0)); then
        event "$CURRENT" "done" "$took"
        return
    fi
    kill_leftovers "$id"
    event "$CURRENT" failed "$took"
    reason=$(why "$code" "$took" "$offset")
    give_up "$CURRENT" "$reason"
}

run_part() {
    local file
    for file in "$BOOTSTRAP/steps/$1"/[0-9]*; do
        run_step "$file"
    done
}

image_part() {
    rm -f "$IMAGE_JSON" # until this part has succeeded, no node may use the image
    # The company's pip settings, under the names that uv and Python's own TLS read.
    local settings
    settings=$(python3 -I "$BOOTSTRAP/pip_settings.py")
    eval "$settings"
    # On the environment's file system, so that uv links instead of copying; /tmp may be in memory.
    export UV_CACHE_DIR=$OPT/.uv-cache
    run_part image
    record image
}

main() {
    mkdir -p "$STATE" "$OPT" "${LOG%/*}" "${RUNTIME_ENV%/*}"
    exec 9>"$STATE/lock"
    flock --nonblock 9 || { say "another bootstrap is running"; exit 1; }
    rm -f "$STATE/ready.json" "$STATE/failed.json" "$STATE/gpus.json"
    : >"$STATE/progress.jsonl"
    trap on_exit EXIT
    trap 'exit 143' TERM INT
    announce "bootstrap of ${TRAINYARD_NODE:-?}, mode ${TRAINYARD_MODE:-?}, $(date -u +%FT%TZ)"
    CURRENT=limits
    start_limits >>"$LOG" 2>&1 || give_up limits "cannot start the timer of the node's limits: $(tail -n 1 "$LOG")"
    CURRENT=settings
    check_settings
    if [[ $TRAINYARD_MODE == bake ]] || [[ $TRAINYARD_MODE == both && $(image_field image) != "$TRAINYARD_IMAGE" ]]; then
        image_part
    fi
    if [[ $TRAINYARD_MODE != bake ]]; then
        run_part node
    fi
    CURRENT=record
    record ready
    announce "ready"
}

main
