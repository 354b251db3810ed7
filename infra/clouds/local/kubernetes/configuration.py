"""The text of what a node's programs read: systemd's units, and the files of containerd, the kubelet and the network.

No kube-proxy and no rules of a firewall: pods have addresses that every node has a route to, and the API's own service
address is the head's; CoreDNS, a service of systemd's on the head, answers there too. The head is node `node(0)`; it
runs the control plane, and pods like the others.
"""

from __future__ import annotations

import ipaddress
import json

from infra.clouds.local.kubernetes import images
from infra.clouds.naming import node

MOST_NODES = 64
PODS = ipaddress.IPv4Network("10.244.0.0/16")
"""Of all stacks: these addresses are only on the nodes, each of which has a /24 for its pods."""
SERVICES = ipaddress.IPv4Network("10.96.0.0/16")
API_SERVICE = str(SERVICES[1])
"""The address that Kubernetes gives to the service of its own API."""
PORT = 443
"""Of the API server: that of its service, so that the service's address needs no translation."""
PROGRAMS, IMAGES = "/opt/kubernetes", "/opt/kubernetes-images"
"""Where a node has them, read-only; they are the host's."""
ETC = "/etc/kubernetes"
STATE = "/var/lib/etcd"
DOMAIN = "cluster.local"
"""Below which a cluster's own names are: a service's is NAME.NAMESPACE.svc.cluster.local."""
NAME_SERVICE = "coredns"
"""The user that CoreDNS is to the API."""
LEAST_MEMORY_MB = 3072
"""MiB of a node: the control plane has 1.2 GB, and a rank of the smallest job 0.7."""


def _unit(what: str, start: str, *lines: str, unit: str = "", head: bool = False) -> str:
    only = f"ConditionHost={node(0)}\n" if head else ""
    more = "".join(f"{line}\n" for line in lines)
    return (
        f"[Unit]\nDescription={what}\nAfter=network.target\nStartLimitIntervalSec=0\n{only}{unit}"
        f"[Service]\nEnvironmentFile={ETC}/node.env\n{more}ExecStart={start}\n"
        "Restart=always\nRestartSec=1\n[Install]\nWantedBy=multi-user.target\n"
    )


def _command(program: str, **flags: str) -> str:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    return " ".join([f"/usr/local/bin/{program}", *words])


def _api_server() -> str:
    flags = {
        **{"etcd_servers": "http://127.0.0.1:2379", "bind_address": "0.0.0.0", "secure_port": str(PORT)},
        **{"advertise_address": "${ADDRESS}", "service_cluster_ip_range": str(SERVICES)},
        **{"client_ca_file": f"{ETC}/ca.crt", "tls_cert_file": f"{ETC}/apiserver.crt"},
        **{"tls_private_key_file": f"{ETC}/apiserver.key", "kubelet_client_certificate": f"{ETC}/to-kubelets.crt"},
        **{"kubelet_client_key": f"{ETC}/to-kubelets.key", "kubelet_certificate_authority": f"{ETC}/ca.crt"},
        "kubelet_preferred_address_types": "InternalIP",
        "service_account_issuer": "https://kubernetes.default.svc",
        **{"service_account_signing_key_file": f"{ETC}/sa.key", "service_account_key_file": f"{ETC}/sa.pub"},
        **{"authorization_mode": "Node,RBAC", "enable_admission_plugins": "NodeRestriction"},
        # The API server finds the operator's webhook by the pod's address, as no service's address leads anywhere.
        "enable_aggregator_routing": "true",
    }
    return _command("kube-apiserver", **flags)


def _controllers() -> str:
    flags = {
        **{"kubeconfig": f"{ETC}/controller-manager.kubeconfig", "leader_elect": "false"},
        **{"root_ca_file": f"{ETC}/ca.crt", "service_account_private_key_file": f"{ETC}/sa.key"},
        "use_service_account_credentials": "true",
        # A machine that does not answer is taken for lost after 20 s; the default is 50.
        **{"node_monitor_grace_period": "20s", "node_monitor_period": "2s"},
    }
    return _command("kube-controller-manager", **flags)


def _kubelet() -> str:
    flags = {
        **{"config": f"{ETC}/kubelet.json", "kubeconfig": f"{ETC}/kubelet.kubeconfig"},
        **{"hostname_override": "${NODE}", "node_ip": "${ADDRESS}"},
    }
    return _command("kubelet", **flags)


_ETCD = (
    f"/usr/bin/etcd --data-dir={STATE} --listen-client-urls=http://127.0.0.1:2379 "
    "--advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 "
    # The folder is the host's: what was written outlives the machine without waiting for the disk.
    "--unsafe-no-fsync"
)
_IMPORT = """/bin/sh -euc 'for image in $$IMAGES; do ctr --namespace k8s.io images import "$$image"; done'"""


