#!/usr/bin/env bash
# Takes out of a baked machine what belongs to it alone, so that an image of it is nobody's: run as root on the builder,
# after its ready record and right before it is stopped. What is left is the base, the software and image.json. Running
# it again does no harm. The local stack does the same from outside (infra/clouds/local/bake.py, SEALED).
set -euo pipefail
shopt -s nullglob

# It is taken away when a bake begins and written when all of it has succeeded.
[[ -e /opt/trainyard/image.json ]] || {
    echo "no /opt/trainyard/image.json: this machine was not baked to its end, and is not sealed" >&2
    exit 1
}

# First: a boot from here on must not bake again with the builder's settings.
rm -f /etc/trainyard.env /etc/trainyard-host.env

# cloud-init's own way to forget the machine: its next boot is a first boot.
cloud-init clean --logs --seed
rm -f /etc/ssh/ssh_host_* /var/lib/systemd/random-seed /var/lib/dbus/machine-id
: >/etc/machine-id
for home in /root /home/*; do
    rm -rf "$home/.ssh" "$home/.cache" "$home/.bash_history"
done
rm -rf /var/lib/trainyard/* /var/lib/apt/lists/* /tmp/* /var/tmp/*

# Logs last, as all of the above may write some.
journalctl --rotate --vacuum-time=1s >/dev/null 2>&1 || true # where there is no journal
find /var/log -type f -delete
rm -rf /var/log/journal/*
sync
echo sealed
