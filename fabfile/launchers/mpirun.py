"""Intel MPI's mpirun: starts one rank per slot on every node, over strict SSH.

    mpirun -n 3 -ppn 1 -hostfile HOSTS -genv OMP_NUM_THREADS 8 ... python3 launch rank -- python -m training.train

mpirun only starts the ranks. It does not end them (it leaves survivors), carry their output (a killed mpirun loses the
last lines) or pin them (on nodes that share one machine it would pin all ranks to the same core). The rank wrapper
does these, under torchrun too; it pins a rank to the cores of a NUMA node that no other rank uses.
"""

from __future__ import annotations

from fabfile.launchers import VENV, HeadValues, Launch, LaunchPlan, program, rank_argv, rank_environment
from infra.inventory import Node

_TREE = 16  # mpirun's default number of nodes that one node starts; it starts more through other nodes


def plan(launch: Launch, found: HeadValues) -> LaunchPlan:
    """The plan for any number of nodes."""
    return LaunchPlan(
        argv=argv(launch, found), environment=environment(launch, found), hostfile=hostfile(launch.places)
    )


def hostfile(nodes: tuple[Node, ...]) -> str:
    """`node1:2`: a line for each node with ranks, with its slots."""
    return program.hostfile([node for node in nodes if node.slots])


def environment(launch: Launch, found: HeadValues) -> dict[str, str]:
    """For mpirun itself and its helper on each node."""
    values = {
        "PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{found.folder}/ssh",
        # Only the head has the SSH command, so it must start every node itself, not through a tree of nodes.
        "I_MPI_HYDRA_BRANCH_COUNT": str(max(_TREE, len(launch.nodes))),
        "I_MPI_PIN": "0",
    }
    if len(launch.nodes) > 1:
        values["I_MPI_HYDRA_IFACE"] = launch.interface or found.interface
    return values


def argv(launch: Launch, found: HeadValues) -> list[str]:
    """mpirun's command line: its options, the ranks' environment, the program."""
    words = ["mpirun", "-n", str(launch.ranks)]
    slots = {node.slots for node in launch.places if node.slots}
    if len(slots) == 1:  # else the hostfile alone says how many
        words += ["-ppn", str(slots.pop())]
    words += ["-hostfile", f"{found.folder}/hostfile"]
    for name, value in rank_environment(launch, found).items():
        words += ["-genv", name, value]
    return [*words, *rank_argv(launch)]
