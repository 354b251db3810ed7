"""Write one checkpoint from all ranks of a sharded model, each its own shard, in the background.

Rank 0 makes the temporary folder, tells the others to begin, and when all shards are on disk writes the manifest and
renames the folder. Ranks that share rank 0's disk (one node, a shared file system) write their files there themselves.
The others send them to rank 0, piece by piece: so on nodes without a shared disk the head's run directory has each
whole checkpoint, as it has that of a model that is not sharded, and whatever reads it there (the mirror, a resumed job
on other nodes, `fab fetch`, `fab sample`) finds every shard. Only the head has them then: without a bucket, its disk is
the only copy.

The ranks talk through a process group of their own, as the training uses the other one at the same time.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.checkpoint import files as checkpoint
from training.checkpoint.files import CheckpointError, Files
from training.parallel.peers import plain
from training.parallel.ranks import Ranks

_PATIENCE = datetime.timedelta(hours=1)  # for a slow disk; a rank that is lost is noticed by the training


class Together:
    """A rank's part in the checkpoints of a sharded model: rank 0 leads, the others follow."""

    def __init__(self, ranks: Ranks, shares_disk: bool) -> None:
        """`shares_disk`: whether this rank's run directory is rank 0's. Collective."""
        self.ranks, self.shares_disk = ranks, shares_disk
        self.shared = ranks.gather(torch.tensor(float(shares_disk))).bool().tolist()
        self._group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE) if ranks.size > 1 else None

    def write(self, folder: Path, files: Files, state: Mapping[str, Any]) -> bool:
        """Write this rank's files of a checkpoint, on every rank in the same order of checkpoints; True on rank 0, when
        the checkpoint is whole. CheckpointError on rank 0 if it cannot be, with the ranks that failed."""
        if self.ranks.is_first:
            self._lead(folder, {**files, "state.json": checkpoint.state_file(state)})
        else:
            self._follow(folder, files)
        return self.ranks.is_first

    def _lead(self, folder: Path, files: Files) -> None:
        listed: dict[str, Any] = {}
        problems: list[str] = []
        try:
            temporary = checkpoint.begin(folder)
        except OSError as error:
            self._tell_all(b"")
            raise CheckpointError(f"{folder}: {checkpoint.reason(error, folder.parent)}") from error
        self._tell_all(b"begin")
        try:
            listed |= checkpoint.write_files(temporary, files)
        except OSError as error:
            problems.append(f"{folder}: {checkpoint.reason(error, folder)}")
        for rank in range(1, self.ranks.size):
            there, problem = self._from(rank, temporary)
            listed |= there
            problems += [f"{self.ranks.name(rank)}: {folder}: {problem}"] if problem else []
        try:
            if not problems:
                checkpoint.commit(folder, listed)
        except OSError as error:
            problems.append(f"{folder}: {checkpoint.reason(error, folder)}")
        if problems:
            checkpoint.abandon(folder)
            raise CheckpointError("; ".join(problems))

    def _from(self, rank: int, temporary: Path) -> tuple[dict[str, Any], str]:
        """Receive what a rank has written, or its files; returns their entries for the manifest, and what went
        wrong."""
        listed: dict[str, Any] = {}
        problem = ""
        while not self.shared[rank] and (name := self._receive(rank).decode()):
            pieces = self._pieces(rank)
            try:
                listed[name] = checkpoint.write_pieces(temporary / name, pieces)
            except OSError as error:
                problem = checkpoint.reason(error, temporary)
                for _ in pieces:  # the sender waits until all of it is taken
                    pass
        answer = json.loads(self._receive(rank))
        return {**listed, **answer["listed"]}, problem or answer["problem"]

    def _follow(self, folder: Path, files: Files) -> None:
        if not self._receive(0):
            return  # rank 0 could not begin, and says why
        answer: dict[str, Any] = {"listed": {}, "problem": ""}
        if self.shares_disk:
            temporary = checkpoint.temporary_of(folder)
            try:
                answer["listed"] = checkpoint.write_files(temporary, files)
            except OSError as error:
                answer["problem"] = checkpoint.reason(error, folder)
            except Exception as error:  # noqa: BLE001 (rank 0 waits for an answer, and reports it)
                answer["problem"] = plain(error)
        else:
            for name, content in files.items():
                self._send(0, name.encode())
                for piece in checkpoint.pieces(content):
                    if piece:
                        self._send(0, piece)
                self._send(0, b"")
            self._send(0, b"")
        self._send(0, json.dumps(answer).encode())

    def _pieces(self, rank: int) -> Iterator[bytes | memoryview]:
        """The pieces of a file that a rank sends."""
        while piece := self._receive(rank):
            yield piece

    def _tell_all(self, word: bytes) -> None:
        for rank in range(1, self.ranks.size):
            self._send(rank, word)

    def _send(self, rank: int, data: bytes | memoryview) -> None:
        dist.send(torch.tensor([len(data)]), rank, group=self._group)
        if data:
            dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank, group=self._group)

    def _receive(self, rank: int) -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._group)
        data = torch.empty(int(length), dtype=torch.uint8)
        if len(data):
            dist.recv(data, rank, group=self._group)
        return data.numpy().tobytes()
