"""Kubernetes' API as the verbs use it: who the operator is, and what it says when it refuses, in one line each."""

from __future__ import annotations

import base64
import builtins
import json
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from invoke.exceptions import Exit
from kube_api import certificate
from kube_cluster import TOKEN, Kube, pod, served

from fabfile.backends.kubernetes import credentials
from fabfile.backends.kubernetes.api import INSTALL, Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.remote import ended
from infra.inventory import KubeCluster


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def api(kube: Kube) -> Iterator[Api]:
    found = Api(kube.cluster, 3)
    yield found
    found.close()


def complaint(cluster: KubeCluster) -> str:
    with pytest.raises(Exit) as refused:
        Api(cluster)
    assert refused.value.code == 2 and "\n" not in str(refused.value.message)
    return str(refused.value.message)


def job(name: str) -> dict[str, Any]:
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": "train"}}


def test_objects_are_applied_read_listed_and_deleted(kube: Kube, api: Api) -> None:
    made = api.apply({**job("demo-1"), "spec": {"nprocPerNode": "1"}})
    assert made["metadata"]["uid"] and kube.objects[("PyTorchJob", "demo-1")]["spec"] == {"nprocPerNode": "1"}
    assert api.apply(job("other"), dry_run=True) and api.get("PyTorchJob", "other") is None
    found = api.get("PyTorchJob", "demo-1")
    assert found is not None and found["spec"] == {"nprocPerNode": "1"}
    kube.put(pod("a", job="demo-1", phase="Running", machine="m1"))
    kube.put(pod("b"))
    (only,) = api.list("Pod", {"trainyard.dev/job": "demo-1"})
    assert only["metadata"]["name"] == "a" and only["spec"]["nodeName"] == "m1"
    assert len(api.list("Pod")) == 2 and api.list("Node") == []
    assert api.delete("PyTorchJob", "demo-1") and not api.delete("PyTorchJob", "demo-1")


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        (401, "Unauthorized", "401: does not accept KUBECONFIG"),
        (
            403,
            'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "train"',
            '403: KUBECONFIG lacks a right: pods is forbidden: User "me" cannot list resource "pods" in API group ""',
        ),
        (
            403,
            'pods "x" is forbidden: exceeded quota: q, requested: cpu=1',
            'Pod: pods "x" is forbidden: exceeded quota',
        ),
        (500, "etcd is\nslow", "Pod: etcd is slow"),
    ],
)
def test_a_refusal_is_one_line(kube: Kube, api: Api, code: int, message: str, said: str) -> None:
    kube.refuse("/pods", code, message)
    with pytest.raises(KubeError) as error:
        api.list("Pod")
    assert error.value.code == code and "\n" not in str(error.value)
    assert said.replace("KUBECONFIG", api.who) in str(error.value) and str(error.value).startswith(kube.url)


def test_a_webhooks_refusal_is_its_own_words(kube: Kube, api: Api) -> None:
    why = 'admission webhook "validator.pytorchjob" denied the request: spec.nprocPerNode: Invalid value: "two"'
    kube.refuse("pytorchjobs", 403, why, method="PATCH")
    with pytest.raises(
        KubeError, match=r'PyTorchJob demo-1: admission webhook "validator.pytorchjob" denied the request'
    ):
        api.apply(job("demo-1"))


def test_a_cluster_without_the_operator_says_so(kube: Kube, api: Api) -> None:
    kube.unknown.add("PyTorchJob")
    for asked in (lambda: api.list("PyTorchJob"), lambda: api.get("PyTorchJob", "a"), lambda: api.apply(job("a"))):
        with pytest.raises(KubeError, match=r"404: PyTorchJob.*: Kubeflow's training operator is not installed there"):
            asked()


def test_what_is_no_answer_of_the_api(kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kube.refusals.append((lambda method, path: True, 502, {"html": "bad gateway"}))
    with pytest.raises(KubeError, match="Pod: HTTP 502 Bad Gateway"):
        Api(kube.cluster).list("Pod")
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config).replace(kube.url, "https://127.0.0.1:1"))
    with pytest.raises(KubeError, match=r"^https://127.0.0.1:1: connection refused$"):
        Api(kube.cluster).list("Pod")
    monkeypatch.setattr(ended, "_GROUPS", f"{tmp_path}/")
    gone = replace(kube.cluster, workers=1, control_groups=f"{tmp_path}/groups")
    with pytest.raises(KubeError, match=rf"^https://127.0.0.1:1: connection refused \(node1: {ended.WHY}; fab up"):
        Api(gone).list("Pod")


