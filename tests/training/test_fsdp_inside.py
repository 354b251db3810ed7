"""What happens inside a step of sharded training: what is computed twice, in which precision, and gathered when."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import losses, start

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FSDP = "train.parallel=fsdp"


def write(name: str, rank: int, found: object) -> None:
    (Path(os.environ["RUN_DIR"]) / f"{name}-{rank}.json").write_text(json.dumps(found))


def read(run: Path, name: str) -> Any:
    return json.loads((run / f"{name}-0.json").read_text())


def around_blocks(call: Callable[[Any], None]) -> None:
    """Call with each block of any model that begins to compute."""
    from training.models import gpt2, roberta

    for module in (gpt2, roberta):
        cls: Any = module.Block

        def forward(self: Any, *inputs: Any, _original: Any = cls.forward, **named: Any) -> Any:
            call(self)
            return _original(self, *inputs, **named)

        cls.forward = forward


def forward_passes(rank: int) -> None:
    """Writes how often blocks have computed to be trained, and how often in a backward pass."""
    found, backward = {"forward": 0, "backward": 0}, [False]
    original = torch.autograd.backward

    def count(_block: Any) -> None:
        if torch.is_grad_enabled():
            found["backward" if backward[0] else "forward"] += 1

    def counted(*arguments: Any, **named: Any) -> None:
        backward[0] = True
        original(*arguments, **named)
        backward[0] = False
        write("forward", rank, found)

    torch.autograd.backward = counted
    around_blocks(count)


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_recomputing_does_each_block_again_and_changes_no_loss_not_even_with_dropout(
    job: Path, tmp_path: Path, name: str
) -> None:
    keys = [f"model.architecture={name}", "train.steps=4", "train.lr=0.001"]
    for parallel in ("ddp", "fsdp"):
        runs = {}
        for recompute in ("false", "true"):
            run = tmp_path / f"{parallel}-{recompute}"
            own = [f"train.parallel={parallel}", f"train.recompute={recompute}"]
            start(job, run, 2, [*keys, *own], before=forward_passes).done()
            runs[recompute] = losses(run)
            found = read(run, "forward")
            assert found["forward"] >= 4 * 2, "four steps of two blocks"
            assert found["backward"] == (found["forward"] if recompute == "true" else 0), (parallel, recompute, found)
        assert runs["true"] == runs["false"], parallel


def precisions(rank: int) -> None:
    """Writes in which precision the blocks' parameters are when they compute, and gradients when they are added up."""
    import torch.distributed as dist

    found: dict[str, list[str]] = {"block": [], "sum": []}
    original = dist.reduce_scatter_single

    def note(where: str, dtype: torch.dtype) -> None:
        if str(dtype) not in found[where]:
            found[where].append(str(dtype))
            write("precisions", rank, found)

    def summed(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments, *named.values()):
            if isinstance(value, torch.Tensor):
                note("sum", value.dtype)
        return original(*arguments, **named)

    dist.reduce_scatter_single = summed

    def computed(block: Any) -> None:
        for parameter in block.parameters():
            note("block", parameter.dtype)

    around_blocks(computed)


def test_bf16_computes_in_bf16_and_adds_gradients_up_in_fp32(job: Path, tmp_path: Path) -> None:
    keys = ["model.dropout=0", "train.precision=bf16"]
    start(job, tmp_path / "ddp", 2, keys).done()
    start(job, tmp_path / "fsdp", 3, [*keys, FSDP], before=precisions).done()
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "ddp"), rel=0.02)
    assert read(tmp_path / "fsdp", "precisions") == {"block": ["torch.bfloat16"], "sum": ["torch.float32"]}


def gathers(rank: int) -> None:
    """Writes what follows what in the first forward pass: gathers that begin, and blocks that compute; and before which
    blocks' backward passes others are gathered."""
    import torch.distributed as dist

    from training.parallel.fsdp import FSDP as Sharded

    events: list[str] = []
    gather, wrap, backward = dist.all_gather_single, Sharded.wrap, torch.autograd.backward

    def gathered(*arguments: Any, **named: Any) -> Any:
        events.append("gather")
        return gather(*arguments, **named)

    def wrapped(self: Any, *arguments: Any) -> Any:
        model = wrap(self, *arguments)
        blocks: list[Any] = list(self.state.model.blocks)
        states = [block._get_fsdp_state() for block in blocks]
        found = [[states.index(one) for one in state._states_to_backward_prefetch] for state in states]
        write("backward", rank, found)
        events.clear()
        return model

    def ended(*arguments: Any, **named: Any) -> None:
        torch.autograd.backward = backward
        write("gathers", rank, events)
        backward(*arguments, **named)

    dist.all_gather_single, torch.autograd.backward = gathered, ended
    Sharded.wrap = wrapped  # type: ignore[method-assign,assignment]
    around_blocks(lambda _block: events.append("block"))


def test_the_next_block_is_gathered_while_one_computes(job: Path, tmp_path: Path) -> None:
    """What is outside the blocks and the first of three are there, and the second is on its way, when the first
    computes; for the last there is nothing more."""
    keys = [FSDP, "train.steps=1", "train.warmup=0", "train.eval_every=0", "model.n_layer=3"]
    start(job, tmp_path / "run", 2, keys, before=gathers).done()
    events = read(tmp_path / "run", "gathers")
    assert events[-7:] == ["gather", "gather", "gather", "block", "gather", "block", "block"], events
    assert read(tmp_path / "run", "backward") == [[], [0], [1]]
