# shellcheck shell=bash
# Paths, versions and functions that the runner and the steps share. BOOTSTRAP is this folder.
# TRAINYARD_PREFIX precedes every system path, so that tests run the runner without root.
PREFIX=${TRAINYARD_PREFIX:-}
OPT=$PREFIX/opt/trainyard
VENV=$OPT/venv
IMAGE_JSON=$OPT/image.json
STATE=$PREFIX/var/lib/trainyard
LOG=$PREFIX/var/log/trainyard-bootstrap.log
RUNTIME_ENV=$PREFIX/etc/trainyard/runtime.env
export BOOTSTRAP PREFIX OPT VENV IMAGE_JSON STATE LOG RUNTIME_ENV

# shellcheck source-path=SCRIPTDIR source=versions.env
. "$BOOTSTRAP/versions.env"

say() { printf '%s\n' "$*"; }

# Ends the step; this one line is the record's reason.
fail() {
    printf '%s\n' "$*" >"$STATE/reason"
    say "failed: $*"
    exit 1
}

# image_field NAME: a string field of image.json, empty if there is none. We write the file, so a pattern is enough.
image_field() {
    [[ -r $IMAGE_JSON && $(<"$IMAGE_JSON") =~ \"$1\":\ *\"([^\"]*)\" ]] || return 0
    printf '%s' "${BASH_REMATCH[1]}"
}

# The version for this profile: pinned TORCH -> 2.13.0
pinned() {
    local name=${1}_$TRAINYARD_PROFILE
    printf '%s' "${!name}"
}

# uv_install WHAT ARGUMENT...: when uv fails, its explanation becomes the reason.
uv_install() {
    local what=$1 output
    shift
    say "uv pip install $*"
    if ! output=$("$VENV/bin/uv" pip install --python "$VENV/bin/python" "$@" 2>&1); then
        say "$output"
        fail "cannot install $what: $(grep -v '^Using Python' <<<"$output" | tail -n 8 | tr -s '[:space:]' ' ' | cut -c -600)"
    fi
    say "$output"
}
