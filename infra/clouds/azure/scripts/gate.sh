#!/bin/bash
# Waits on the builder for the bootstrap's record of this boot; prints which image was baked, or why none was. Not for
# cloud-init's status: that is "done" even if the bootstrap failed. Azure keeps the last 4 KB of the output.
set -u
state=/var/lib/trainyard
log=/var/log/trainyard-bootstrap.log
booted=$(awk '$1 == "btime" { print $2 }' /proc/stat)
quiet=0

of_this_boot() { [[ -e $1 ]] && (($(stat -c %Y "$1") >= booted)); }

give_up() { # REASON
    [[ ! -r $log ]] || tail -c 2800 "$log"
    printf 'bake failed: %s\n' "$1"
    exit 1
}

# The builder ends by itself three hours after its boot (its user data). This may be a second try in the same boot, so it
# gets three hours from now on. If it cannot end by itself, nobody may wait for it.
systemctl restart trainyard-builder-end.timer ||
    give_up "the builder would not end by itself: its user data has not set trainyard-builder-end.timer"

while ((SECONDS < 4800)); do
    if of_this_boot "$state/ready.json"; then
        grep -m 1 '"image"' "$state/ready.json"
        exit
    fi
    if of_this_boot "$state/failed.json"; then
        give_up "$(grep -E '^ "(step|reason)"' "$state/failed.json" | tr -s '[:space:]' ' ')"
    fi
    # cloud-init has ended, and the bootstrap neither runs nor has ended: it was never started.
    if [[ -e /run/cloud-init/result.json ]] && ! systemctl status trainyard-bootstrap >/dev/null 2>&1 &&
        [[ $(systemctl is-active trainyard-bootstrap) != activating ]]; then
        ((++quiet < 30)) || give_up "cloud-init is done and the bootstrap never began: $(tail -c 900 /var/log/cloud-init-output.log)"
    else
        quiet=0
    fi
    sleep 2
done
give_up "no record within 80 minutes"