def units() -> dict[str, str]:
    """systemd's units, by their paths below the root; the same on every node."""
    folder, after = "etc/systemd/system", "After=containerd.service\nRequires=containerd.service\n"
    imported = _unit("Import Kubernetes' images", _IMPORT, "Type=oneshot", unit=after)
    imported = imported.replace("Restart=always\nRestartSec=1\n", "RemainAfterExit=yes\n")
    needs = f"{after}After=trainyard-images.service\nRequires=trainyard-images.service\n"
    etcd = "After=etcd.service\nWants=etcd.service\n"
    return {
        f"{folder}/etcd.service": _unit("etcd, which keeps Kubernetes' objects", _ETCD, "Type=notify", head=True),
        f"{folder}/kube-apiserver.service": _unit(
            "Kubernetes' API", _api_server(), "Type=notify", "TimeoutStartSec=300", unit=etcd, head=True
        ),
        f"{folder}/kube-controller-manager.service": _unit("Kubernetes' controllers", _controllers(), head=True),
        f"{folder}/kube-scheduler.service": _unit(
            "Kubernetes' scheduler",
            _command("kube-scheduler", kubeconfig=f"{ETC}/scheduler.kubeconfig", leader_elect="false"),
            head=True,
        ),
        f"{folder}/coredns.service": _unit(
            "The cluster's name service", f"/usr/local/bin/coredns -conf {ETC}/Corefile", head=True
        ),
        f"{folder}/trainyard-images.service": imported,
        f"{folder}/kubelet.service": _unit(
            "Kubernetes' kubelet", _kubelet(), "Delegate=yes", "KillMode=process", unit=needs
        ),
        # The package's loads a module of the kernel, which is the host's.
        f"{folder}/containerd.service.d/trainyard.conf": "[Service]\nExecStartPre=\nOOMScoreAdjust=0\n",
    }


def files() -> dict[str, str]:
    """What the programs read that is the same on every node."""
    return {
        "etc/containerd/config.toml": _CONTAINERD,
        "etc/kubernetes/kubelet.json": json.dumps(_kubelet_settings(), indent=2) + "\n",
        "etc/kubernetes/Corefile": _COREFILE,
    }


_CONTAINERD = f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  # A user namespace may do neither.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""

# Other names are refused: the nodes reach no name server, nor what such a name would lead to. The second zone is of
# addresses, whose names some programs ask for. An answer counts for a second: a pod made again has another address.
_COREFILE = f"""{DOMAIN} in-addr.arpa {{
    bind {API_SERVICE}
    errors
    kubernetes {{
        kubeconfig {ETC}/coredns.kubeconfig
        ttl 1
    }}
}}
"""


def _kubelet_settings() -> dict[str, object]:
    return {
        **{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"},
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{ETC}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        **{"tlsCertFile": f"{ETC}/kubelet.crt", "tlsPrivateKeyFile": f"{ETC}/kubelet.key"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        **{"cgroupDriver": "cgroupfs", "failSwapOn": False, "makeIPTablesUtilChains": False},
        "failCgroupV1": False,
        **{"clusterDNS": [API_SERVICE], "clusterDomain": DOMAIN},
        # Settings of the kernel are the host's, and not to be changed from here.
        "featureGates": {"KubeletInUserNamespace": True},
        **{"nodeStatusUpdateFrequency": "4s", "syncFrequency": "10s"},
        # The disk is the host's, and what others leave on it is no reason to end a pod.
        "evictionHard": {
            **{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodefs.inodesFree": "0%",
        },
        **{"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99},
    }


def environment(name: str, address: str) -> str:
    """The file that a node's units read."""
    wanted = f"{IMAGES}/every/*.tar" + (f" {IMAGES}/head/*.tar" if name == node(0) else "")
    return f'NODE={name}\nADDRESS={address}\nIMAGES="{wanted}"\n'


def network(index: int, address: str) -> str:
    """What is added to the network of node `index`: routes to the pods of all nodes, also of those to come."""
    first = ipaddress.IPv4Address(address) - index
    lines = ["[Network]", "IPForward=yes", "IPv4Forwarding=yes"]  # by systemd's versions before and from 256
    if index == 0:
        lines.append(f"Address={API_SERVICE}/32")
    else:
        lines += ["[Route]", f"Destination={API_SERVICE}/32", f"Gateway={first}"]
    for other in range(MOST_NODES):
        if other != index:
            lines += ["[Route]", f"Destination={pods(other)}", f"Gateway={first + other}"]
    return "\n".join(lines) + "\n"


def pods(index: int) -> str:
    """The network of a node's pods."""
    return str(list(PODS.subnets(new_prefix=24))[index])


def container_network(index: int) -> str:
    """The configuration of the plugins that give a pod of node `index` its network."""
    bridge = {
        **{"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipMasq": False, "hairpinMode": True},
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods(index)}]]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "trainyard", "plugins": [bridge]}) + "\n"
