"""Pods of one job as processes of this machine: the program of a pod, with the environment that Kubernetes gives it.

with job_of(tmp_path, pods=3) as job:
    job.start(0), job.start(1), job.start(2)
    job.ends("SUCCEEDED")

Each pod has an address of its own, 127.0.0.N, and they share the run directory, as on a shared volume. The ranks run
`training.train` of tests/support/pod_trainer.py unless the test puts in another one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polling import until

from fabfile.launchers import SYSTEM_PYTHON, VENV
from fabfile.remote import node_program
from infra.inventory import Node, Queue, SshCluster
from node.job import files
from node.job.spec import JobSpec

TRAINER = Path(__file__).parent / "pod_trainer.py"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def program(folder: Path, changes: Mapping[str, tuple[str, str]]) -> Path:
    """The node program in `folder`, with other values of constants: by file, the line and what it becomes."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(node_program.content())) as old, zipfile.ZipFile(made, "w") as new:
        left = dict(changes)
        for name in old.namelist():
            text = old.read(name).decode()
            for key in [key for key in left if key.partition("#")[0] == name]:
                before, after = left.pop(key)
                assert before in text, f"{name} has no {before}"
                text = text.replace(before, after)
            new.writestr(name, text)
        assert not left, f"no such file: {left}"
    path = folder / "launch"
    path.write_bytes(made.getvalue())
    return path


@dataclass
class PodsOfJob:
    """A job and its pods."""

    folder: Path
    run_dir: Path
    launch: Path
    environment: dict[str, str]
    pods: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    made: int = 0

    @property
    def state(self) -> dict[str, Any]:
        return files.read(self.run_dir / "state.json")

    @property
    def log(self) -> str:
        return files.text(self.run_dir / "log")

    def output(self, index: int) -> str:
        """What the pods with this number have printed themselves."""
        return files.text(self.folder / f"pod-{index}.out")

    def start(self, index: int, *, machine: str = "", host_ip: str = "127.0.0.1", **more: str) -> None:
        """Make a pod of this number, as the operator does."""
        self.made += 1
        own = {
            "RANK": str(index),
            "WORLD_SIZE": "7",
            "MASTER_ADDR": "pods-master-0",
            "MASTER_PORT": "23456",
            "PYTHONUNBUFFERED": "0",
            "TRAINYARD_POD": f"{self._prefix(index)}{self.made}",
            "TRAINYARD_POD_IP": f"127.0.0.{10 + self.made}",
            "TRAINYARD_MACHINE": machine or f"machine-{index}",
            "TRAINYARD_HOST_IP": host_ip,
        }
        argv = [SYSTEM_PYTHON, "-I", str(self.launch), "pod", str(self.run_dir)]
        with (self.folder / f"pod-{index}.out").open("ab") as output:
            self.pods[index] = subprocess.Popen(
                argv, env={**self.environment, **own, **more}, stdout=output, stderr=output, start_new_session=True
            )

    def _prefix(self, index: int) -> str:
        """What the names of this pod begin with, and those of no other test that runs now."""
        return f"pods-{os.getpid()}-{index}-"

    def processes(self, index: int, command: str = "") -> list[int]:
        """The processes of the newest pod of this number; only those with this in their command line."""
        name = f"TRAINYARD_POD={self._prefix(index)}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = any(word.startswith(name) for word in (entry / "environ").read_bytes().split(b"\0"))
                if ours and command.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
        return found

    def rank(self, number: int) -> int:
        """The process of a rank, once it has done a step."""
        beat = self.run_dir / "heartbeat" / f"rank-{number}.json"
        return int(until(lambda: files.read(beat).get("step", -1) > 0 and files.read(beat)["pid"]))

    def step(self, least: int, attempt: int = 1) -> None:
        """Wait until rank 0 has done so many steps, in this attempt."""
        beat = self.run_dir / "heartbeat" / "rank-0.json"
        until(
            lambda: self.state.get("attempt") == attempt and files.read(beat).get("step", -1) >= least,
            40,
            lambda: f"no step {least} in attempt {attempt}:\n{self.everything()}",
        )

    def kill(self, index: int) -> None:
        """Kill a pod at once, with all that runs in it, as the end of its container does."""
        self.pods[index].kill()
        for _ in range(5):
            for pid in self.processes(index):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.pods[index].wait()

    def ends(self, state: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait for the job's end, which is this one; its record."""
        until(lambda: self.state.get("state") in files.OVER, seconds, lambda: f"not over:\n{self.everything()}")
        assert self.state["state"] == state, self.everything()
        return self.state

    def exits(self, index: int) -> int:
        """The exit code of a pod that is about to end."""
        return self.pods[index].wait(15)

    def everything(self) -> str:
        """For a test that fails."""
        printed = [f"--- pod {index}\n{self.output(index)}" for index in sorted(self.pods)]
        return "\n".join([json.dumps(self.state), self.log, *printed])


def asked(folder: Path, job: str, **settings: Any) -> JobSpec:
    """The job as the operator's side asks for it."""
    slots = settings.pop("slots", 1)
    pods = settings.pop("pods", 3)
    queue = Queue(name="workers", nodes=8, node_prefix="worker", slots=slots)
    head = Node(name="head", private_ip="127.0.0.1", role="head")
    cluster = SshCluster(name="kube", nodes=(head,), queue=queue, shared_dir=str(folder))
    own = {"launcher": "kubernetes", "cluster": cluster, "timeout": 20.0, "count": pods}
    return JobSpec(name="demo", job=job, runs=str(folder / "runs"), code=str(folder / "code"), **{**own, **settings})


@contextmanager
def job_of(
    folder: Path,
    *,
    steps: int = 20,
    changes: Mapping[str, tuple[str, str]] | None = None,
    environment: Mapping[str, str] | None = None,
    trainer: Path = TRAINER,
    job_toml: str = "",
    **settings: Any,
) -> Iterator[PodsOfJob]:
    """A new job, created as the head pod does it, none of whose pods has begun. `changes` as for `program`. `trainer`:
    a file in place of training/train.py, or a folder in place of training/."""
    code, python = folder / "code", folder / "venv"
    code.mkdir()
    if trainer.is_dir():
        shutil.copytree(trainer, code / "training")
    else:
        (code / "training").mkdir()
        (code / "training/__init__.py").touch()
        shutil.copy(trainer, code / "training/train.py")
    python.mkdir()
    (python / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (python / "python").chmod(0o755)
    launch = program(
        code,
        {
            "fabfile/launchers/__init__.py#venv": (f'VENV = "{VENV}"', f'VENV = "{python}"'),
            "node/kubernetes/api.py#account": (ACCOUNT, str(folder / "account")),
            **(changes or {}),
        },
    )
    api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    base = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **api, **(environment or {})}
    text = "" if settings.get("program") else job_toml or f"steps = {steps}\n"
    spec = asked(folder, text, **settings)
    done = subprocess.run(
        [SYSTEM_PYTHON, "-I", str(launch), "create"],
        input=json.dumps({**spec.to_record(), "secrets": {}}),
        env=base,
        capture_output=True,
        text=True,
        check=True,
    )
    made = json.loads(done.stdout)
    job = PodsOfJob(folder, folder / "runs" / made["id"], launch, base)
    try:
        yield job
    finally:
        for index in job.pods:
            job.kill(index)
