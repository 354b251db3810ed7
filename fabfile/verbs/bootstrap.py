"""`fab bootstrap --inventory FILE`: turn existing machines into nodes, with the bootstrap scripts that all nodes run.

It prints what it will change before it asks, and changes nothing if one of the machines cannot become a node.
"""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.output import next_command, say, table
from fabfile.question import ask, must_be_answerable
from fabfile.remote.fleet import Fleet, in_parallel
from fabfile.remote.send import SendError, send
from fabfile.stacks import pulumi_cli
from fabfile.targets import choose, load
from fabfile.verbs.wait import follow_boot
from infra.inventory import Node, SshCluster

SYSTEMS = ("debian", "ubuntu")
_PROBE = """
. /etc/os-release 2>/dev/null
echo "system=${ID:-unknown} ${VERSION_ID:-}"
echo "arch=$(uname -m)"
test -d /run/systemd/system && echo systemd=yes
test "$(id -u)" = 0 || sudo -n true 2>/dev/null && echo sudo=yes
image=$(sed -n 's/.*"image": "\\([0-9a-f]*\\)".*/\\1/p' /opt/trainyard/image.json 2>/dev/null)
test -e /var/lib/trainyard/ready.json && echo "image=$image"
test -d /run/systemd/system && systemctl is-active --quiet 'trainyard-job-*' 2>/dev/null && echo busy=yes
true
"""
_START = (
    # apt-get update does not wait for the lists' lock, which a machine that has just booted may hold.
    "set -e; command -v python3 >/dev/null || { n=0; until apt-get update -q; do n=$((n + 1)); "
    "test $n -lt 20 || exit 1; sleep 15; done; apt-get -o DPkg::Lock::Timeout=300 install -q -y python3; }; "
    "tar -x --no-same-owner -C /; systemctl daemon-reload; "
    "systemctl enable -q /opt/trainyard/bootstrap/trainyard-bootstrap.service; "
    "rm -f /var/lib/trainyard/ready.json /var/lib/trainyard/failed.json; "
    "systemctl restart --no-block trainyard-bootstrap.service"
)
_TIMEOUT = 600.0
_INSTALL_SECONDS = 3600.0
"""Limit of the whole installation, with torch's download; each step also has its own limit on the machine."""
WHAT_CHANGES = """\
on each: Python packages under /opt/trainyard (some 5 GB) and the Debian packages that they need; python, torchrun and
accelerate as commands for everybody, where /usr/local/bin has none; the host name of the inventory, also in /etc/hosts;
no passwords and no root over SSH; more open files and locked memory; an update by needrestart restarts no job"""


@task(
    help={
        "inventory": "the inventory file of the machines",
        "nodes": "names of nodes, with commas between them (node1,node2); default: all",
        "profile": "native or ipex",
        "collectives": "gloo, or with profile ipex ccl",
    }
)
def bootstrap(
    _c: Context,
    inventory: str = "",
    nodes: str = "",
    profile: str = "native",
    collectives: str = "gloo",
    yes: bool = False,
) -> None:
    """Make machines that you already have nodes: Debian or Ubuntu, reached by SSH, named in an inventory file."""
    if not inventory:
        raise Exit("--inventory FILE is missing: a stack's own machines are bootstrapped by fab up", code=2)
    cluster = load("", inventory)
    chosen = choose(cluster, nodes)
    if cluster.ssh_user == "root":
        why = "nodes refuse root over SSH; name another user, who has sudo without a password"
        raise Exit(f"{inventory}: ssh_user = 'root': {why}", code=2)
    order = software(cluster, chosen, profile, collectives)
    with Fleet(replace(cluster, nodes=tuple(chosen))) as fleet:
        machines = look(fleet)
        todo = [node for node in chosen if machines[node.name].get("image") != order["image"]]
        say(overview(chosen, machines, order["image"]))
        wrong = [f"{name}: {problem(machine)}" for name, machine in machines.items() if problem(machine)]
        if wrong:
            raise Exit("\n".join(wrong), code=2)
        if todo:
            _ask(todo, yes=yes)
            in_parallel(lambda node: _install(fleet, node, order["files"][node.name]), todo)
            began = time.monotonic()
            with Fleet(replace(cluster, nodes=tuple(todo))) as installing:
                follow_boot(installing, _INSTALL_SECONDS)
            say(f"{len(todo)} installed in {time.monotonic() - began:.0f} s")
    say(next_command("fab wait"))


