#!/usr/bin/env bash
# layer.sh FIRST LAST: runs the steps with these numbers, while a container's image is built, as bootstrap.sh does on a machine.
# Each is a file that bash reads with -euo pipefail, after lib.sh. The first that fails ends the build, and its reason is the
# last line.
set -euo pipefail
export LC_ALL=C.UTF-8 NO_COLOR=1

BOOTSTRAP=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
set -a
# shellcheck source=/dev/null
. "$BOOTSTRAP/container.env"
set +a
# shellcheck source-path=SCRIPTDIR source=../bootstrap/lib.sh
. "$BOOTSTRAP/lib.sh"

run_step() {
    local file=$1 name=${1##*/} began=$SECONDS code=0 reason
    name=${name#*-}
    say "== step $name"
    rm -f "$STATE/reason"
    # shellcheck disable=SC2016 # $0 and $1 are those of the new shell
    timeout --kill-after=5 "$STEP_TIMEOUT" bash -euo pipefail -c '. "$0/lib.sh"; . "$1"' "$BOOTSTRAP" "$file" </dev/null || code=$?
    if ((code != 0)); then
        reason="exit code $code, see above"
        ((code != 124)) || reason="did not end within $STEP_TIMEOUT s"
        [[ ! -s $STATE/reason ]] || reason=$(<"$STATE/reason")
        say "== step $name failed: $reason"
        exit 1
    fi
    say "== step $name: done in $((SECONDS - began)) s"
}

mkdir -p "$STATE" "$OPT" "${RUNTIME_ENV%/*}"
# The company's pip settings and certificates, as on the machine that builds.
secrets=$PREFIX/run/secrets
[[ ! -s $secrets/pip ]] || export PIP_CONFIG_FILE=$secrets/pip
[[ ! -s $secrets/ca ]] || export SSL_CERT_FILE=$secrets/ca PIP_CERT=$secrets/ca CURL_CA_BUNDLE=$secrets/ca
if command -v python3 >/dev/null; then # the step packages installs it
    settings=$(python3 -I "$BOOTSTRAP/pip_settings.py")
    eval "$settings"
fi
# On the environment's file system, so that uv links instead of copying.
export UV_CACHE_DIR=$OPT/.uv-cache

for file in "$BOOTSTRAP"/steps/image/[0-9]*; do
    number=${file##*/} number=$((10#${number%%-*}))
    ((number < $1 || number > $2)) || run_step "$file"
done
# In the same layer, or what is removed would still be in the image.
run_step "$BOOTSTRAP/steps/image/95-finish"
rm -rf "$PREFIX"/var/lib/apt/lists/*
