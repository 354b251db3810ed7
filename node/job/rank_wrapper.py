"""Runs one rank: completes its environment on its node, writes its lines to a file, and records how it ended.

    mpirun|srun|keeper ... python3 launch rank -- python -u -m training.train job.toml

The rank's lines go to a file on this node, and the node's keeper sends them to the head, so that the last ones arrive
even if mpirun dies. The rank's exit code or signal is written beside that file before the wrapper exits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fabfile.launchers import RUNTIME, nodes_from_text
from fabfile.launchers.program import SLOT, placed
from node import route
from node.job import cleanup, cores, files
from node.job.log_reader import rotated
from node.slurm import step

READY = Path("/var/lib/trainyard/ready.json")
LONGEST = 16384
"""Longer lines are cut to their last so many bytes."""
FILE_BYTES = 64 << 20
"""A rank's log file on its node is rotated at this size; one rotated file stays. The head has all of its lines."""
LINGER = 4.0
"""Seconds that the wrapper waits after its rank failed. When the wrapper exits, the launcher kills all other ranks; by
then the head has received their error messages and has ended them itself."""
_PR_SET_PDEATHSIG = 1
_NUMBERS = ("PMI_RANK", "RANK", "SLURM_PROCID")


class RankPlacement:
    """This rank's number and node, from the environment that the launcher sets: PMI_RANK, RANK or SLURM_PROCID, and
    TRAINYARD_NODES. ValueError if Slurm has put the rank elsewhere than the supervisor takes it to be."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.rank = int(next((environment[name] for name in _NUMBERS if environment.get(name)), 0))
        self.nodes = nodes_from_text(environment["TRAINYARD_NODES"])
        if (per := environment.get("TRAINYARD_PER", SLOT)) != SLOT:
            self.nodes = placed(self.nodes, per)
        places = [(node, local) for node in self.nodes for local in range(node.slots)]
        node, self.local_rank = places[self.rank]
        if environment.get("SLURMD_NODENAME", node.name) != node.name:
            there = environment["SLURMD_NODENAME"]
            raise ValueError(f"Slurm has started rank {self.rank} on {there}, and not on {node.name}")
        self.node, self.slots, self.cores = node.name, node.slots, node.cores_per_slot
        self.others = [other.private_ip for other in self.nodes if other != node]


def main(argv: list[str]) -> int:
    """`rank -- COMMAND ...`: run a rank to its end; returns its exit code, or 128 + the signal that killed it."""
    place = RankPlacement(os.environ)
    path, log = files_of(place)
    environment = {**os.environ, **from_node(place, log.line)}
    environment["TRAINYARD_STOP_BY"] = str(path.parent / files.STOP_BY)
    if os.environ.get("TRAINYARD_ELASTIC"):
        environment |= {"TRAINYARD_WORLD": str(path.parent / files.WORLD), "TRAINYARD_PLACE": str(place.rank)}
    outlive_signals()
    child = subprocess.Popen(
        argv[1:],
        env=environment,
        cwd=Path.home(),  # a job's relative paths start there, on every node
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=prepare,
        close_fds=False,  # MPI talks to its launcher through an inherited file descriptor
    )
    record = {"rank": place.rank, "node": place.node, "wrapper": os.getpid(), "pid": child.pid}
    files.write(path, {**record, "state": "running"})
    assert child.stdout
    with child.stdout as output:
        log.take(output.fileno())
    code = child.wait()
    ended = {"state": "exited", "code": code, "last": log.complaint(), "time": time.time()}
    files.write(path, {**record, **ended})
    if code != 0:
        time.sleep(LINGER)
    return code if code >= 0 else 128 - code


def files_of(place: RankPlacement) -> tuple[Path, RankLog]:
    """The path of the rank's record, and its log beside that."""
    folder = Path(os.environ["RUN_DIR"]) / "nodes" / place.node
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{place.rank}.json"
    return path, RankLog(path.with_suffix(".log"))


def outlive_signals() -> None:
    """Live on to record how the rank ended: a launcher's SIGTERM goes to the whole process group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "SLURM_PROCID" in os.environ:
        step.signalled_with_slurmstepd(signal.SIGKILL)


def prepare() -> None:
    """Runs in the child before exec: the rank is killed when its wrapper dies, and SIGTERM has its default action. The
    supervisor's and the keeper's priority, and their protection when memory runs out, are not the ranks'."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(max(0, -os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):  # a container may not allow it
        Path("/proc/self/oom_score_adj").write_text("0")


def probe(argv: list[str]) -> None:
    """`probe-rank -- COMMAND ...`: become a probe of `fab check`, in a rank's environment and on its cores. Its output
    goes to stdout."""
    environment = {**os.environ, **from_node(RankPlacement(os.environ), lambda _line: None)}
    os.execvpe(argv[1], argv[1:], environment)


