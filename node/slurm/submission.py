"""Submits a job to Slurm, refuses it if its nodes are taken, and cancels it. Runs on the head, and on a job's node."""

from __future__ import annotations

import json
import math
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fabfile.launchers import sbatch
from fabfile.launchers.sbatch import Batch
from node.job import endings, files, job_table
from node.job.spec import JobSpec, job_nodes
from node.slurm import queue, records
from node.slurm.queue import QueuedJob, SlurmError

_NOW_SECONDS = 5.0
"""How long a supervisor has to end its job at once, before Slurm is asked to kill it."""
_SECRETS = "WANDB_"
_POLL = 0.1
_SETTLED_SECONDS = 15.0
"""How long Slurm has to let go of a job that has ended, or to hear again from nodes that it takes for silent."""
SHORTEST = 2.0 * sbatch.EARLY
"""Seconds that a job without a limit of its own must have: at a quarter before the end, and Slurm's moment earlier, it
is told; half a minute is left to begin in."""


def batch_of(spec: JobSpec, *, nodes: int = 0, exclude: Sequence[str] = ()) -> Batch:
    """The job as Slurm is asked for it; `nodes`: another number of them than the user asked for. SlurmError."""
    node = job_nodes(spec.cluster)[0]
    return Batch(
        id=spec.id,
        partition=partition(spec),
        nodes=nodes or spec.node_count,
        slots=node.slots,
        gpus=node.gpus,
        run_dir=spec.run_dir,
        program=spec.node_program,
        restarts=spec.restarts,
        time_limit=spec.time_limit,
        exclude=tuple(exclude),
        warning=_warning(spec),
    )


def partition(spec: JobSpec) -> str:
    """Slurm's partition for the job; empty: its default one."""
    return spec.cluster.queue.name if spec.cluster.queue else ""


def submit(batch: Batch, secrets: Mapping[str, str]) -> str:
    """Write the batch script into the job's directory and submit it; returns Slurm's number. The secrets go to the
    supervisor's environment, which Slurm keeps among its own files on the head, for root and itself. SlurmError."""
    script = Path(batch.run_dir) / sbatch.SCRIPT
    script.write_text(sbatch.script(batch))
    user = pwd.getpwuid(os.getuid())
    plain = {"PATH": os.environ.get("PATH", os.defpath), "HOME": user.pw_dir, "USER": user.pw_name, "LANG": "C.UTF-8"}
    answer = queue.ask(["sbatch", "--parsable", str(script)], environment={**plain, **secrets})
    return answer.strip().partition(";")[0]  # behind the semicolon: the cluster's name


def taken_secrets(spec: JobSpec) -> dict[str, str]:
    """Take the job's secrets out of this process' environment, so that no step inherits them."""
    named = spec.program.secrets if spec.program else [name for name in os.environ if name.startswith(_SECRETS)]
    return {name: os.environ.pop(name) for name in list(named) if name in os.environ}


def refused(spec: JobSpec) -> str:
    """Why the job cannot have its nodes now; empty if it can. One that may wait (`queue`) needs them only to exist.

    Looks again for _SETTLED_SECONDS if no job has the nodes and none is out of service: the job before has just ended.
    """
    deadline = time.monotonic() + _SETTLED_SECONDS
    while True:
        try:
            states, queued = queue.nodes(partition(spec)), queue.jobs()
        except SlurmError as error:
            return f"Slurm: {error}"
        why = too_few(spec.node_count, states, queued, waits=spec.queue)
        if not why or holders(queued) or broken(states) or time.monotonic() > deadline:
            return why
        time.sleep(_POLL)


def wrong_limit(spec: JobSpec) -> str:
    """Why the partition runs no job with this time limit, whichever nodes are free; empty if it does. Slurm refuses
    such a job without saying what the limit is, or leaves it pending for ever, as its EnforcePartLimits says. A job
    without one is refused if it would be warned of the end before it trains."""
    try:
        name, most = queue.longest(partition(spec)) if spec.time_limit else queue.given(partition(spec))
    except SlurmError:  # `refused` asks Slurm next, and says it
        return ""
    if spec.time_limit > most:
        asked = f"--time-limit {_words(spec.time_limit)}"
        return f"{asked}: Slurm's partition {name} lets a job run for {_words(most)} at most"
    if not spec.time_limit and most < SHORTEST:
        only = f"Slurm's partition {name} lets a job run for {_words(most)} if it asks for no time"
        least = f"at least {_words(SHORTEST)}, as it is stopped with a checkpoint before the end"
        return f"{only}; needed: {least} (or --time-limit, which is kept to the second)"
    return ""


