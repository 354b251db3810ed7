#!/bin/bash
# Prints the node's public host key as soon as its first boot has made it.
set -u
while ((SECONDS < 300)); do
    if [[ -s /etc/ssh/ssh_host_ed25519_key.pub ]]; then
        cut -d ' ' -f 1,2 /etc/ssh/ssh_host_ed25519_key.pub
        exit
    fi
    sleep 1
done
echo "no /etc/ssh/ssh_host_ed25519_key.pub: cloud-init did not make it within 300 s"
tail -c 1500 /var/log/cloud-init-output.log
exit 1
