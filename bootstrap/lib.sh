# shellcheck shell=bash
# What the runner and the steps share: paths, pins, and how to say and fail.
# TRAINYARD_PREFIX stands before every path of the system, so that tests run the runner without root.
BOOTSTRAP=${BOOTSTRAP:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
PREFIX=${TRAINYARD_PREFIX:-}
OPT=$PREFIX/opt/trainyard
VENV=$OPT/venv
IMAGE_JSON=$OPT/image.json
STATE=$PREFIX/var/lib/trainyard
LOG=$PREFIX/var/log/trainyard-bootstrap.log
RUNTIME_ENV=$PREFIX/etc/trainyard/runtime.env
export BOOTSTRAP PREFIX OPT VENV IMAGE_JSON STATE LOG RUNTIME_ENV

# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/../.. source=versions.env
. "$BOOTSTRAP/versions.env"

say() { printf '%s\n' "$*"; }

# Ends the step; the one line is the record's reason.
fail() {
    printf '%s\n' "$*" >"$STATE/reason"
    say "failed: $*"
    exit 1
}

# The value of a string field of image.json, empty if there is none. The file is our own, so a pattern is enough.
image_field() {
    [[ -r $IMAGE_JSON && $(<"$IMAGE_JSON") =~ \"$1\":\ *\"([^\"]*)\" ]] || return 0
    printf '%s' "${BASH_REMATCH[1]}"
}

image_matches() {
    [[ -n ${TRAINYARD_IMAGE:-} && $(image_field image) == "$TRAINYARD_IMAGE" ]]
}

# The pin of this profile: pinned TORCH -> 2.13.0
pinned() {
    local name=${1}_$TRAINYARD_PROFILE
    printf '%s' "${!name}"
}

# uv_install WHAT ARGUMENT...: uv's own explanation becomes the reason.
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
