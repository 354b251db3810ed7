"""How a job goes on when some of its nodes are dead: in a new job of Slurm's, with spare nodes in their place.

The supervisor does this; if it died with its own node, the keeper of another one does.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from node.job import files, job_table
from node.job.log import Log
from node.job.spec import of_job
from node.slurm import records, step
from node.slurm.allocation import Allocation
from node.slurm.queue import SlurmError


def go_on(
    run_dir: Path, slurm: Allocation, log: Log, without: Collection[str], why: str = "", *, counts: bool = True
) -> None:
    """Have Slurm start the job again without these nodes, with a restart less if it `counts` as one, or record that it
    cannot. `why`: for the record, if no restart is left. Does nothing if another program has done it already."""
    names = ", ".join(sorted(without))
    what = "restart" if slurm.runs_program else "restart from the last checkpoint"
    with records.locked(run_dir):
        state = files.read(run_dir / "state.json")
        if state["state"] in files.OVER or state["slurm"] != slurm.number:
            return
        restarts = state["restarts_left"] - counts
        try:
            if restarts < 0:
                raise SlurmError("no restart is left")
            number, count = slurm.submit_without(without, restarts)
        except SlurmError as error:
            reason = why or f"{f'{names} lost, and ' if names else ''}Slurm does not start it again: {error}"
            log.say(f"{state['id']} FAILED: {reason}")
            job_table.over(run_dir, "FAILED", reason, 1)
            return
        waits = {"state": "PENDING", "queued": True, "reason": "", "nodes": []}
        job_table.set_state(run_dir, slurm=number, restarts_left=restarts, **waits)
        where = f"{count} nodes{f' without {names}' if names else ''}, as Slurm's job {number}"
        log.say(f"{what} on {where}; {restarts} more allowed")
    slurm.forbid_requeue()


def take_over(run_dir: Path, node: str) -> None:
    """Go on for a supervisor that has died with its node; by the keeper on another one, which has heard nothing from it
    for a while. Does nothing while that node can be reached: then Slurm knows how the supervisor ended. Otherwise it
    ends this process, too, with all steps of the job on this node."""
    spec = of_job(run_dir)
    slurm = Allocation(spec)
    head = slurm.nodes[0]
    if head.name == node or not slurm.dead({head.name}):
        return
    log = Log(run_dir / "log", node)
    ranks = ", ".join(map(str, range(head.slots)))
    why = f"{head.name} (rank {ranks}) is cut off: no word for {files.LEASE:.0f} s"
    log.say(f"error: {why}")
    if not spec.has_secrets:  # which Slurm alone has: it starts the job again itself, if it may
        go_on(run_dir, slurm, log, {head.name}, why)
    slurm.tell_down({head.name})
    step.end_all(slurm.number)
