"""SSH done right: keys only, real host keys everywhere, impostors refused, the nodes' own keys nowhere but on them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from polling import until
from project import Project

from infra.clouds.local import cgroup, network, nodes

NODES = ("node1", "node2", "node3")
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
USER_KEY = "home/trainyard/.ssh/id_ed25519"
HERE = "/run/trainyard-impostor"
IMPOSTOR = f"""
set -eu
mkdir -p {HERE}
ssh-keygen -q -t ed25519 -N '' -f {HERE}/key </dev/null
systemctl stop ssh.service
mkdir -p /run/sshd # which the service has taken away with it
ip address add ADDRESS/24 dev host0
# From 9.8 on, sshd refuses for a while whoever left before saying who they are: all of them do here.
patient=; /usr/sbin/sshd -t -h {HERE}/key -o PerSourcePenalties=no && patient=-oPerSourcePenalties=no
systemd-run --quiet --unit=impostor /usr/sbin/sshd $patient -D -E {HERE}/log -o LogLevel=DEBUG1 \\
    -o ListenAddress=ADDRESS -o HostKey={HERE}/key -o PidFile=none \\
    -o ForceCommand='echo "$SSH_ORIGINAL_COMMAND" >>/tmp/commands; echo taken'
for _ in $(seq 100); do grep -q 'Server listening' {HERE}/log && exit 0; sleep 0.1; done
exit 1
"""
"""Makes a node the impostor: another's address, a key of its own, and every login of the cluster's user accepted."""


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Three nodes that are ready and know each other; on Pulumi where it is, as its state is what could leak."""
    project = make_shared_project("pulumi" if shutil.which("pulumi") else "embedded")
    project.fab("up", "--yes", timeout=900)
    project.fab("wait")
    known(project)
    yield project
    project.fab("destroy", "--yes")
    assert project.remaining() == []


def root_of(project: Project, node: str) -> Path:
    """The root file system of a running node, seen from this machine."""
    return nodes.machine(project.stack, node).root


