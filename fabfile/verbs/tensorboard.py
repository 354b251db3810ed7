"""`fab tensorboard`: TensorBoard of a run, live."""

from __future__ import annotations

from typing import Annotated

from invoke.context import Context
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import find_job
from fabfile.backends.ssh.head import runs
from fabfile.command_line import AtLeast
from fabfile.output import say
from fabfile.targets import load_any
from fabfile.tunnel import ports
from fabfile.tunnel.dial import Dialler
from fabfile.tunnel.forward import Forward, until_interrupted
from fabfile.tunnel.tensorboard import TensorBoard, has_events, python_with_it


@task(
    help={"local": f"the port of this machine; default: {ports.NAMES['tensorboard']}, or a free one if that is taken"}
)
def tensorboard(
    _c: Context, job: str, local: Annotated[int, AtLeast(1)] | None = None, stack: str = "", inventory: str = ""
) -> None:
    """Show a run in TensorBoard, live, until Ctrl-C. It runs where the run's files are, and ends with this."""
    if local is not None:
        ports.number(str(local))
    cluster = load_any(stack, inventory)
    with backends.of(cluster) as backend:
        found = find_job(backend, job)
    with backends.nodes_of(cluster) as fleet:
        head = next((node for node in fleet.cluster.nodes if node.name == found.files_on), fleet.cluster.head)
        folder = f"{runs(fleet.cluster)}/{found.id}"
        python = python_with_it(fleet, head)
        if not has_events(fleet, head, folder):
            say(f"{found.id} has written nothing for TensorBoard yet: it appears as it comes")
        listener = ports.listen(local or ports.NAMES["tensorboard"], exactly=local is not None)
        dialler = Dialler(fleet, head)
        board = TensorBoard(dialler, python, folder)
        try:
            board.start()
            forward = Forward(listener, dialler, lambda: board.port)
            say(f"http://{forward.address} shows {found.id}, live; Ctrl-C ends it, and TensorBoard on {head.name}")
            until_interrupted(forward)
        finally:
            board.stop()
            listener.close()
