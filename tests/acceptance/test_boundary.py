"""Root on a local node is nobody on this machine: what it tries against it, and against other nodes, is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import boundary
import pytest
from boundary import as_root
from project import Project

from infra.clouds.local import ids, nodes, paths

pytestmark = pytest.mark.timeout(1500)  # a bake, where nobody has baked yet
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Two nodes, ready."""
    project = make_shared_project()
    project.configure(nodes=2)
    project.fab("up", "--yes", timeout=1200)
    project.fab("wait")
    yield project
    project.fab("destroy", "--yes")
    assert project.remaining() == []


def test_every_process_of_a_node_is_without_rights_here(cluster: Project) -> None:
    init = boundary.check_processes(cluster)
    bounding = next(line for line in Path(f"/proc/{init}/status").read_text().splitlines() if line.startswith("CapBnd"))
    assert not int(bounding.split()[1], 16) >> 27 & 1, "CAP_MKNOD"
    assert "uid=0(root)" in as_root(cluster, "id"), "and is root there all the same"


def test_a_disk_of_this_machine_cannot_be_reached(cluster: Project) -> None:
    boundary.check_disks(partial(as_root, cluster), "/", "/tmp", "/dev", "/var/tmp")
    listed = as_root(cluster, "find / -xdev -type b; find /dev -type b; find /dev -type c -printf '%f\\n' | sort")
    devices = {"full", "null", "random", "tty", "urandom", "zero", "tun", "ptmx", "console"}
    assert set(listed.split()) <= devices | {str(number) for number in range(20)}


def test_a_device_file_in_its_root_is_dead(cluster: Project) -> None:
    """However it came there: made here, by this machine's root, in the layer that the node writes to."""
    upper = nodes.machine(cluster.stack, "node1").directory / "upper"
    os.mknod(upper / "srv-null", 0o020666, os.makedev(1, 3))  # what a link to /dev/null would show
    assert "Permission denied" in as_root(cluster, "echo x > /srv-null")
    assert "DONE" in as_root(cluster, "echo x > /dev/null && echo DONE")


@pytest.mark.parametrize("file", boundary.SETTINGS)
def test_the_kernel_cannot_be_set(file: str, cluster: Project) -> None:
    boundary.check_settings(partial(as_root, cluster), file)


def test_calls_for_this_machines_root_are_refused(cluster: Project) -> None:
    boundary.check_calls(partial(as_root, cluster))


def test_its_own_limits_are_not_its_own_to_change(cluster: Project) -> None:
    boundary.check_limits(cluster, partial(as_root, cluster))


def test_other_nodes_and_their_keys_are_out_of_sight(cluster: Project) -> None:
    other = nodes.machine(cluster.stack, "node2")
    boundary.check_out_of_sight(partial(as_root, cluster), other.root / HOST_KEY, other.directory / "upper" / HOST_KEY)
    assert "DONE" not in as_root(cluster, "(cat /run/host/incoming/x || ls /run/host/incoming/x) && echo DONE")
    seen = as_root(cluster, "cat /proc/[0-9]*/cmdline /proc/mounts | tr '\\0' ' '")
    assert str(other.directory) not in seen


def test_a_program_of_its_root_gives_nobody_rights_here(cluster: Project) -> None:
    """A set-id copy of `id` in the node, run by an ordinary user of this machine."""
    as_root(cluster, "cp /usr/bin/id /srv/id && chmod 4755 /srv/id")
    machine = nodes.machine(cluster.stack, "node1")
    ordinary = {"user": 65533, "group": 65533, "extra_groups": []}
    for root in (machine.root, machine.directory / "upper"):
        assert (root / "srv/id").stat().st_uid == ids.FIRST
        with pytest.raises(PermissionError):
            subprocess.run([str(root / "srv/id")], check=True, **ordinary)  # type: ignore[call-overload]
    # Also for whoever stands in the folder already: seen from here, the mount takes set-id bits for nothing.
    output = subprocess.check_output(["./id", "-u"], cwd=machine.root / "srv", text=True, **ordinary)  # type: ignore[call-overload]
    assert output == "65533\n"
    mounted = next(
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {machine.root} " in line
    )
    assert {"nosuid", "nodev"} <= set(mounted.split()[5].split(","))
    assert "[node1] 0" in cluster.ssh("node1", "/srv/id -u").stdout, "while it does work on the node, as sudo must"


def test_links_that_it_plants_lead_nobody_astray(cluster: Project, tmp_path: Path) -> None:
    """Its own key, its folders and its records, all of them links to files of this machine; then every verb."""
    (tmp_path / "folder").mkdir()
    secret = tmp_path / "folder" / "secret"
    secret.write_text("ssh-ed25519 AAAAtheirs secret of this machine")
    before = cluster.inventory()["nodes"]
    script = (
        f"ln -sfn {secret} /{HOST_KEY}.pub; ln -s {secret.parent} /srv/link\n"
        f"mv /var/lib/trainyard /var/lib/moved; ln -sfn {secret.parent} /var/lib/trainyard"
    )
    as_root(cluster, script)
    for verb in (("up", "--yes"), ("refresh",), ("preview",), ("audit",)):
        output = cluster.fab(*verb)
        assert "secret of this machine" not in output.stdout + output.stderr
    assert cluster.inventory()["nodes"] == before
    cluster.configure(nodes=1)
    as_root(cluster, f"ln -s {secret.parent} /srv/link", node="node2")
    cluster.fab("up", "--yes")  # removes node2, with its link
    cluster.configure(nodes=2)
    assert secret.read_text().startswith("ssh-ed25519") and secret.stat().st_uid == 0
    as_root(cluster, "rm /var/lib/trainyard; mv /var/lib/moved /var/lib/trainyard")


# Within a container that hides parts of its /proc and /sys, as systemd-nspawn's do, the same machine runs.
HIDDEN = """
mount --make-rprivate /
mkdir -p {tmp}/cgroup && mount --rbind /sys/fs/cgroup {tmp}/cgroup
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
mount -t tmpfs none /sys && mkdir -p /sys/fs/cgroup && mount --rbind {tmp}/cgroup /sys/fs/cgroup
! unshare --user --map-root-user --mount --pid --fork mount -t proc proc /proc
exec {python} -c "{program}"
"""
MACHINE = """
from pathlib import Path
from infra.clouds.local import image
from infra.clouds.local.nspawn import NspawnMachine
machine = NspawnMachine('{stack}-in', 'node1', Path('{tmp}/node1'))
machine.remove()
try:
    machine.mount(image.layers('{image}'))
    print(machine.run_inside(['id', '-u']), len(machine.run_inside(['ls', '/proc', '/sys']).split()) > 20)
finally:
    machine.remove()
"""


def test_a_machine_runs_also_in_a_container_that_hides_parts_of_proc_and_sys(cluster: Project, tmp_path: Path) -> None:
    spec = json.loads((nodes.machine(cluster.stack, "node1").directory / "spec.json").read_text())
    program = MACHINE.format(stack=cluster.stack, tmp=tmp_path, image=spec["image"])
    script = HIDDEN.format(tmp=tmp_path, python=sys.executable, program=program)
    argv = ["unshare", "--mount", "bash", "-euc", script]
    done = subprocess.run(argv, cwd=cluster.root, env=cluster.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.split() == ["0", "True"], done


def test_everything_here_is_for_root_alone(cluster: Project) -> None:
    for folder in (paths.home(), *(path for path in paths.home().iterdir() if path.is_dir())):
        assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == 0
