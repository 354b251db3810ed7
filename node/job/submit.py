"""Gives a job its number, its directory, and its service or its place in Slurm's queue; refuses if other jobs have its
nodes. Runs on the head. For a job on Kubernetes it only makes the record: whoever asks then applies its PyTorchJob.

stdin: a line of JSON, a JobSpec with the job's secrets; stdout: {"id": ..., "log": ..., "slurm": ..., "nodes": ...},
{"refused": why}, or {"wrong": why} for what no job can have here. `log` is the size in bytes of a resumed job's log
until now, from where the operator shows it; `slurm` is Slurm's number of the job, empty without Slurm; `nodes` are the
job's, empty while it waits for some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from fabfile.launchers import SYSTEM_PYTHON
from node import folders
from node.job import cleanup, files, job_table, log, managed, places
from node.job.files import Record
from node.job.rank_wrapper import READY
from node.job.spec import JobSpec, from_record
from node.kubernetes import records as kube_records
from node.slurm import records, submission
from node.slurm.queue import SlurmError

STOP_SECONDS = 20


def main(argv: list[str]) -> int:
    """Make the job that stdin asks for, or print why not. Returns 0 in both cases."""
    asked: Record = json.loads(sys.stdin.readline())
    secrets = asked.pop("secrets")
    spec = _where_it_may(from_record(asked))
    runs = files.absolute(spec.runs)
    with job_table.locked(runs):
        if wrong := submission.wrong_limit(spec) if spec.is_slurms else "":
            print(json.dumps({"wrong": wrong}), flush=True)
            return 0
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
        files.write(run_dir / "state.json", _pending(runs, spec, job, before))
        if spec.is_in_pods:
            kube_records.keep(run_dir, before)
        elif refused := _submit(spec, secrets) if spec.is_slurms else _serve(spec, secrets):
            _undo(run_dir, before)
            print(json.dumps({"refused": refused}), flush=True)
            return 0
    state = files.read(run_dir / "state.json")
    known = {"slurm": state.get("slurm", ""), "nodes": state["nodes"]}
    print(json.dumps({"id": job, "log": log_size, **known}), flush=True)
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
        folders.remove(run_dir)


def write_secrets(job: str, secrets: dict[str, str]) -> None:
    """Write the job's secrets to a file in memory that only its owner can read; `aftermath` removes it."""
    files.write_secrets(files.secrets_of(job), secrets)


def _where_it_may(spec: JobSpec) -> JobSpec:
    """The job, on the first nodes if the head must not choose others: oneCCL's ranks need mpirun, which runs there."""
    if spec.is_slurms or spec.is_in_pods or not spec.count or files.read(READY).get("collectives") != "ccl":
        return spec
    return replace(spec, cluster=replace(spec.cluster, nodes=spec.cluster.nodes[: spec.count]), count=0, among=())


def _refused(runs: Path, spec: JobSpec) -> str:
    """Why the job cannot be made; empty if it can."""
    if spec.resume:
        state = job_table.state_of(runs / spec.resume)
        if not state and not spec.mirrored:
            return f"there is no job {spec.resume}"
        if state and state["state"] not in files.OVER:
            return f"{spec.resume} is {state['state']} already"
        if (home := _home(runs, spec)) and home not in spec.node_names:
            return f"{spec.resume}: its files are on {home}, which is not there now"
    if spec.is_slurms:
        return submission.refused(spec)
    if spec.queue or spec.is_in_pods:  # Kubernetes holds a job's pods back until there is room for them
        return ""
    taken, home = _taken(runs, spec), _home(runs, spec)
    if places.choose(spec, taken, home):
        return ""
    if home in taken:
        return f"{home}: busy with {taken[home]}, and {spec.resume} has its files there"
    return f"{', '.join(taken)}: busy with {', '.join(dict.fromkeys(taken.values()))}"


def _taken(runs: Path, spec: JobSpec) -> dict[str, str]:
    """The nodes that other jobs have, each with its job. A job of another `runs` folder, as of another cluster's
    inventory with the same head, is seen only by its units."""
    others = cleanup.busy_with("")
    head = spec.cluster.head.name
    return ({head: others[0]} if others and head in spec.candidates else {}) | places.taken(runs, spec)


def _home(runs: Path, spec: JobSpec) -> str:
    return places.home(spec, files.read(runs / spec.resume / "state.json"))


def _pending(runs: Path, spec: JobSpec, job: str, before: Record) -> Record:
    new = {"state": "PENDING", "reason": "", "exit_code": None, "created": time.time(), "ended": None}
    new |= {"program": spec.program.shell} if spec.program else {}
    times = {"started": before.get("started"), "ended_before": before.get("ended"), "paused": before.get("paused", 0.0)}
    asked: Record = {
        "price_per_hour": spec.price_per_hour,
        "queued": spec.queue,
        "files_on": before.get("files_on", ""),
        "ran_on": before.get("ran_on", []),
    }
    if spec.is_slurms:  # which chooses the nodes
        asked |= {"nodes": [], "queued": False, "slurm": "", "restarts_left": spec.restarts}
    if spec.is_in_pods:
        asked |= {"nodes": [], "queued": False, "kubernetes": True, "restarts_left": spec.restarts}
    if not (spec.is_slurms or spec.is_in_pods):
        asked |= places.waiting(spec)
        if not spec.queue:
            asked |= places.given(spec, places.choose(spec, _taken(runs, spec), places.home(spec, before)))
    return {"id": job, **new, **times, **asked, "attempt": before.get("attempt", 0)}


def _start(spec: JobSpec, job: str, run_dir: Path) -> None:
    """Start the job's service. However it ends, systemd then runs `aftermath`."""
    properties = ["KillMode=control-group", f"TimeoutStopSec={STOP_SECONDS}", "Nice=-5", "OOMScoreAdjust=-900"]
    properties.append(f"ExecStopPost={SYSTEM_PYTHON} -I {spec.node_program} aftermath {run_dir}")
    options = [f"--property={item}" for item in properties]
    who = [f"--uid={os.getuid()}", f"--gid={os.getgid()}", f"--unit={files.unit_of(job)}.service"]
    program = [SYSTEM_PYTHON, "-I", spec.node_program, "supervise", str(run_dir)]
    subprocess.run(["sudo", "-n", "systemd-run", "--quiet", "--collect", *who, *options, "--", *program], check=True)
