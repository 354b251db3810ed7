"""Runs one process of a user's program: `program-rank -- COMMAND ...`, where the trainer's ranks have `rank`.

It is told its place in the variables that torch, accelerate, transformers and MPI read, begins in the job's working
directory, and is a process group of its own, so that SIGTERM reaches what it has started, too.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from fabfile.launchers import VENV, nodes_from_text
from fabfile.launchers.program import (
    NODE,
    WORK,
    Program,
    completed,
    from_record,
    hostfile,
    placed,
    process_environment,
    without_mpi,
)
from node.job import files, pmi
from node.job.rank_wrapper import LINGER, RankLog, RankPlacement, files_of, from_node, outlive_signals, prepare

_PMI = ("/usr/lib/x86_64-linux-gnu/libpmi2.so.0", "/opt/slurm/lib/libpmi2.so.0", "/usr/lib64/libpmi2.so.0")
"""Where Slurm's library may be by which Intel MPI's ranks find each other: Debian's, ParallelCluster's, Red Hat's."""
_LAST_LINES = 2.0
"""Seconds after the program's end for lines of what it has left running."""
_NOT_FOUND, _NOT_STARTED = 127, 126
"""Exit codes of a shell for a command that it does not find, or that it cannot start."""


def main(argv: list[str]) -> int:
    """Run the process to its end; returns its exit code, or 128 + the signal that killed it."""
    place = RankPlacement(os.environ)
    path, log = files_of(place)
    run_dir = Path(os.environ["RUN_DIR"])
    told = files.read(run_dir / files.PROGRAM)
    program = from_record(told)
    environment = environment_of(program, place, log, run_dir, told["bin"])
    nodes = nodes_from_text(os.environ["TRAINYARD_NODES"])
    command = completed(program, nodes, environment)
    outlive_signals()
    met = None
    if where := environment.pop(pmi.VARIABLE, ""):
        met, of_mpi = pmi.join(where, place.rank, int(environment["WORLD_SIZE"]))
        environment |= of_mpi
    record = {"rank": place.rank, "node": place.node, "wrapper": os.getpid()}
    try:
        child = start(command, environment, run_dir / WORK)
        if met is not None:
            met.close()  # the program has it
    except OSError as error:
        why = f"{command[0]}: {error.strerror}"
        log.line(why)
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        files.write(path, {**record, "pid": os.getpid(), "state": "running"})
        files.write(path, {**record, "pid": os.getpid(), **_ended(code, why)})
    else:
        record |= {"pid": child.pid, "group": True}
        files.write(path, {**record, "state": "running"})
        code = _wait(child, log, program.grace)
        files.write(path, {**record, **_ended(code, log.last)})
    if code != 0:
        # When this process exits, the launcher kills all others, which may have just been asked to end.
        time.sleep(LINGER + program.grace)
    return code if code >= 0 else 128 - code


def environment_of(program: Program, place: RankPlacement, log: RankLog, run_dir: Path, python: str) -> dict[str, str]:
    """The whole environment of this process; what the user has named comes last. `python`: the folder with its
    Python."""
    # Without what the training operator says to torchrun, of which our supervisor is in charge.
    there = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    own = run_dir / "nodes" / place.node
    nodes = nodes_from_text(there["TRAINYARD_NODES"])
    environment = {**without_mpi(program, there), **from_node(place, log.line)}
    if program.starts_ranks:  # as many threads for each of these as for a rank
        environment["OMP_NUM_THREADS"] = there["OMP_NUM_THREADS"]
    environment |= process_environment(nodes, program.per, place.rank)
    environment |= {
        f"PET_{name}": there[name] for name in ("MASTER_ADDR", "MASTER_PORT") if "PET_NNODES" in environment
    }
    environment |= files.read(files.node_secrets_of(there["TRAINYARD_JOB"]))
    hosts = own / f"hostfile-{place.rank}"
    hosts.write_text(hostfile(placed(nodes, program.per) if program.per == NODE else nodes))
    environment["TRAINYARD_HOSTFILE"] = str(hosts)
    environment["TRAINYARD_HEARTBEAT"] = str(run_dir / "heartbeat" / f"rank-{place.rank}.json")
    environment["TRAINYARD_WRAPPER"] = str(os.getpid())
    if environment["TRAINYARD_COLLECTIVES"] == "gloo":  # the others bring a libfabric of their own
        libraries = [str(Path(VENV).parent / "lib"), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))  # with MPI's, for programs made for it
    if "SLURM_PROCID" in there and (found := next((path for path in _PMI if Path(path).exists()), "")):
        environment["I_MPI_PMI_LIBRARY"] = found
    environment["PATH"] = f"{python}:{VENV}:{there.get('PATH', os.defpath)}"
    named = dict(program.environment)
    paths = [named.pop("PYTHONPATH", ""), str(_library(own))]
    return environment | {"PYTHONPATH": ":".join(filter(None, paths))} | named


def start(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start the program in this folder. OSError if there is no such program, or it cannot be started."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_prepare,
        close_fds=False,  # MPI talks to its launcher through an inherited file descriptor
    )


def _prepare() -> None:
    """Runs in the child before exec."""
    prepare()
    os.setpgid(0, 0)


def _wait(child: subprocess.Popen[bytes], log: RankLog, grace: float) -> int:
    """Log what the program prints until it has ended. What it has left running may print on: for a moment, or, if
    SIGTERM has ended the program, as long as that has to end well itself."""
    assert child.stdout
    reader = threading.Thread(target=log.take, args=(child.stdout.fileno(),), daemon=True)
    reader.start()
    code = child.wait()
    reader.join(grace if code == -signal.SIGTERM else _LAST_LINES)
    return code


def _ended(code: int, last: str) -> dict[str, Any]:
    return {"state": "exited", "code": code, "last": last, "time": time.time()}


def _library(folder: Path) -> Path:
    """A folder with the module `trainyard`, for the program to import."""
    library = folder / "python"
    library.mkdir(parents=True, exist_ok=True)
    source = pkgutil.get_data("node", "trainyard.py")
    assert source is not None
    temporary = library / f"trainyard.py.{os.getpid()}"
    temporary.write_bytes(source)
    temporary.replace(library / "trainyard.py")
    return library
