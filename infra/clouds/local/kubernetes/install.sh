# shellcheck shell=bash
# Installs what Kubernetes needs in the root of a profile's image. bash gets it as text, in a machine that is not booted.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt-get -o Acquire::Retries=3 --quiet --yes update
# Our units and configuration files are there already: the packages must not ask about them.
apt-get -o Acquire::Retries=3 -o Dpkg::Options::=--force-confold --quiet --yes --no-install-recommends install "$@"
apt-get clean
for unit in containerd etcd kube-apiserver kube-controller-manager kube-scheduler coredns trainyard-images kubelet; do
    systemctl enable "$unit"
done
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl coredns; do
    ln -sf "/opt/kubernetes/$program" "/usr/local/bin/$program"
done
install -d -m 755 /fsx /opt/kubernetes /opt/kubernetes-images
rm -rf /etc/cni/net.d/* /var/lib/etcd/* /var/lib/containerd/*
