"""`fab bootstrap --inventory`: what it refuses, asks and puts on a machine; and a machine that is no node."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sshd
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.remote.fleet import Fleet
from fabfile.verbs import bootstrap as machines
from fabfile.verbs.status import ask, describe
from fabfile.verbs.wait import follow_boot
from infra.inventory import SshCluster, to_json

PROBED = "system=debian 12\narch=x86_64\nsystemd=yes\nsudo=yes\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshCluster]:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    (tmp_path / "operator/.ssh").mkdir(parents=True)
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    server = yard.start("127.0.0.7", sshd.free_port())
    yield yard.cluster(server.node("node1"))
    yard.stop()


def bootstrap(tmp_path: Path, cluster: SshCluster, **options: Any) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(to_json(cluster))
    machines.bootstrap.body(Context(), inventory=str(file), **options)


def test_a_machine_that_nobody_bootstrapped_is_no_booting_node(cluster: SshCluster, tmp_path: Path) -> None:
    """Seen before: "is booting", for ever."""
    (tmp_path / "sshd0/root/opt/trainyard/bootstrap").rmdir()
    with Fleet(cluster) as fleet, pytest.raises(Exit, match=r"node1.*fab bootstrap --inventory FILE"):
        follow_boot(fleet, 20)


def test_status_says_so_too(cluster: SshCluster, tmp_path: Path) -> None:
    (tmp_path / "sshd0/root/opt/trainyard/bootstrap").rmdir()
    (result,) = ask(cluster).values()
    row = describe(cluster, cluster.head, result)
    assert row["state"] == "no node" and "fab bootstrap --inventory FILE" in row["reason"]


def test_cloud_init_that_is_still_at_work_may_bring_the_bootstrap(cluster: SshCluster, tmp_path: Path) -> None:
    root = tmp_path / "sshd0/root"
    (root / "opt/trainyard/bootstrap").rmdir()
    (root / "run/cloud-init").mkdir(parents=True)
    with Fleet(cluster) as fleet, pytest.raises(Exit, match="not ready after 3 s"):
        follow_boot(fleet, 3)
    (root / "run/cloud-init/result.json").write_text("{}")
    with Fleet(cluster) as fleet, pytest.raises(Exit, match="this machine is not a node yet"):
        follow_boot(fleet, 20)


@pytest.mark.parametrize(
    ("line", "spoilt", "problem"),
    [
        ("system=debian 12", "system=fedora 41", "its system is fedora 41; needed: Debian or Ubuntu"),
        ("arch=x86_64", "arch=aarch64", "its processor is aarch64"),
        ("systemd=yes", "", "systemd does not run there"),
        ("sudo=yes", "", "sudo asks this user for a password"),
        ("sudo=yes", "sudo=yes\nbusy=yes", "a job runs there"),
        ("sudo=yes", "sudo=yes\nimage=0123456789abcdef", ""),
        ("system=debian 12", "system=ubuntu 24.04", ""),
    ],
)
def test_what_cannot_become_a_node_is_said(line: str, spoilt: str, problem: str) -> None:
    assert machines.problem(machines.machine_of(PROBED)) == ""
    found = machines.problem(machines.machine_of(PROBED.replace(line, spoilt)))
    assert problem in found and bool(problem) == bool(found)


def test_bad_input_is_refused_before_anything_is_touched(cluster: SshCluster, tmp_path: Path) -> None:
    cases: list[tuple[SshCluster, dict[str, Any], str]] = [
        (replace(cluster, ssh_user="root"), {}, "nodes refuse root over SSH"),
        (replace(cluster, ssh_user="me"), {"profile": "cuda"}, "profile"),
        (replace(cluster, ssh_user="me"), {"collectives": "ccl"}, "--collectives ccl"),
        (replace(cluster, ssh_user="me"), {"nodes": "node9"}, "no node 'node9'"),
    ]
    for spoilt, options, message in cases:
        with pytest.raises(Exit, match=message) as caught:
            bootstrap(tmp_path, spoilt, **options)
        assert caught.value.code == 2
    with pytest.raises(Exit, match="--inventory FILE is missing"):
        machines.bootstrap.body(Context())


def test_it_asks_first(
    cluster: SshCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(Exit, match="add --yes") as caught:
        machines._ask(cluster.nodes, yes=False)
    assert caught.value.code == 2 and "no passwords and no root over SSH" in capsys.readouterr().out


def test_the_files_are_those_of_a_bare_image(cluster: SshCluster) -> None:
    order = machines.software(replace(cluster, ssh_user="me"), cluster.nodes, "native", "gloo")
    files = {file["path"]: file for file in order["files"]["node1"]}
    settings = files["/etc/trainyard.env"]["content"]
    assert {"TRAINYARD_MODE=both", "TRAINYARD_USER=me", "TRAINYARD_NODE=node1"} <= set(settings.splitlines())
    assert f"TRAINYARD_IMAGE={order['image']}" in settings
    with tarfile.open(fileobj=io.BytesIO(machines.packed(order["files"]["node1"]))) as archive:
        entry = archive.getmember("opt/trainyard/bootstrap/bootstrap.sh")
        assert entry.mode == 0o755 and not any(name.startswith(("/", "..")) for name in archive.getnames())
    assert json.dumps(order["files"]).count("PRIVATE KEY") == 0
