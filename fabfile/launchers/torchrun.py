"""torchrun: the ranks of one node, without MPI and without SSH."""

from __future__ import annotations

from fabfile.launchers import VENV, HeadValues, Launch, LaunchError, LaunchPlan, rank_argv, rank_environment


def plan(launch: Launch, found: HeadValues) -> LaunchPlan:
    """The plan for one node; LaunchError for more."""
    if len(launch.nodes) != 1:
        raise LaunchError(f"torchrun is for one node, not for {len(launch.nodes)}: add --nodes 1, or use mpirun")
    options = ["--nnodes", "1", "--nproc-per-node", str(launch.ranks)]
    options += ["--master-addr", launch.nodes[0].private_ip, "--master-port", found.port, "--no-python"]
    argv = [f"{VENV}/python", "-m", "torch.distributed.run", *options, *rank_argv(launch)]
    # The ranks inherit torchrun's environment.
    environment = {"PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin", **rank_environment(launch, found)}
    return LaunchPlan(argv=argv, environment=environment)