def inside(project: Project, node: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on a node as root, by its namespaces: SSH is what is being tested."""
    for pid in cgroup.processes(project.stack, node):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if re.search(r"^NSpid:\t\d+\t1$", status, re.M):
                argv = ["nsenter", "-t", str(pid), "-U", "-m", "-u", "-i", "-n", "-p", "bash", "-c", script]
                environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
                return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=environment)
    raise AssertionError(f"{node} has no init")


def address_of(project: Project, node: str) -> str:
    return str(next(known["private_ip"] for known in project.inventory()["nodes"] if known["name"] == node))


def kill(project: Project, node: str) -> None:
    """End a node from outside, as a crash would."""
    assert cgroup.kill(nodes.machine(project.stack, node).group, timeout=10)


def forget_neighbours(project: Project, node: str) -> None:
    """Nobody shall still send to the machine that had an address before."""
    subprocess.run(["ip", "neigh", "flush", "dev", network.bridge_name(project.stack)], check=True)
    inside(project, node, "ip neigh flush dev host0")


def from_node(project: Project, node: str, command: str, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a command on a node as its user, by `fab run`."""
    return project.fab("run", command, "--nodes", node, "--inventory", str(project.home / "known.json"), code=code)


def known(project: Project) -> None:
    """Keep the inventory as a file: asking Pulumi takes a second each time."""
    (project.home / "known.json").write_text(json.dumps(project.inventory()))


# Keys only.


def test_sshd_takes_keys_only(cluster: Project) -> None:
    lines = cluster.fab("run", "sudo sshd -T").stdout.splitlines()
    for node in NODES:
        settings = {line.removeprefix(f"[{node}] ") for line in lines if line.startswith(f"[{node}] ")}
        assert {
            "passwordauthentication no",
            "kbdinteractiveauthentication no",
            "permitrootlogin no",
            "permitemptypasswords no",
            "hostbasedauthentication no",
            "pubkeyauthentication yes",
        } <= settings, node


def test_a_password_is_refused(cluster: Project) -> None:
    """Also the right one: sshd offers nothing but keys, and no prompt for a password appears."""
    inside(cluster, "node1", "echo trainyard:correct-horse | chpasswd")
    argv = ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    argv += ["-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=3"]
    output = on_terminal([*argv, f"trainyard@{address_of(cluster, 'node1')}", "id"], "correct-horse")
    assert "Permission denied (publickey)" in output
    assert "password:" not in output
    assert "uid=" not in output
    inside(cluster, "node1", "passwd --lock trainyard")


def on_terminal(argv: list[str], answer: str) -> str:
    """Run a command on a terminal, answer each prompt; all that it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    shown, deadline = "", time.monotonic() + 30
    with suppress(OSError):  # the terminal's end
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                piece = os.read(terminal, 4096).decode(errors="replace")
                if not piece:
                    break
                shown += piece
                if piece.rstrip().endswith(("password:", "?")):
                    os.write(terminal, f"{answer}\n".encode())
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown


# The nodes' own keys.


def secret_of(key: Path) -> bytes:
    """Base64 of a private ed25519 key that is the secret alone: bytes 161 to 193 of 52.5 in a line."""
    assert key.stat().st_mode & 0o077 == 0, f"{key} is for others to read"
    return key.read_bytes().splitlines()[4][6:46]


def files_below(*roots: Path) -> Iterator[Path]:
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path


def test_private_keys_are_on_their_node_alone(cluster: Project) -> None:
    """Not in the user data, the state, the operator's files, nor on another node; the image: see test_profiles.py."""
    roots = [root_of(cluster, node) for node in NODES]
    secrets = [secret_of(root / path) for root in roots for path in (HOST_KEY, USER_KEY)]
    assert len(set(secrets)) == 2 * len(NODES), "every key is another"
    embedded = "python -m infra.state.engine export $TRAINYARD_STACK"
    show = "pulumi stack export" if cluster.engine == "pulumi" else embedded
    state = subprocess.check_output(show, shell=True, cwd=cluster.root, env=cluster.env)
    assert b"ssh-ed25519" in state, "the state has the public halves"
    assert not [secret for secret in secrets if secret in state]
    uppers = [nodes.machine(cluster.stack, node).directory / "upper" for node in NODES]
    own = {f"{upper}/{path}" for upper in uppers for path in (HOST_KEY, USER_KEY)}
    user_data, found = 0, 0
    for path in files_below(cluster.home, cluster.root, *uppers):
        content = path.read_bytes()
        user_data += path.name == "user-data"
        inside = [secret for secret in secrets if secret in content]
        found += len(inside)
        assert not inside or (str(path) in own and len(inside) == 1), path
    assert user_data == found / 2 == len(NODES), "all were there to be seen"


# An impostor, and a node that is made again at the same address.


@dataclass
class Impostor:
    """An sshd at node2's address that lets everybody in and writes down what it is told to run."""

    project: Project
    address: str

    def commands(self) -> str:
        return inside(self.project, "node3", "cat /tmp/commands || true").stdout

    def log(self) -> str:
        return inside(self.project, "node3", f"cat {HERE}/log").stdout

    @contextmanager
    def hears_from(self, client: str) -> Iterator[None]:
        """The block must connect to the impostor: a client that never got there proves nothing."""
        before = self.log().count("Connection from")
        yield
        until(lambda: self.log().count("Connection from") > before, 10, f"{client} did not connect to the impostor")


@contextmanager
def impostor_for(project: Project, victim: str) -> Iterator[Impostor]:
    """The victim is gone, and node3 has taken its address; afterwards both are gone."""
    address = address_of(project, victim)
    kill(project, victim)
    try:
        inside(project, "node3", IMPOSTOR.replace("ADDRESS", address))
        forget_neighbours(project, "node1")
        yield Impostor(project, address)
    finally:
        kill(project, "node3")


def test_impostor_hears_nothing_and_the_node_made_again_is_trusted(cluster: Project) -> None:
    before = host_keys(cluster)
    with impostor_for(cluster, "node2") as impostor:
        operator_is_strict(cluster, impostor)
        nodes_are_strict(cluster, impostor)
        log = impostor.log()
        assert "userauth-request" not in log, "nobody said who they are"
        assert impostor.commands() == ""
        # The counter-check: without strict checking it would have worked.
        lax = "ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i ~/.ssh/id_ed25519"
        assert "taken" in from_node(cluster, "node1", f"{lax} trainyard@{impostor.address} secret").stdout
        assert impostor.commands() == "secret\n"
        assert "userauth-request" in impostor.log()
    cluster.fab("up", "--yes")
    known(cluster)
    after = host_keys(cluster)
    assert after["node1"] == before["node1"], "the living node was left alone"
    assert after["node2"] != before["node2"]
    the_new_key_alone_is_trusted(cluster, old=before["node2"], new=after["node2"])


def operator_is_strict(cluster: Project, impostor: Impostor) -> None:
    """Fabric and OpenSSH, by our own options and by the written configuration, and `wait`."""
    with impostor.hears_from("fab run"):
        refused = cluster.fab("run", "touch /tmp/was-here", "--nodes", "node2", code=255).stderr
    assert f"node2 ({impostor.address}:22): HOST KEY MISMATCH" in refused
    assert "Traceback" not in refused
    with impostor.hears_from("fab ssh"):
        assert "Host key verification failed" in cluster.fab("ssh", "node2", code=255).stderr
    written = re.search(r"^written: (.*)$", cluster.fab("ssh-config").stdout, re.M)
    assert written
    argv = ["ssh", "-F", written[1], "node2", "touch /tmp/was-here"]
    with impostor.hears_from("ssh -F"):
        by_config = subprocess.run(argv, env=cluster.env, capture_output=True, text=True, timeout=60)
    assert by_config.returncode == 255
    assert "Host key verification failed" in by_config.stderr
    # As of machines elsewhere: of this host's own, `wait` knows without a connection that node2's has ended.
    elsewhere = cluster.inventory()
    for node in elsewhere["nodes"]:
        node["control_group"] = ""
    (cluster.home / "elsewhere.json").write_text(json.dumps(elsewhere))
    with impostor.hears_from("fab wait"):
        waited = cluster.fab("wait", "--timeout", "30", "--inventory", str(cluster.home / "elsewhere.json"), code=1)
    assert f"node2 ({impostor.address}:22): HOST KEY MISMATCH" in waited.stderr


def nodes_are_strict(cluster: Project, impostor: Impostor) -> None:
    """A node's own SSH, by name and by address, and mpirun's."""
    for target in ("node2", impostor.address):
        with impostor.hears_from(f"node1's ssh {target}"):
            stderr = from_node(cluster, "node1", f"ssh {target} hostname", code=255).stderr
        assert "Host key verification failed" in stderr
    mpirun = "set -a; . /etc/trainyard/runtime.env; timeout 60 mpirun -hosts node1,node2 -ppn 1 -n 2 hostname"
    with impostor.hears_from("mpirun"):
        launched = from_node(cluster, "node1", mpirun, code=None)
    assert launched.returncode not in (0, 124), "mpirun fails by itself"
    assert "Unable to run bstrap_proxy on node2" in launched.stderr


def the_new_key_alone_is_trusted(cluster: Project, *, old: str, new: str) -> None:
    """At once by the operator, by the other nodes after `wait`; nothing prompts, and the old key is in no file."""
    address = address_of(cluster, "node2")
    forget_neighbours(cluster, "node1")
    wait_for_sshd(address)
    assert from_node(cluster, "node2", "hostname").stdout == "[node2] node2\n"
    stale = from_node(cluster, "node1", "ssh node2 hostname", code=255).stderr
    assert "Host key verification failed" in stale, "the nodes do not take a new key on trust"
    cluster.fab("wait")
    for here, there in (("node1", "node2"), ("node2", "node1"), ("node3", "node2")):
        assert from_node(cluster, here, f"ssh {there} hostname").stdout == f"[{here}] {there}\n"
    files = [cluster.home / ".trainyard" / cluster.stack / "known_hosts"]
    files += [root_of(cluster, node) / "etc/ssh/ssh_known_hosts" for node in NODES]
    for file in files:
        assert new in file.read_text(), file
        assert old not in file.read_text(), file


def host_keys(cluster: Project) -> dict[str, str]:
    return {node["name"]: node["host_key"] for node in cluster.inventory()["nodes"]}


def wait_for_sshd(address: str) -> None:
    """Until sshd shows its key there."""
    scan = shutil.which("ssh-keyscan")
    assert scan
    until(lambda: subprocess.run([scan, "-T", "2", "-t", "ed25519", address], capture_output=True).stdout)
