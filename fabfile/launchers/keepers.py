"""The ranks of a job on Kubernetes, and over SSH of an elastic one, and of one without the head: their command and
environment.

No launcher's program starts them: the keeper in each pod, or on each node (node/job/keeper.py), starts a rank per slot
with this command and environment, and adds RANK and LOCAL_RANK. Which machines pods have is Kubernetes' choice, known
when the job's pods have met.
"""

from __future__ import annotations

from fabfile.launchers import VENV, HeadValues, Launch, LaunchPlan, rank_argv, rank_environment


def plan(launch: Launch, found: HeadValues) -> LaunchPlan:
    """The plan for any number of nodes: what each rank runs, and its environment."""
    environment = {"PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin", **rank_environment(launch, found)}
    environment |= {"TRAINYARD_NODES": found.nodes, "MASTER_ADDR": found.master, "WORLD_SIZE": str(launch.ranks)}
    # Said here, as a pod does not see its machine's ready.json.
    gpus = all(node.gpus for node in launch.nodes)
    environment["TRAINYARD_COLLECTIVES"] = "nccl" if gpus else "gloo"
    return LaunchPlan(argv=rank_argv(launch), environment=environment)
