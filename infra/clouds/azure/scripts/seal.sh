#!/bin/bash
# Takes out of the builder what makes it this machine, and switches it off: what is left on the disk is the image.
# Later, and apart from this command: `waagent -deprovision` ends the very agent that has to report this one's end.
# The machine that is off is the sign that all of it was done; one that fails stays on, and `up` says so.
set -euo pipefail
systemctl stop trainyard-bootstrap
cat >/run/trainyard-seal <<'SEAL'
#!/bin/bash
set -euo pipefail
systemctl stop walinuxagent
waagent -deprovision -force
/opt/trainyard/bootstrap/seal.sh
systemctl poweroff
SEAL
systemd-run --unit=trainyard-seal --on-active=90 /bin/bash /run/trainyard-seal
echo sealing
