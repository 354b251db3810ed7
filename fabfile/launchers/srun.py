"""Slurm's srun: starts one rank per slot on every node of the job's allocation.

    srun --mpi=none --nodes 2 --ntasks 2 --ntasks-per-node 1 ... python3 launch rank -- python -m training.train

Which nodes these are is Slurm's choice, made when the job starts. The ranks inherit srun's environment; each finds its
number in SLURM_PROCID (see node/job/rank_wrapper.py). srun's exit code is not the job's: it is 143 if a rank was
killed, whatever the culprit's own code was, and 0 if its output could not be opened. The rank wrapper's records tell.
"""

from __future__ import annotations

from fabfile.launchers import VENV, HeadValues, Launch, LaunchError, LaunchPlan, rank_argv, rank_environment

_STEP = ("--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered", "--quiet")
STEP = ("--mpi=none", *_STEP)
"""Options of every step of a job; a user's program may be MPI's, and gets PMI-2. --overlap: the keepers' steps and the
ranks' share the nodes. --cpu-bind=none: the rank wrapper pins, under every launcher in the same way."""


def plan(launch: Launch, found: HeadValues) -> LaunchPlan:
    """The plan for nodes of one size; LaunchError if they differ."""
    used = [node for node in launch.places if node.slots]
    slots = {node.slots for node in used}
    if len(slots) != 1:
        raise LaunchError(f"Slurm: all nodes of a job must have the same number of slots, not {sorted(slots)}")
    options = ["--nodes", str(len(used)), "--ntasks", str(launch.ranks)]
    options += ["--ntasks-per-node", str(slots.pop()), "--distribution=block", "--kill-on-bad-exit=1", "--input=none"]
    if len(used) < len(launch.nodes):
        options.append("--relative=0")  # the first of the allocation's nodes
    environment = {"PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin", **rank_environment(launch, found)}
    environment |= {"TRAINYARD_NODES": found.nodes, "MASTER_ADDR": found.master}
    step = ["--mpi=pmi2", *_STEP] if launch.program else STEP
    return LaunchPlan(argv=["srun", *step, *options, *rank_argv(launch)], environment=environment)
