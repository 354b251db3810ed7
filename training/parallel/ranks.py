"""The ranks of a job: this one's number, the process group, and the collectives that training uses.

The launcher sets the environment: RANK, WORLD_SIZE, LOCAL_RANK (torchrun, Kubernetes), PMI_RANK, PMI_SIZE,
MPI_LOCALRANKID (mpirun) or SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; MASTER_ADDR and MASTER_PORT are rank 0's. A
single rank has no process group.
"""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from training.keys import JobError
from training.parallel.peers import Peers, plain

_TEXT = 512  # bytes of a text that ranks exchange
_WAIT_INTERVAL = 0.5  # seconds between two messages of ranks that wait for rank 0


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError:
                raise JobError(f"{name} = {environment[name]} in the environment; allowed: a whole number") from None
    return default


@dataclass
class Ranks:
    """This process among the `size` ranks of a job, as `join` makes it; `timeout` is in seconds, `backend` is gloo,
    nccl or ccl. Methods that exchange values must be called by all ranks, in the same order."""

    rank: int
    size: int
    local_rank: int
    node: str
    timeout: int
    device: torch.device
    backend: str
    nodes: list[str] = field(default_factory=list)
    """The node of each rank."""
    peers: Peers | None = None
    elastic: bool = False
    """Whether this rank outlives the loss of others, and goes on in another world (training/elastic.py)."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        """Whether this is the lowest rank of its node, which writes the node's files."""
        return self.nodes.index(self.node) == self.rank

    def leader_of(self, rank: int) -> int:
        """The lowest rank on the node of a rank."""
        return self.nodes.index(self.nodes[rank])

    def name(self, rank: int) -> str:
        """`rank 1 (node2)`"""
        return f"rank {rank} ({self.nodes[rank]})"

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over all ranks, on the CPU. Collective."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Elementwise maximum over all ranks, on the CPU. Collective."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return values
        there = values.to(self.device)
        dist.all_reduce(there, op=operation)
        return there.cpu()

    def gather(self, row: Tensor) -> Tensor:
        """The rows of all ranks: (ranks, *row.shape)."""
        rows = torch.zeros(self.size, *row.shape, dtype=row.dtype)
        rows[self.rank] = row
        return self.sum(rows)

    def gather_texts(self, text: str) -> list[str]:
        """The texts of all ranks, each cut to 512 bytes."""
        raw = torch.zeros(_TEXT, dtype=torch.uint8)
        data = text.encode()[:_TEXT]
        raw[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in self.gather(raw)]

    def broadcast_bytes(self, data: bytes, source: int) -> bytes:
        """The bytes of rank `source`, on every rank."""
        length = self.sum(torch.tensor([len(data) if self.rank == source else 0]))
        raw = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == source:
            raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.broadcast(raw, source)
        return bytes(raw.numpy())

    def broadcast(self, values: Tensor, source: int) -> None:
        """Copy the values of rank `source` into this tensor, on every rank."""
        there = values.to(self.device)
        dist.broadcast(there, src=source)
        if there is not values:
            values.copy_(there)

    def failures(self, reason: str) -> str:
        """The non-empty reasons of all ranks, with the ranks' names; empty if there is none. Collective."""
        reasons = self.gather_texts(reason)
        return "; ".join(f"{self.name(rank)}: {text}" for rank, text in enumerate(reasons) if text)

    def explain(self, error: BaseException) -> str:
        """One line for the exception that ended this rank; it names the rank that caused it. Tells the other ranks.
        JobError if another one has refused the job."""
        return self.peers.explain(error) if self.peers is not None else plain(error)

    def leave(self) -> None:
        """Stop watching the other ranks: all have agreed to end, so a closed socket is no failure."""
        if self.peers is not None:
            self.peers.stop()

    def close(self) -> None:
        """Leave the process group together, so that no rank takes another's end for a failure. Collective."""
        if self.size > 1:
            if self.peers is not None:
                self.peers.stop()
            dist.barrier()
            dist.destroy_process_group()