def software(cluster: SshCluster, nodes: Sequence[Node], profile: str, collectives: str) -> dict[str, Any]:
    """{"image", "files"} of these nodes, as infra.bootstrap_files makes them; Exit 2 for an unknown profile."""
    asked = {
        "profile": profile,
        "collectives": collectives,
        "user": cluster.ssh_user,
        "nodes": [{"name": node.name, "role": node.role} for node in nodes],
    }
    made: dict[str, Any] = json.loads(pulumi_cli.ask(pulumi_cli.module("bootstrap_files"), stdin=json.dumps(asked)))
    return made


Machine = Mapping[str, str]
"""What the probe printed; of `systemd`, `sudo`, `image` (the node software's id) and `busy` only what is there."""


def look(fleet: Fleet) -> dict[str, Machine]:
    """Probe each machine, without a change to it; Exit 1 names those that cannot be reached."""
    results = fleet.run(f"exec sh -c {shlex.quote(_PROBE)}", timeout=60)
    wrong = [f"{name}: {result.why}" for name, result in results.items() if not result.ok]
    if wrong:
        raise Exit("\n".join(wrong), code=1)
    return {name: machine_of(result.stdout) for name, result in results.items()}


def machine_of(text: str) -> Machine:
    """Parse the probe's `key=value` lines."""
    return dict(line.partition("=")[::2] for line in text.splitlines())


def problem(machine: Machine) -> str:
    """Why a machine cannot become a node; empty: it can."""
    system, arch = machine.get("system", "unknown").strip(), machine.get("arch", "unknown")
    needs = (
        (system.partition(" ")[0] in SYSTEMS, f"its system is {system}; needed: Debian or Ubuntu"),
        (arch == "x86_64", f"its processor is {arch}; needed: x86_64, the only one that Intel MPI is made for"),
        ("systemd" in machine, "systemd does not run there"),
        ("sudo" in machine, "sudo asks this user for a password; needed: sudo without one"),
        ("busy" not in machine, "a job runs there: stop it first (fab jobs)"),
    )
    return next((why for has, why in needs if not has), "")


def overview(nodes: Sequence[Node], machines: Mapping[str, Machine], image: str) -> str:
    """A table: each machine, its system, and what would be done."""
    rows = [["NAME", "ADDRESS", "SYSTEM", "WHAT"]]
    for node in nodes:
        machine = machines[node.name]
        done = "is a node with this software" if machine.get("image") == image else "its software is replaced"
        what = problem(machine) or (done if machine.get("image") else "becomes a node")
        rows.append([node.name, node.address, machine.get("system", "unknown"), what])
    return table(rows)


def _ask(nodes: Sequence[Node], *, yes: bool) -> None:
    say(WHAT_CHANGES)
    must_be_answerable(yes)
    if not yes:
        ask(f"make {', '.join(node.name for node in nodes)} nodes?")


def _install(fleet: Fleet, node: Node, files: Sequence[Mapping[str, str]]) -> None:
    """Copy the scripts and their settings to the machine, and start the service that runs them."""
    command = f"exec sudo -n sh -c {shlex.quote(_START)}"
    try:
        send(fleet, node, command, lambda out: out.write(packed(files)), seconds=_TIMEOUT)
    except SendError as error:
        raise Exit(f"{node.name}: the bootstrap could not be started: {error}", code=1) from None


def packed(files: Sequence[Mapping[str, str]]) -> bytes:
    """The files as a tar whose names are relative to /."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            content = file["content"].encode()
            entry = tarfile.TarInfo(file["path"].lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(content), int(file["mode"], 8), int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
