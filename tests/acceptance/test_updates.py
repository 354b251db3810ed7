"""A library is replaced under a running job: on a node, with the real apt, libc and needrestart.

A node has no route to the outside: apt runs in the node's own namespaces but in this machine's network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs_on_nodes import DATA, ENDLESS, JOB, Job, starting
from on_host import boots
from polling import until
from project import Project

from infra.clouds.local import base_image, nodes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PATIENT = "train.timeout=120"
CONFIG = "/etc/needrestart/conf.d/60-trainyard.conf"


@pytest.fixture
def node(make_project: Callable[..., Project]) -> Iterator[Project]:
    """One node with the token set of the small job, whose apt reaches this machine's archive."""
    project = make_project()
    project.configure(nodes=1)
    project.fab("up", "--yes", timeout=900)
    project.fab("wait")
    (project.root / "job.toml").write_text(JOB)
    project.fab("run", f'cd && python3 -c "{DATA}"')
    root = nodes.machine(project.stack, "node1").root
    for source in base_image.sources():
        shutil.copy(source, root / source.relative_to("/"))
    for file in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(Path("/", file), root / file)
    (root / "etc/apt/apt.conf.d/99-host").write_text("\n".join(base_image.apt_options()))
    inside(project, "apt-get", "update")
    inside(project, "apt-get", "install", "--no-install-recommends", "needrestart")
    yield project
    project.fab("destroy", "--yes")


def inside(project: Project, *argv: str, **environment: str) -> str:
    """Run a command as the node's root, in all of its namespaces but that of the network."""
    pid = boots(project.stack)["node1"][0]
    kinds = {"mount": "mnt", "uts": "uts", "ipc": "ipc", "pid": "pid", "cgroup": "cgroup", "user": "user"}
    differs = [kind for kind, name in kinds.items() if _namespace(pid, name) != _namespace("self", name)]
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    env = {**proxies, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **environment}
    options = [f"-oAPT::{option}" for option in ("Get::Assume-Yes=true", "Sandbox::User=root")]
    command = [argv[0], *options, *argv[1:]] if argv[0] == "apt-get" else list(argv)
    entered = ["nsenter", f"--target={pid}", *(f"--{kind}" for kind in differs), "--wd=/", *command]
    done = subprocess.run(entered, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _namespace(pid: int | str, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())


def pid_of(project: Project, unit: str) -> str:
    return inside(project, "systemctl", "show", "--property=MainPID", "--value", unit).strip()


def test_an_upgrade_of_libc_restarts_no_job(node: Project, tmp_path: Path) -> None:
    with starting(node, tmp_path) as start:
        job: Job = start(ENDLESS, PATIENT)
        unit = f"trainyard-job-{job.id}.service"
        before = pid_of(node, unit)
        # A service like any other, with the old libc: what would be restarted.
        inside(node, "systemd-run", "--unit=other", "python3", "-c", "import time; time.sleep(1e6)")
        other = pid_of(node, "other.service")

        output = inside(node, "apt-get", "install", "--reinstall", "libc6")
        assert unit in output and "other.service" in output, "needrestart has seen that both use the old one"
        assert (pid_of(node, unit), pid_of(node, "other.service")) == (before, other), "and restarted neither"

        output = inside(node, "apt-get", "install", "--reinstall", "libc6", NEEDRESTART_MODE="a")
        assert pid_of(node, "other.service") != other, "asked to, it does restart services"
        assert pid_of(node, unit) == before, "but no job"
        steps = len(job.text().splitlines())
        until(lambda: len(job.text().splitlines()) > steps + 10, 120, "the job trains on, and is followed")

        # Without what the image has, it does to a job what Ubuntu's default does.
        inside(node, "rm", CONFIG)
        inside(node, "apt-get", "install", "--reinstall", "libc6", NEEDRESTART_MODE="a")
        until(lambda: job.state()["state"] != "RUNNING" or pid_of(node, unit) != before, 30, "the job is restarted")
