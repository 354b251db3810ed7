# shellcheck shell=bash
# Installs Slurm in the root of a profile's image. bash gets it as text, in a machine that is not booted.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt-get -o Acquire::Retries=3 --quiet --yes update
apt-get -o Acquire::Retries=3 --quiet --yes --no-install-recommends install "$@"
apt-get clean
for unit in munge slurmd slurmctld trainyard-slurm-changed.path; do
    systemctl enable "$unit"
done
# Where the plugin for PMIx looks for its library.
ln -sf libpmix.so.2 /usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so
# The package makes a key. A key in an image would be the same on all stacks.
rm -f /etc/munge/munge.key
install -d -m 755 /fsx
