"""What a cloud's machines would be told, byte for byte as the program sends it, told to machines of ours: the builder's
bakes an image, the node's reaches its ready record on it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aws_mocks import Amazon
from azure_mocks import Azure
from on_host import why_not
from polling import until
from program_recorder import Kind, Ran, run

from infra.clouds.local import bake, cgroup, image, paths
from infra.clouds.local.nspawn import NspawnMachine
from infra.config import stack_file

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]  # bakes, two of them

CLOUDS: dict[str, type[Kind]] = {"aws-xeon": Amazon, "azure-xeon": Azure}


def sent(ran: Ran, begins: str) -> bytes:
    """The user data of the machine whose logical name begins so, as the cloud's metadata service would give it out."""
    (found,) = (
        declared.inputs
        for name, declared in ran.declared.items()
        if name.startswith(begins) and ("userDataBase64" in declared.inputs or "osProfile" in declared.inputs)
    )
    return base64.b64decode(found.get("userDataBase64") or found["osProfile"]["customData"])


class SameBytes(bake.Bake):
    """A bake whose seed is what the cloud would hand to cloud-init: packed."""

    timers = ""
    """What the builder's systemd says of its timers while the bootstrap is done and it is not sealed."""

    def _wait(self, builder: NspawnMachine) -> dict[str, Any]:
        record = super()._wait(builder)
        self.timers = inside(builder, "systemctl list-timers --all --no-pager; ls /run/trainyard* || true")
        return record

    def _prepare(self, root: Path) -> None:
        super()._prepare(root)
        (root / "var/lib/cloud/seed/nocloud/user-data").write_bytes(gzip.compress(self.user_data.encode(), mtime=0))


@pytest.fixture(params=["aws-xeon", pytest.param("azure-xeon", marks=pytest.mark.soak)])
def ran(request: pytest.FixtureRequest, good: dict[str, str]) -> Ran:
    """The program of a cloud's stack. Not with ccl: its index cannot be reached from everywhere."""
    if reason := why_not("embedded"):
        pytest.skip(reason)
    own = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org", "nodes": "1"}
    software = {"profile": "native", "collectives": "gloo", "publicKey": good["publicKey"]}
    raw = {**good, **stack_file.read(request.param), **own, **software}
    return run(raw, CLOUDS[request.param](), stack=request.param)


@pytest.fixture
def stack() -> Iterator[str]:
    name = f"c{os.getpid()}"
    yield name
    NspawnMachine(name, "node1", paths.node(name, "node1")).remove()
    paths.tidy(name)


def test_the_same_bytes_make_an_image_and_a_ready_node(ran: Ran, stack: str) -> None:
    builder, node = sent(ran, "builder-"), sent(ran, "node1")
    assert builder[:2] == node[:2] == b"\x1f\x8b", "packed"
    name = uuid.uuid4().hex[:16]
    try:
        made = SameBytes(stack, name, gzip.decompress(builder).decode(), print, lambda: None)
        made.run()
        ready = booted(stack, name, node)
    finally:
        NspawnMachine(stack, "node1", paths.node(stack, "node1")).remove()
        shutil.rmtree(paths.images() / name, ignore_errors=True)
    assert (ready["node"], ready["mode"], ready["profile"]) == ("node1", "node", "native")
    assert ready["versions"]["torch"].startswith("2.13")
    assert re.search(r"\b2h \d+min.* trainyard-builder-end\.timer", made.timers), made.timers


def inside(machine: NspawnMachine, script: str) -> str:
    """What a script prints in a running machine, as root."""
    for pid in cgroup.processes(machine.stack, machine.name):
        with suppress(OSError):  # it has ended
            if re.search(r"^NSpid:.*\t1$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
                argv = ["nsenter", "-t", str(pid), "-U", "-m", "-u", "-i", "-n", "-p", "bash", "-c", script]
                environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
                done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=environment)
                return done.stdout
    raise AssertionError(f"{machine.name} has no init")


def booted(stack: str, name: str, node: bytes) -> dict[str, Any]:
    """A machine of that image, told that; its ready record."""
    machine = NspawnMachine(stack, "node1", paths.node(stack, "node1"))
    machine.mount(image.layers(name))
    record = json.loads((machine.root / "opt/trainyard/image.json").read_text())
    assert f"TRAINYARD_IMAGE={record['image']}" in gzip.decompress(node).decode(), (
        "the image that this node was meant for"
    )
    (machine.root / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
    bake.seed(machine.root, "", instance=uuid.uuid4().hex, name="node1")
    (machine.root / "var/lib/cloud/seed/nocloud/user-data").write_bytes(node)
    machine.start(["--private-network", "--hostname=node1", "--resolv-conf=off"], cpus=1, memory_mb=2048)
    state = machine.root / "var/lib/trainyard"

    def over() -> bool:
        assert not (state / "failed.json").exists(), (state / "failed.json").read_text()
        assert machine.is_alive(), machine.console_tail(5)
        return (state / "ready.json").exists()

    until(over, 90, "the node's ready record")
    loaded: dict[str, Any] = json.loads((state / "ready.json").read_text())
    return loaded
