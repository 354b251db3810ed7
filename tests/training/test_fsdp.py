"""Sharded training on real ranks: as good as with whole models, in step, in a share of the memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import lines, losses, start

from training.models import architecture
from training.models.sharded_init import ShardedInit
from training.parallel.shard import Shard

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FSDP = ["train.parallel=fsdp"]
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "roberta": {},
    "llama": {"n_kv_head": 1, "intermediate_size": 48},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shards", [1, 3, 4])
def test_shards_begin_with_the_values_of_the_whole_model(name: str, shards: int) -> None:
    """To the bit, for any number of ranks, and torch's generator is left in the same state."""
    cls = architecture(name)
    shape = cls.shape_class(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=67, **SHAPES[name])
    torch.manual_seed(5)
    whole = cls(shape)
    after = torch.get_rng_state()
    parts = []
    for index in range(shards):
        torch.manual_seed(5)
        with ShardedInit(Shard(index, shards)) as init:
            model = cls(shape)
            parts.append(init.rows(model))
        assert torch.equal(torch.get_rng_state(), after)
        assert all(p.is_meta for p in model.parameters())
    for key, parameter in whole.named_parameters():
        assert torch.equal(torch.cat([part[key] for part in parts]), parameter.detach()), key


def test_what_cannot_be_done_to_rows_is_refused_not_guessed() -> None:
    with ShardedInit(Shard(1, 2)):
        layer = torch.nn.Linear(4, 4)
        with pytest.raises(NotImplementedError, match="only some of"), torch.no_grad():
            layer.weight.copy_(layer.weight.exp())
        with pytest.raises(NotImplementedError, match="only some of"):
            torch.nn.init.orthogonal_(layer.weight)
    assert torch.nn.init.orthogonal_(torch.ones(2, 2)).det().abs().isclose(torch.tensor(1.0)), "as before, outside"
    assert not torch.nn.Linear(2, 2).weight.is_meta


def test_losses_are_those_of_whole_models_on_any_number_of_ranks(job: Path, tmp_path: Path) -> None:
    """In fp32, to 2e-5 of the loss, which is what whole models on other numbers of ranks differ by. The norm is that of
    all shards: clipping by it changes every step."""
    keys = ["model.dropout=0", "train.clip=0.3"]
    start(job, tmp_path / "ddp", 2, keys).done()
    whole = losses(tmp_path / "ddp")
    for size in (1, 2, 3):
        start(job, tmp_path / f"n{size}", size, [*keys, *FSDP]).done()
        assert losses(tmp_path / f"n{size}") == pytest.approx(whole, rel=2e-5), size
        norms = [[line["grad_norm"] for line in lines(tmp_path / run)] for run in ("ddp", f"n{size}")]
        assert norms[1] == pytest.approx(norms[0], rel=1e-3) and min(norms[0]) > 0.3
        validations = [line["val_loss"] for line in lines(tmp_path / f"n{size}") if "val_loss" in line]
        assert len(validations) == 2


@pytest.mark.parametrize("name", ["llama", "roberta"])
def test_any_model_is_sharded(job: Path, tmp_path: Path, name: str) -> None:
    keys = [f"model.architecture={name}", "model.dropout=0", "train.steps=4", "train.lr=0.001"]
    start(job, tmp_path / "ddp", 2, keys).done()
    start(job, tmp_path / "fsdp", 3, [*keys, *FSDP, "train.recompute=true"]).done()
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "ddp"), rel=2e-5)


def measured(rank: int) -> None:
    """Writes after each step what this rank keeps: bytes of parameters, gradients and moments, from their storage."""
    from training.parallel.shard import local
    from training.stepper import Stepper

    original: Callable[[Stepper], float] = Stepper.update

    def update(self: Stepper) -> float:
        gradients = [p.grad for p in self.model.parameters()]
        norm = original(self)
        parameters = list(self.model.parameters())
        state = self.optimizer.optimizer.state
        moments = [value for p in parameters for value in state[p].values() if value.dim()]
        found = []
        for tensors in (parameters, gradients, moments):  # several may be views of one piece of memory
            memory = {s.data_ptr(): s.nbytes() for s in (local(tensor).untyped_storage() for tensor in tensors)}
            found.append(sum(memory.values()))
        (Path(os.environ["RUN_DIR"]) / f"bytes-{rank}.json").write_text(json.dumps(found))
        return norm

    Stepper.update = update  # type: ignore[method-assign]


