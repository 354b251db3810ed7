#!/usr/bin/env bash
# Removes everything that identifies a baked machine, so that its image can become any node. Run as root on the builder,
# after its ready record and right before it is stopped. What remains is the base, the software and image.json. It can be
# repeated. The local stack does the same from outside (infra/clouds/local/bake.py, SEALED).
set -euo pipefail
shopt -s nullglob

# A bake removes image.json when it begins and writes it when all of it has succeeded.
[[ -e /opt/trainyard/image.json ]] || {
    echo "no /opt/trainyard/image.json: this machine was not baked completely, and is not sealed" >&2
    exit 1
}

# First, so that a boot from here on does not bake again with the builder's settings.
rm -f /etc/trainyard.env /etc/trainyard-host.env

# cloud-init forgets the machine: the next boot is a first boot.
cloud-init clean --logs --seed
rm -f /etc/ssh/ssh_host_* /var/lib/systemd/random-seed /var/lib/dbus/machine-id
: >/etc/machine-id
for home in /root /home/*; do
    rm -rf "$home/.ssh" "$home/.cache" "$home/.bash_history"
done
rm -rf /var/lib/trainyard/* /var/lib/apt/lists/* /tmp/* /var/tmp/*

# Logs last, as the commands above may write some.
journalctl --rotate --vacuum-time=1s >/dev/null 2>&1 || true # a system without a journal
find /var/log -type f -delete
rm -rf /var/log/journal/*
sync
echo sealed