def _warning(spec: JobSpec) -> int:
    """How many seconds before the partition's limit a job without one of its own is told. SlurmError."""
    most = math.inf if spec.time_limit else queue.given(partition(spec))[1]
    return int(min(sbatch.WARNING, most / 4))


def _words(seconds: float) -> str:
    """600 -> 10m, 90 -> 90s: exact, in the form that --time-limit takes."""
    sizes = (("d", 86400), ("h", 3600), ("m", 60))
    return next((f"{seconds / size:.0f}{unit}" for unit, size in sizes if seconds % size == 0), f"{seconds:.0f}s")


def too_few(wanted: int, states: Mapping[str, str], queued: Sequence[QueuedJob], *, waits: bool) -> str:
    """Which nodes are not free, and why, if fewer are than wanted; else empty."""
    free = [name for name, state in states.items() if queue.is_free(state)]
    if len(free) >= wanted or (waits and len(states) - len(broken(states)) >= wanted):
        return ""
    held = [f"{job.nodes}: busy with {called(job)}" for job in holders(queued)]
    out = broken(states) if held else [name for name in states if name not in free]
    named = [f"{name} is {states[name]}" for name in out]
    return f"{len(free)} of {len(states)} nodes free, {wanted} wanted; {'; '.join([*held, *named]) or 'fab status'}"


def holders(queued: Sequence[QueuedJob]) -> list[QueuedJob]:
    """The jobs that have nodes, and will have them longer than Slurm needs to clear up."""
    return [job for job in queued if job.nodes and job.state != "COMPLETING"]


def broken(states: Mapping[str, str]) -> list[str]:
    """The nodes that are out of service until somebody does something about it."""
    return [name for name, state in states.items() if state.lower().startswith(("down", "drain", "fail"))]


def called(job: QueuedJob) -> str:
    """What a message calls a job: our id, or Slurm's number and whose it is."""
    return job.ours or f"Slurm's job {job.id} of {job.user}"


def stop(argv: list[str]) -> int:
    """`slurm-stop RUN_DIR stop|now`: ask the supervisor to end the job, or, if it has not begun or does not answer,
    cancel it in Slurm and record that. Prints {} or {"refused": why}."""
    run_dir, how = files.absolute(argv[0]), argv[1]
    files.write(run_dir / "stop.json", {"how": how})
    try:
        state = job_table.state_of(run_dir)
        if state["state"] == "RUNNING" and how == "now":
            state = _awaited(run_dir)
        if state["state"] == "PENDING" or (state["state"] == "RUNNING" and how == "now"):
            queue.ask(["scancel", state["slurm"]])
            _cancelled(run_dir, state)
    except SlurmError as error:
        print(json.dumps({"refused": f"Slurm: {error}"}), flush=True)
        return 0
    print("{}", flush=True)
    return 0


def _awaited(run_dir: Path) -> files.Record:
    """The job's record when it is over, or after _NOW_SECONDS."""
    deadline = time.monotonic() + _NOW_SECONDS
    while (state := files.read(run_dir / "state.json"))["state"] not in files.OVER and time.monotonic() < deadline:
        time.sleep(_POLL)
    return state


def _cancelled(run_dir: Path, before: files.Record) -> None:
    """Record the end of a job that Slurm has been told to cancel, once Slurm has let go of it."""
    deadline = time.monotonic() + queue.SECONDS
    while any(job.id == before["slurm"] for job in queue.jobs()) and time.monotonic() < deadline:
        time.sleep(_POLL)
    if before["started"] is None:
        job_table.over(run_dir, "CANCELLED", "stopped before it started", 1, endings.SOMEBODY)
    else:
        records.settle(run_dir)