def from_node(place: RankPlacement, say: Callable[[str], None]) -> dict[str, str]:
    """The part of a rank's environment that depends on its node. Also pins this process to the rank's cores and reports
    threads, cores and interface through `say`."""
    lines = files.text(Path(RUNTIME)).splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    ready = files.read(READY)
    default = "nccl" if ready.get("profile") == "cuda" else ready.get("collectives") or "gloo"
    collectives = os.environ.get("TRAINYARD_COLLECTIVES") or default
    environment |= {
        **secrets(place, os.environ),
        "TRAINYARD_NODE": place.node,
        "TRAINYARD_COLLECTIVES": collectives,
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # otherwise each rank warns of addresses without a host name
    }
    if ready.get("profile") == "ipex":
        environment["ACCELERATE_USE_IPEX"] = "true"
    interface = os.environ.get("TRAINYARD_INTERFACE") or (route.interface(place.others[0]) if place.others else "lo")
    environment |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "FI_TCP_IFACE"), interface)
    there = cores.topology()
    # A pod that sees more cores than its node has by the inventory shares the machine, as on the `local` stack.
    shared = cores.is_shared() or (cleanup.in_pod() and len(there) > place.slots * place.cores)
    every = cores.shares(there, place.slots, cores.gpu_nodes(), shared)
    mine = every[place.local_rank]
    workers = collectives == "ccl"
    compute = mine[:-1] if workers and len(mine) > 1 else mine
    if mine:
        os.sched_setaffinity(0, compute)
    environment["OMP_NUM_THREADS"] = os.environ.get("TRAINYARD_THREADS") or str(threads(place.cores, workers))
    if workers:
        environment |= ccl(every)
    pinned = f"cores {cores.ranges(compute)}" if mine else "any core, as this machine is shared"
    count = environment["OMP_NUM_THREADS"]
    say(f"on {place.node}: {count} thread{'s' * (count != '1')} on {pinned}; {collectives} over {interface}")
    return environment


def secrets(place: RankPlacement, environment: Mapping[str, str]) -> dict[str, str]:
    """The job's secrets, for rank 0 only: its keeper has brought them to its node."""
    return files.read(files.node_secrets_of(environment["TRAINYARD_JOB"])) if place.rank == 0 else {}


def threads(cores_per_slot: int, workers: bool) -> int:
    """Number of compute threads: one per core, less the core of oneCCL's worker if there is one."""
    return max(1, cores_per_slot - workers)


def ccl(every: list[list[int]]) -> dict[str, str]:
    """oneCCL's environment: one worker per rank, on the rank's last core, where no thread computes. `every`: the cores
    of each rank of the node, as oneCCL's list of worker cores covers them all."""
    environment = {"CCL_WORKER_COUNT": "1", "CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "tcp"}
    if all(len(cores) > 1 for cores in every):
        environment["CCL_WORKER_AFFINITY"] = ",".join(str(cores[-1]) for cores in every)
    return environment


class RankLog:
    """Writes a rank's lines with their times to a file; if the disk is full, to stdout, which mpirun forwards."""

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self._path, self._file_bytes = path, file_bytes
        self._open()
        self._last = self._error = ""

    def take(self, output: int) -> None:
        """Write all lines read from a file descriptor until its end. Of a line with carriage returns, such as a
        progress bar, only the last state is kept."""
        rest = b""
        while data := os.read(output, 1 << 16):
            *lines, rest = (rest[-LONGEST:] + data).split(b"\n")
            for line in lines:
                self.line(_text(line))
        if rest:
            self.line(_text(rest))

    def line(self, text: str) -> None:
        """Write one line with the current time."""
        if text.strip():
            self._last = text
        if text.startswith("error: ") and not self._error:
            self._error = text
        data = f"{time.time():.3f} {text}\n".encode()
        try:
            if os.write(self._file, data) != len(data):
                raise OSError
            self._size += len(data)
            if self._size >= self._file_bytes:
                self._rotate()
        except OSError:
            with suppress(OSError):
                print(text, flush=True)

    def _rotate(self) -> None:
        """Begin a new file. No line is lost: the keeper reads the old one to its end, and removes it. A program that
        has filled the next one by then waits when it writes; if there is no keeper any more, this rank ends anyway."""
        while rotated(self._path).exists():
            time.sleep(0.05)
        self._path.replace(rotated(self._path))
        os.close(self._file)
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._file).st_size

    @property
    def last(self) -> str:
        """The rank's last line; at most 400 characters."""
        return self._last[:400]

    def complaint(self) -> str:
        """The rank's first `error: ` line, otherwise its last line; at most 400 characters."""
        return (self._error or self._last).removeprefix("error: ")[:400]


def _text(line: bytes) -> str:
    return line[-LONGEST:].rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
