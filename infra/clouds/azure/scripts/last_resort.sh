#!/bin/bash
# Ends the builder three hours after each boot, also if nobody waits for it any more and its agent never answers:
# cloud-init runs this first, from the user data. It deallocates: Azure goes on billing a machine that is only powered
# off. Everything is under /run, so that nothing of it is in the image.
set -eu
mkdir -p /run/systemd/system
cat >/run/systemd/system/trainyard-builder-end.service <<'UNIT'
[Unit]
Description=Deallocate this builder, which nobody has stopped
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -IS /run/trainyard-builder-end.py
StandardOutput=journal+console
UNIT
cat >/run/systemd/system/trainyard-builder-end.timer <<'UNIT'
[Unit]
Description=The longest that this builder may run
[Timer]
OnActiveSec=3h
OnUnitInactiveSec=1min
AccuracySec=1s
UNIT
cat >/run/trainyard-builder-end.py <<'PROGRAM'
@PROGRAM@
PROGRAM
# --no-block: the timer starts when the system is up, which waits for cloud-init.
systemctl start --no-block trainyard-builder-end.timer
