"""Gives a job its number, its directory, and its service or its place in Slurm's queue; refuses if other jobs have its
nodes. Runs on the head. For a job on Kubernetes it only makes the record: whoever asks then applies its PyTorchJob.

stdin: a line of JSON, a JobSpec with the job's secrets; stdout: {"id": ..., "log": ..., "slurm": ...} or
{"refused": why}. `log` is the size in bytes of a resumed job's log until now, from where the operator shows it; `slurm`
is Slurm's number of the job, empty without Slurm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from fabfile.launchers import SYSTEM_PYTHON
from node.job import cleanup, files, job_table, log, managed
from node.job.files import Record
from node.job.spec import JobSpec, from_record
from node.kubernetes import records as kube_records
from node.slurm import records, submission
from node.slurm.queue import SlurmError

STOP_SECONDS = 20


def main(argv: list[str]) -> int:
    """Make the job that stdin asks for, or print why not. Returns 0 in both cases."""
    asked: Record = json.loads(sys.stdin.readline())
    secrets = asked.pop("secrets")
    spec = from_record(asked)
    runs = files.absolute(spec.runs)
    with job_table.locked(runs):
        if refused := _refused(runs, spec):
            print(json.dumps({"refused": refused}), flush=True)
            return 0
        job = spec.resume or job_table.take(runs, spec.name, spec.taken)
        run_dir = runs / job
        run_dir.mkdir(exist_ok=True)
        before, log_size = files.read(run_dir / "state.json"), log.end(run_dir / "log")
        (run_dir / "stop.json").unlink(missing_ok=True)
        managed.done(run_dir)
        if spec.program is None:
            (run_dir / "job.toml").write_text(spec.job)
        spec = replace(spec, id=job, run_dir=str(run_dir), has_secrets=bool(secrets))
        files.write(run_dir / "spec.json", spec.to_record())
        files.write(run_dir / "state.json", _pending(spec, job, before))
        if spec.is_in_pods:
            kube_records.keep(run_dir, before)
        elif refused := _submit(spec, secrets) if spec.is_slurms else _serve(spec, secrets):
            _undo(run_dir, before)
            print(json.dumps({"refused": refused}), flush=True)
            return 0
    number = files.read(run_dir / "state.json").get("slurm", "")
    print(json.dumps({"id": job, "log": log_size, "slurm": number}), flush=True)
    return 0


def _submit(spec: JobSpec, secrets: dict[str, str]) -> str:
    """Submit the job to Slurm; returns why that refuses it, empty if it does not."""
    run_dir = Path(spec.run_dir)
    with records.locked(run_dir):  # the job may start before its number is written, and reads it
        try:
            number = submission.submit(submission.batch_of(spec), secrets)
        except SlurmError as error:
            return f"Slurm: {error}"
        job_table.set_state(run_dir, slurm=number)
    return ""


def _serve(spec: JobSpec, secrets: dict[str, str]) -> str:
    """Start the job's service on this head, with its secrets beside it. Returns an empty text."""
    write_secrets(spec.id, secrets)
    try:
        _start(spec, spec.id, Path(spec.run_dir))
    except BaseException:
        files.secrets_of(spec.id).unlink(missing_ok=True)
        raise
    return ""


def _undo(run_dir: Path, before: Record) -> None:
    """Leave nothing of a new job, and a resumed one as it was."""
    if before:
        files.write(run_dir / "state.json", before)
    else:
        shutil.rmtree(run_dir)


def write_secrets(job: str, secrets: dict[str, str]) -> None:
    """Write the job's secrets to a file in memory that only its owner can read; `aftermath` removes it."""
    files.write_secrets(files.secrets_of(job), secrets)


def _refused(runs: Path, spec: JobSpec) -> str:
    """Why the job cannot be made; empty if it can."""
    names = spec.node_names
    if spec.resume:
        state = job_table.state_of(runs / spec.resume)
        if not state and not spec.mirrored:
            return f"there is no job {spec.resume}"
        if state and state["state"] not in files.OVER:
            return f"{spec.resume} is {state['state']} already"
    if spec.is_slurms:
        return submission.refused(spec)
    if spec.queue or spec.is_in_pods:  # Kubernetes holds a job's pods back until there is room for them
        return ""
    for other in job_table.in_the_way(runs, set(names)):
        busy = [name for name in names if name in other["nodes"]]
        return f"{', '.join(busy)}: busy with {other['id']}"
    # A job of another `runs` folder, as of another cluster's inventory with the same head, is seen only by its units.
    others = cleanup.busy_with("")
    return f"{names[0]}: busy with {others[0]}" if others else ""


def _pending(spec: JobSpec, job: str, before: Record) -> Record:
    new = {"state": "PENDING", "reason": "", "exit_code": None, "created": time.time(), "ended": None}
    new |= {"program": spec.program.shell} if spec.program else {}
    times = {"started": before.get("started"), "ended_before": before.get("ended"), "paused": before.get("paused", 0.0)}
    asked = {"nodes": spec.node_names, "price_per_hour": spec.price_per_hour, "queued": spec.queue}
    if spec.is_slurms:  # which chooses the nodes
        asked |= {"nodes": [], "queued": False, "slurm": "", "restarts_left": spec.restarts}
    if spec.is_in_pods:
        asked |= {"nodes": [], "queued": False, "kubernetes": True, "restarts_left": spec.restarts}
    return {"id": job, **new, **times, **asked, "attempt": before.get("attempt", 0)}


def _start(spec: JobSpec, job: str, run_dir: Path) -> None:
    """Start the job's service. However it ends, systemd then runs `aftermath`."""
    properties = ["KillMode=control-group", f"TimeoutStopSec={STOP_SECONDS}", "Nice=-5", "OOMScoreAdjust=-900"]
    properties.append(f"ExecStopPost={SYSTEM_PYTHON} -I {spec.node_program} aftermath {run_dir}")
    options = [f"--property={item}" for item in properties]
    who = [f"--uid={os.getuid()}", f"--gid={os.getgid()}", f"--unit={files.unit_of(job)}.service"]
    program = [SYSTEM_PYTHON, "-I", spec.node_program, "supervise", str(run_dir)]
    subprocess.run(["sudo", "-n", "systemd-run", "--quiet", "--collect", *who, *options, "--", *program], check=True)
