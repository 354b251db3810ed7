"""`fab bootstrap --inventory` on a plain Debian machine with nothing of ours on it: afterwards it is a node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sshd
from project import Project

from infra.clouds.local import bake, base_image, ids, paths, rootfs
from infra.clouds.local.nspawn import NspawnMachine

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]  # it installs torch, as a bake does
NAME = "own1"
# A user with sudo, an SSH server that takes passwords, and no cloud-init: as its owner would have set it up.
SET_UP = """
useradd --create-home --shell /bin/bash me
echo 'me ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/me
install -d -m 700 -o me -g me ~me/.ssh
printf '%s\\n' {key} >~me/.ssh/authorized_keys
chown me: ~me/.ssh/authorized_keys
printf 'Port {port}\\nListenAddress 127.0.0.1\\n' >/etc/ssh/sshd_config.d/10-own.conf
ssh-keygen -A >/dev/null
"""
PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "ca-certificates")
"""No Python, and nothing else of what makes a machine a node."""


def install_debian(root: Path) -> None:
    """Debian as its owner installs it, with this machine's way to the packages."""
    options = base_image.apt_options()
    suite = base_image.release()["VERSION_CODENAME"]
    argv = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(f"--aptopt={line}" for line in options),
        *(suite, str(root), *map(str, base_image.sources())),
    ]
    subprocess.run(argv, check=True, timeout=600)
    (root / "etc/apt/apt.conf.d/90host").write_text("".join(f"{line}\n" for line in options))
    rootfs.remove(root, "dev/*")  # device files; a machine gets its own /dev
    ids.shift(root)


@contextmanager
def plain_debian(project: Project, port: int) -> Iterator[NspawnMachine]:
    """Booted on this machine's network: it needs the package archives."""
    machine = NspawnMachine(project.stack, NAME, paths.node(project.stack, NAME))
    try:
        machine.directory.mkdir(parents=True)
        install_debian(machine.directory / "debian")
        machine.mount([machine.directory / "debian"])
        public = (project.home / ".ssh/id_ed25519.pub").read_text().strip()
        machine.run_inside(["/bin/sh", "-euc", SET_UP.format(key=shlex.quote(public), port=port)])
        borrowed = {name: value for name, value in os.environ.items() if name.startswith(bake.INHERITED)}
        text = "".join(f'{name}="{value}"\n' for name, value in sorted(borrowed.items()))
        rootfs.write(machine.root, bake.HOST_ENV, text, mode=0o600)
        init = [word for word in bake.INIT if "ssh" not in word]
        options = ["--resolv-conf=bind-host", "--timezone=off", *bake.borrowed(machine.directory / "borrowed")]
        machine.start(options, cpus=os.cpu_count() or 1, memory_mb=16 * 1024, init=init)
        yield machine
    finally:
        machine.remove()
        paths.tidy(project.stack)


@pytest.mark.soak
def test_a_plain_debian_becomes_a_node(make_project: Callable[..., Project]) -> None:
    project, port = make_project(), sshd.free_port()
    with plain_debian(project, port) as machine:
        host_key = " ".join((machine.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
        node = {"name": NAME, "private_ip": "127.0.0.1", "ssh_port": port, "host_key": host_key}
        inventory = {"schema": 1, "kind": "ssh", "name": "lab", "ssh_user": "me", "nodes": [node]}
        file = project.root / "lab.json"
        file.write_text(json.dumps(inventory))
        target = ["--inventory", str(file)]

        assert "this machine is not a node yet" in project.fab("wait", *target, code=1).stderr
        assert "no node" in project.fab("status", *target, code=None).stdout
        asked = project.fab("bootstrap", *target, code=2)
        assert "add --yes" in asked.stderr and f"{NAME}  127.0.0.1  debian" in asked.stdout
        assert not (machine.root / "opt/trainyard").exists(), "nothing was changed"
        assert not (machine.root / "usr/bin/python3").exists(), "it has no Python before"

        done = project.fab("bootstrap", *target, "--yes", timeout=1200)
        assert "1 installed in" in done.stdout and "ready (" in done.stdout
        project.fab("wait", *target)
        output = project.fab("run", "python -c 'import torch; print(torch.ones(2).sum())'", *target).stdout
        assert "tensor(2.)" in output
        assert "is a node with this software" in project.fab("bootstrap", *target, "--yes").stdout, "done once"
        project.fab("prepare", "smoke", *target, timeout=300)
        trained = project.fab("train", "smoke", *target, timeout=300).stdout
        assert "smoke-1 SUCCEEDED" in trained
