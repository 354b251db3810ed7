"""One rank's part of every batch: which windows it reads, and how they become the model's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from training import job as jobs
from training.data import order, windows
from training.data.stream import client as stream
from training.data.token_set import TokenSet
from training.data.windows import Array
from training.job import Job
from training.models.base import Model
from training.parallel.ranks import Ranks


class Batches:
    """The windows of both splits, divided among the clusters of a job and the ranks of this one.

    `even`: every rank has as many micro batches as the others, some of them without a window of its own, as all ranks
    have to compute together (FSDP).
    """

    def __init__(self, job: Job, model: Model, data: TokenSet, ranks: Ranks, *, even: bool) -> None:
        """JobError if a split is too short for a window."""
        self.job, self.model, self.data, self.ranks, self.even = job, model, data, ranks, even
        self.windows = windows.of_splits(model, data)
        self._cluster_first, end = job.own_windows
        self.of_cluster = end - self._cluster_first
        """Windows of a step that this cluster reads."""
        self._first, last = jobs.share(self.of_cluster, ranks.rank, ranks.size)
        self.of_rank = last - self._first
        """Windows of a step that this rank reads."""

    def open_stream(self, position: dict[str, Any] | None, beat: Callable[[], None]) -> None:
        """Read the text to train on while training, from this position on."""
        self.windows["train"] = stream.opened(self.job, self.data, position, self.ranks, beat)

    @property
    def tokens(self) -> int:
        """Tokens of a step that this cluster reads."""
        return self.of_cluster * self.job.model.block_size

    def position(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of the place in a streamed text; None if the step is enough."""
        return stream.to_save(self.job, self.windows["train"].position) if self.job.data.stream else None

    def read(self, step: int) -> tuple[Tensor, int]:
        """This rank's windows of a step (counted from 1), int64 (of_rank, width), and the number of targets in all that
        this cluster reads."""
        train = self.windows["train"]
        chosen = train.batch(self.job.windows, self.job.train.seed, step - 1)
        chosen = chosen[self._cluster_first : self._cluster_first + self.of_cluster]
        own = torch.from_numpy(train.read(chosen[self._first : self._first + self.of_rank]))
        return own, self._targets("train", chosen, step, self._cluster_first)

    def micro_batches(self, own: Tensor, step: int) -> Iterator[tuple[tuple[Tensor, ...], bool, bool]]:
        """The model's arguments for each micro batch of `own`, whether its loss counts, and whether it is the last one.
        One that does not count is computed for the other ranks' sake only."""
        pieces = self._pieces(len(own), self.of_cluster)
        for number, (start, end) in enumerate(pieces, 1):
            some = own[start:end] if start < end else own[:1]
            first = self._cluster_first + self._first + start
            yield self._arguments(some, step, first), start < end, number == len(pieces)

    def validation(self) -> tuple[Iterator[tuple[tuple[Tensor, ...], bool]], int]:
        """The model's arguments for each of this rank's micro batches of the validation split, and whether its loss
        counts; and the targets of all ranks'."""
        chosen = self.windows["val"].evaluation(self.job.train.eval_windows)
        return self._validation(chosen), self._targets("val", chosen, 0)

    def _validation(self, chosen: Array) -> Iterator[tuple[tuple[Tensor, ...], bool]]:
        first, last = jobs.share(len(chosen), self.ranks.rank, self.ranks.size)
        for start, end in self._pieces(last - first, len(chosen)):
            some = chosen[first + start : first + end] if start < end else chosen[:1]
            tokens = torch.from_numpy(self.windows["val"].read(some))
            yield self._arguments(tokens, 0, first + start), start < end

    def samples(self) -> tuple[list[tuple[Tensor, ...]], int]:
        """One batch of every shape that training has, of zeros, and the number of micro batches in a step."""
        size = self.job.train.micro_batch
        sizes = dict.fromkeys([min(size, self.of_rank), self.of_rank % size or min(size, self.of_rank)])
        empty = [torch.zeros(rows, self.windows["train"].width, dtype=torch.int64) for rows in sizes]
        return [self._arguments(tokens, 0, 0) for tokens in empty], -(-self.of_rank // size)

    def _pieces(self, own: int, all_ranks: int) -> list[tuple[int, int]]:
        """How a rank's `own` windows are divided, of those that `all_ranks` have."""
        most = -(-all_ranks // self.ranks.size) if self.even else own
        return jobs.micro_batches(own, self.job.train.micro_batch, most, even=self.even)

    def _targets(self, split: str, chosen: Array, step: int, first: int = 0) -> int:
        """The number of targets in these windows, the first of which is number `first` of the step."""
        seeds = order.window_seeds(self.job.train.seed, step, first, len(chosen))
        return self.model.targets(self.windows[split].tokens(chosen), seeds)

    def _arguments(self, tokens: Tensor, step: int, first: int) -> tuple[Tensor, ...]:
        """The model's arguments for some windows of a step; `first` is the index of the first of them in the step."""
        seeds = order.window_seeds(self.job.train.seed, step, first, len(tokens))
        return tuple(part.to(self.ranks.device, non_blocking=True) for part in self.model.batch(tokens, seeds))
