"""Who the operator is to a cluster's API: by a kubeconfig, or by the token that AWS credentials give."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli
from infra.inventory import KubeCluster

DEFAULT = "~/.kube/config"


@dataclass(frozen=True)
class Credentials:
    """How to reach the API, and as whom."""

    config: Any
    """lightkube's SingleConfig."""
    who: str
    """For messages: the file and its context, or the cloud's credentials."""


def of(cluster: KubeCluster) -> Credentials:
    """The credentials for a cluster, as its inventory says; Exit 2 if there are none. Makes no request."""
    if cluster.authentication == "eks":
        # The same program that a kubeconfig of `fab kubeconfig` names: it makes a token whenever one is needed.
        return Credentials(_config(kubeconfig_of(cluster), "", cluster.name), "your AWS credentials")
    files = [cluster.kubeconfig] if cluster.kubeconfig else _own_files()
    missing, context = [], cluster.cluster_name
    for name in files:
        path = Path(name).expanduser()
        if not path.is_file():
            missing.append(name)
            continue
        content = _read(path)
        if not context or any(each["name"] == context for each in content.get("contexts") or []):
            said = f"{path}, context {context}" if context else str(path)
            return Credentials(_config(content, context, str(path)), said)
    if len(missing) == len(files):
        raise Exit(f"{cluster.name}: no kubeconfig: there is no {' and no '.join(files)}", code=2)
    raise Exit(f"{cluster.name}: cluster_name = {context!r}: no context of this name in {', '.join(files)}", code=2)


def _own_files() -> list[str]:
    """Where kubectl looks, too."""
    return [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name] or [DEFAULT]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        [each["name"] for each in content.get("contexts") or []]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or "it is no kubeconfig"
        raise Exit(f"{path}: {why}", code=2) from None
    found: dict[str, Any] = content
    return found


def _config(content: dict[str, Any], context: str, source: str) -> Any:
    from lightkube import ConfigError, KubeConfig

    try:
        return KubeConfig.from_dict(content, fname=source if "/" in source else None).get(context or None)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise Exit(f"{source}: {str(error) or 'it is no kubeconfig'}", code=2) from None


def kubeconfig_of(cluster: KubeCluster) -> dict[str, Any]:
    """A kubeconfig for a cluster of EKS (JSON is YAML). It has no secret: a program makes a token whenever kubectl asks
    for one."""
    name = cluster.cluster_name
    # kubectl runs it in whatever folder it is called in: nothing of that may be taken for a module of ours.
    program_file = str(pulumi_cli.ROOT / "infra" / "run_module.py")
    token = ["-P", "-E", program_file, "clouds.aws.eks_token", name, cluster.region]
    program = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": token,
        "interactiveMode": "Never",
    }
    server = {"server": cluster.endpoint, "certificate-authority-data": cluster.certificate_authority}
    context = {"cluster": name, "user": name, "namespace": cluster.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"exec": program}}],
        "contexts": [{"name": name, "context": context}],
    }