def test_memory_falls_as_one_over_the_number_of_ranks(job: Path, tmp_path: Path) -> None:
    """Measured from the tensors' storage, for each rank; what a parameter's rows are rounded by is at most 2 %."""
    keys = ["model.n_embd=96", "train.steps=3"]
    start(job, tmp_path / "ddp", 2, keys, before=measured).done()
    whole = json.loads((tmp_path / "ddp/bytes-0.json").read_text())
    assert whole[2] == 2 * whole[0]
    for size in (2, 3):
        start(job, tmp_path / f"n{size}", size, [*keys, *FSDP], before=measured).done()
        for rank in range(size):
            found = json.loads((tmp_path / f"n{size}/bytes-{rank}.json").read_text())
            for kind, (own, all_of_it) in enumerate(zip(found, whole, strict=True)):
                assert 0.98 * all_of_it / size <= own <= 1.02 * all_of_it / size, (size, rank, kind)


def counted(rank: int) -> None:
    """Writes how often gradients were sent in the whole run. SMALL: there is no room for whole gradients."""
    import torch.distributed as dist

    from training.parallel import sums

    if "SMALL" in os.environ:
        sums.ROOM = 0.0
    original, calls = dist.reduce_scatter_single, [0]

    def count(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        (Path(os.environ["RUN_DIR"]) / f"sent-{rank}").write_text(str(calls[0]))
        return original(*arguments, **named)

    dist.reduce_scatter_single = count


def test_gradients_are_sent_once_a_step_where_there_is_room_for_whole_ones(job: Path, tmp_path: Path) -> None:
    """Two blocks and the rest: 3 messages a step, or 3 for each of the four micro batches of a step."""
    keys = [*FSDP, "train.steps=3", "train.micro_batch=1", "model.dropout=0"]
    start(job, tmp_path / "room", 2, keys, before=counted).done()
    start(job, tmp_path / "none", 2, keys, before=counted, environment={"SMALL": "1"}).done()
    assert int((tmp_path / "room/sent-0").read_text()) == 3 * 3
    assert int((tmp_path / "none/sent-0").read_text()) == 3 * 3 * 4
    assert losses(tmp_path / "room") == pytest.approx(losses(tmp_path / "none"), rel=2e-5)


def drift_of_a_replica(rank: int) -> None:
    """Plants what must not be: from the second step on, rank 3 has rows that its replica, rank 1, has not."""
    from training.parallel.shard import local
    from training.stepper import Stepper

    original = Stepper.update

    def update(self: Stepper) -> float:
        norm = original(self)
        if rank == 3:
            with torch.no_grad():
                local(self.model.blocks[1].norm_2.weight)[3] += 1e-6
        return norm

    Stepper.update = update  # type: ignore[method-assign]


def test_replicas_of_shards_give_the_same_losses_and_are_compared(job: Path, tmp_path: Path) -> None:
    keys = ["model.dropout=0", "train.replicas=2"]
    start(job, tmp_path / "ddp", 2, keys[:1]).done()
    group = start(job, tmp_path / "run", 4, [*keys, *FSDP])
    group.done()
    assert "in 2 replicas of 2 shards" in group.output(0)
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "ddp"), rel=2e-5)
    assert len(list((tmp_path / "run/checkpoints/step-000008").glob("model-*"))) == 2
    group = start(job, tmp_path / "drift", 4, [*keys, *FSDP], before=drift_of_a_replica)
    assert group.wait() == [1] * 4
    assert "differ" in group.output(0) and "after step 2" in group.output(0) and "norm_2.weight" in group.output(0)
    assert not list((tmp_path / "drift/checkpoints").glob("step*"))


def wrong_gathering(rank: int) -> None:
    """Plants what must not be: rank 1 computes with other values than the rows that the ranks hold."""
    from torch.distributed.fsdp import FSDPModule

    original = FSDPModule.unshard

    def unshard(self: Any, async_op: bool = False) -> Any:
        handle = original(self, async_op)
        if rank == 1:
            with torch.no_grad():
                next(self.parameters()).view(-1)[: int(os.environ["VALUES"])] += 1e-3
        return handle

    FSDPModule.unshard = unshard


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("1", "gathered parameters of rank 1 (node1) differ from those of the other 2 ranks after step 2, first in"),
        ("99999", "the rows of rank 1 (node1) are not those that the ranks compute with after step 2, first in"),
    ],
)
def test_a_rank_that_gathers_something_else_is_named(job: Path, tmp_path: Path, values: str, expected: str) -> None:
    group = start(job, tmp_path / "run", 3, FSDP, before=wrong_gathering, environment={"VALUES": values})
    assert group.wait() == [1, 1, 1]
    assert f"error: {expected} tokens.weight" in group.output(0), group.output(0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.optimizer=muon", "train.optimizer = muon with fsdp: Muon needs whole matrices"),
        ("train.compile=true", "train.compile = true with fsdp"),
        ("train.replicas=3", "train.replicas = 3; allowed for 2 ranks: a divisor of 2"),
    ],
)
def test_what_does_not_go_with_fsdp_is_one_line_and_2(job: Path, tmp_path: Path, key: str, expected: str) -> None:
    group = start(job, tmp_path / "run", 2, [*FSDP, key])
    assert group.wait() == [2, 2]
    assert expected in group.output() and "Traceback" not in group.output()
