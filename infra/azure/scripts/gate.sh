#!/bin/bash
# Waits on the builder for the bootstrap's own record of this boot, and says which image was baked, or why none was.
# cloud-init's word is not asked for: it is content with a bootstrap that failed. Azure keeps the last 4 KB of this.
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

# Whoever waits for this may be gone, and then nobody else stops the machine. A `poweroff` would go on to be billed.
cat >/run/trainyard-builder-end <<'END'
#!/bin/bash
set -euo pipefail
metadata=http://169.254.169.254/metadata
ask=(curl --silent --show-error --fail --retry 5 --noproxy '*' -H Metadata:true)
machine=$("${ask[@]}" "$metadata/instance/compute/resourceId?api-version=2021-02-01&format=text")
token=$("${ask[@]}" "$metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://management.azure.com/" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')
# The token by standard input: a command line can be read by everybody on the machine.
curl --silent --show-error --fail --retry 5 -X POST -H @- -H 'Content-Length: 0' \
    "https://management.azure.com$machine/deallocate?api-version=2024-11-01" <<<"Authorization: Bearer $token"
END
systemctl stop trainyard-builder-end.timer 2>/dev/null || true # of another try in the same boot
systemd-run --quiet --unit=trainyard-builder-end --on-active=3h /bin/bash /run/trainyard-builder-end

while ((SECONDS < 4800)); do
    if of_this_boot "$state/ready.json"; then
        grep -m 1 '"image"' "$state/ready.json"
        exit
    fi
    if of_this_boot "$state/failed.json"; then
        give_up "$(grep -E '^ "(step|reason)"' "$state/failed.json" | tr -s '[:space:]' ' ')"
    fi
    # cloud-init is over, and a bootstrap that neither runs nor has ended was never started.
    if [[ -e /run/cloud-init/result.json ]] && ! systemctl status trainyard-bootstrap >/dev/null 2>&1 &&
        [[ $(systemctl is-active trainyard-bootstrap) != activating ]]; then
        ((++quiet < 30)) || give_up "cloud-init is done and the bootstrap never began: $(tail -c 900 /var/log/cloud-init-output.log)"
    else
        quiet=0
    fi
    sleep 2
done
give_up "no record within 80 minutes"