def join(timeout: int, *, elastic: bool = False) -> Ranks:
    """Connect to the other ranks. JobError for an invalid environment, ConnectionError if they do not all come.
    Unless the job is `elastic`, a lost rank ends this one (training/parallel/peers.py)."""
    environment = os.environ
    rank = _number(environment, ("RANK", "PMI_RANK", "SLURM_PROCID"), 0)
    size = _number(environment, ("WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"), 1)
    local_rank = _number(environment, ("LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"), 0)
    if not 0 <= rank < size:
        raise JobError(f"rank {rank} of {size} in the environment; allowed: from 0 to {size - 1}")
    node = environment.get("TRAINYARD_NODE") or socket.gethostname()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Setting the number explicitly keeps MKL from changing it between calls, which would change the last digits.
    torch.set_num_threads(torch.get_num_threads())
    backend = environment.get("TRAINYARD_COLLECTIVES") or ("nccl" if device.type == "cuda" else "gloo")
    ranks = Ranks(rank, size, local_rank, node, timeout, device, backend, nodes=[node], elastic=elastic)
    if size == 1:
        os.environ.pop("LOCAL_RANK", None)  # accelerate would set up a group of one rank
        return ranks
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            raise JobError(f"{name} is not in the environment; the launcher of {size} ranks has to set it")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local_rank))
    _meet(ranks)
    return ranks


def _meet(ranks: Ranks) -> None:
    if ranks.backend not in ("gloo", "nccl", "ccl"):
        raise JobError(f"TRAINYARD_COLLECTIVES = {ranks.backend} in the environment; allowed: gloo, nccl, ccl")
    if ranks.backend == "ccl":
        try:
            import oneccl_bindings_for_pytorch  # noqa: F401
        except ImportError:
            raise JobError("TRAINYARD_COLLECTIVES = ccl: oneccl_bindings_for_pytorch is not installed here") from None
    timeout = datetime.timedelta(seconds=ranks.timeout)
    try:
        store, _, _ = next(dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timeout))
        store.set_timeout(timeout)
        group = dist.PrefixStore("group", store)
        dist.init_process_group(ranks.backend, store=group, rank=ranks.rank, world_size=ranks.size, timeout=timeout)
        ranks.nodes = ranks.gather_texts(ranks.node)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ConnectionError(f"not all {ranks.size} ranks came together in {ranks.timeout} s: {reason}") from error
    if not ranks.elastic:
        ranks.peers = Peers(ranks.rank, [ranks.name(rank) for rank in range(ranks.size)])
        ranks.peers.start()


def run_on_first(ranks: Ranks, work: Callable[[], str], beat: Callable[[], None]) -> str:
    """Run `work` on rank 0 while the others wait. They exchange a message twice a second, so that it may take
    longer than the timeout of a collective. `beat` is called on every rank meanwhile.

    Returns on all ranks what `work` returned, or the text of its exception: why it failed, or empty.
    """
    wrong: list[str] = []

    def first() -> None:
        try:
            wrong.append(work())
        except Exception as error:  # noqa: BLE001 (returned on all ranks; the thread has no caller)
            wrong.append(plain(error))

    thread = threading.Thread(target=first, daemon=True)
    if ranks.is_first:
        thread.start()
    under_way = True
    while under_way:
        thread.join(_WAIT_INTERVAL) if ranks.is_first else time.sleep(_WAIT_INTERVAL)
        beat()
        under_way = bool(ranks.sum(torch.tensor([float(thread.is_alive())])).item())
    return ranks.failures(wrong[0] if wrong else "")


def shares_disk_with_first(ranks: Ranks, folder: Path) -> bool:
    """Whether this folder is the same as rank 0's, as on a shared file system. Collective."""
    if ranks.size == 1:
        return True
    token = ranks.broadcast_bytes(secrets.token_hex(8).encode(), 0).decode()
    mark = folder / f".written-by-{token}"
    if ranks.is_first:
        mark.touch()
    ranks.sum(torch.zeros(1))
    seen = mark.exists()
    ranks.sum(torch.zeros(1))
    if ranks.is_first:
        mark.unlink()
    return seen
