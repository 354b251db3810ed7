"""torchrun: the ranks of one node, without MPI and without SSH."""

from __future__ import annotations

from fabfile.launchers import VENV, Found, Launch, LaunchError, Plan, rank_argv, rank_environment


def plan(launch: Launch, found: Found) -> Plan:
    """The plan for one node; LaunchError for more."""
    if len(launch.nodes) != 1:
        raise LaunchError(f"torchrun is for one node, not for {len(launch.nodes)}: add --nodes 1, or use mpirun")
    return Plan(argv=argv(launch, found), environment=environment(launch, found))


def environment(launch: Launch, found: Found) -> dict[str, str]:
    """For torchrun and for the ranks, which inherit it."""
    return {"PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin", **rank_environment(launch, found)}


def argv(launch: Launch, found: Found) -> list[str]:
    """torchrun's command line."""
    address = launch.nodes[0].private_ip
    where = ["--nnodes", "1", "--nproc-per-node", str(launch.ranks)]
    meet = ["--master-addr", address, "--master-port", found.port]
    return [f"{VENV}/python", "-m", "torch.distributed.run", *where, *meet, "--no-python", *rank_argv(launch)]
