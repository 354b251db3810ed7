# shellcheck shell=bash
# What the steps of profile cuda share.

AMAZON=$PREFIX/opt/amazon # where EFA's installer puts libfabric, and NCCL's plugin for it

# nccl_plugin: a library of aws-ofi-nccl, without which NCCL does not use EFA; empty if there is none.
nccl_plugin() { find "$AMAZON/ofi-nccl" -name 'libnccl-net*.so' 2>/dev/null | sort | sed -n 1p || true; }

# apt with its reason when it fails, waiting for another that runs, as in the step packages.
gpu_apt() {
    local output until=$((SECONDS + 300))
    while ! output=$(DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -o DPkg::Lock::Timeout=300 \
        -o Acquire::Retries=3 -y -q "$@" 2>&1); do
        say "$output"
        if [[ $output != *"Could not get lock"* ]] || ((SECONDS >= until)); then
            fail "apt-get $*: $(grep -m 1 '^E:' <<<"$output")"
        fi
        sleep 3
    done
    say "$output"
}

# git_at URL COMMIT FOLDER: exactly this commit; git checks the content against its name.
git_at() {
    rm -rf "$3"
    git init -q "$3"
    git -C "$3" fetch -q --depth 1 "$1" "$2" || fail "cannot get commit $2 of $1"
    git -C "$3" checkout -q FETCH_HEAD
}

is_volta() { [[ $TRAINYARD_GPU_ARCHITECTURE == sm_70 ]]; }
is_ubuntu() { grep -q '^ID=ubuntu' "$PREFIX/etc/os-release"; }