def test_another_certificate_is_named(kube: Kube, tmp_path: Path) -> None:
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(certificate()[0]).decode()
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    with pytest.raises(KubeError, match=r"its certificate is not trusted .*: somebody else answers there") as error:
        Api(kube.cluster).list("Pod")
    assert "\n" not in str(error.value)


def test_a_wrong_token_names_the_kubeconfig(kube: Kube, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace(TOKEN, "another"))
    with pytest.raises(KubeError, match=f"401: does not accept {file}"):
        Api(kube.cluster).list("Pod")
    with pytest.raises(KubeError, match=f"401: does not accept {file}"):
        Api(kube.cluster).exec("p", "c", ["true"])


def test_kubeconfigs_that_cannot_be_used(kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, own = tmp_path / "kubeconfig", replace(kube.cluster, kubeconfig="")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{':'}{file}")
    assert Api(own).server == kube.url, "of several files the first that there is"
    assert complaint(replace(own, cluster_name="b")) == (
        f"kind: cluster_name = 'b': no context of this name in {tmp_path}/none, {file}"
    )
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    assert complaint(own) == f"kind: no kubeconfig: there is no {tmp_path}/none"
    for text in ("[", "a: [", "contexts: 3", "- 1", "", "contexts:\n- x: 1", "\x00"):
        file.write_text(text)
        assert str(file) in complaint(kube.cluster)
    config: dict[str, Any] = {"current-context": "x", "contexts": [], "clusters": [], "users": []}
    file.write_text(yaml.safe_dump(config))
    assert complaint(kube.cluster) == f"{file}: Context 'x' not found"
    server = {"server": "https://h", "certificate-authority": "/nowhere"}
    config = {
        **{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]},
        **{"clusters": [{"name": "c", "cluster": server}], "users": [{"name": "u", "user": {"token": "t"}}]},
    }
    file.write_text(yaml.safe_dump(config))
    assert "cannot be used" in complaint(kube.cluster)


def test_eks_is_signed_in_by_a_program_that_makes_tokens(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    python = tmp_path / "python"
    answer = json.dumps({"status": {"token": TOKEN}})
    fails = f"[ ! -e {tmp_path}/bad ] || {{ echo no AWS credentials >&2; exit 2; }}"
    python.write_text(f"#!/bin/sh\necho \"$*\" >>{tmp_path}/asked\n{fails}\necho '{answer}'\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    cluster = replace(
        kube.cluster,
        authentication="eks",
        cluster_name="yard",
        region="eu-west-1",
        endpoint=kube.url,
        certificate_authority=config["clusters"][0]["cluster"]["certificate-authority-data"],
    )
    api = Api(cluster)
    assert api.list("Pod") == [] and api.list("Pod") == []
    argv = (tmp_path / "asked").read_text()
    assert argv.endswith("/infra/run_module.py clouds.aws.eks_token yard eu-west-1\n"), argv
    assert len(argv.splitlines()) == 1, "once, as it is kept"
    (tmp_path / "bad").touch()
    with pytest.raises(KubeError, match=r"your AWS credentials: .*no AWS credentials"):
        Api(cluster).list("Pod")


def test_without_lightkube_one_line_says_how_to_install_it(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("lightkube", "httpx2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert complaint(kube.cluster) == f"kind: Kubernetes needs httpx2, which is not installed: {INSTALL}"


def test_programs_are_refused_where_stdin_cannot_be_closed(kube: Kube, api: Api) -> None:
    kube.protocol = "v4.channel.k8s.io"
    with pytest.raises(KubeError, match=r"speaks v4\.channel\.k8s\.io to programs in pods, not v5"):
        api.exec("p", "c", ["true"])
    kube.protocol = ""
    kube.refuse("/exec", 400, "container c is not valid for pod p")
    with pytest.raises(KubeError, match="a program in Pod p: container c is not valid for pod p"):
        api.exec("p", "c", ["true"])


def test_the_default_kubeconfig_is_kubectls() -> None:
    assert credentials.DEFAULT == "~/.kube/config"
