"""The model against Hugging Face's, its loss against PyTorch's, its cache against none; the optimizer's settings."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from training import optimizer as optim
from training.models import cross_entropy as loss
from training.models import hugging_face
from training.models.gpt2 import GPT, Shape
from training.models.weight_files import WeightsError
from training.sample import generate
from training.sections import TrainSection

SHAPE = Shape(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=67)


def model(shape: Shape = SHAPE, seed: int = 1) -> GPT:
    torch.manual_seed(seed)
    return GPT(shape).eval()


def theirs_of(folder: Path) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    loaded: torch.nn.Module = transformers.GPT2LMHeadModel.from_pretrained(folder)
    return loaded.eval()


def all_logits(ours: GPT, tokens: torch.Tensor) -> torch.Tensor:
    return functional.linear(ours.hidden(tokens), ours.tokens.weight)


@pytest.mark.parametrize("bias", [True, False])
def test_our_weights_open_in_transformers(tmp_path: Path, bias: bool) -> None:
    ours = model(Shape(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=67, bias=bias))
    for parameter in ours.parameters():  # norms and biases that are not ones and zeros
        parameter.data += 0.1 * torch.randn_like(parameter)
    hugging_face.save(GPT, ours.shape, dict(ours.named_parameters()), tmp_path)
    tokens = torch.randint(0, 67, (3, 16))
    torch.testing.assert_close(theirs_of(tmp_path)(tokens).logits, all_logits(ours, tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_their_weights_open_in_ours(tmp_path: Path, prefix: str) -> None:
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    torch.manual_seed(5)
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=16, vocab_size=67)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    if not prefix:  # as the file on the hub is
        path = tmp_path / "model.safetensors"
        save_file({name.removeprefix("transformer."): value for name, value in load_file(path).items()}, path)
    ours = model()
    hugging_face.load(ours, tmp_path)
    tokens = torch.randint(0, 67, (3, 16))
    torch.testing.assert_close(all_logits(ours, tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no model\.safetensors$"):
        hugging_face.load(model(), tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is not read: a pickle can run code"):
        hugging_face.load(model(), tmp_path)
    ours = model()
    hugging_face.save(GPT, SHAPE, dict(ours.named_parameters()), tmp_path)
    other = Shape(n_layer=2, n_head=8, n_embd=32, block_size=16, vocab_size=67)
    with pytest.raises(WeightsError, match="n_head = 4, the job's model has 8"):
        hugging_face.load(model(other), tmp_path)
    (tmp_path / "config.json").unlink()
    wider = Shape(n_layer=2, n_head=4, n_embd=64, block_size=16, vocab_size=67)
    with pytest.raises(WeightsError, match=r"wte\.weight is \(67, 32\), the job's model has \(67, 64\)"):
        hugging_face.load(model(wider), tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(raw[:-9])
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        hugging_face.load(model(), tmp_path)


@pytest.mark.parametrize("slice_bytes", [loss.SLICE_BYTES, 16 * 67 * 4])
def test_the_sliced_loss_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(loss, "SLICE_BYTES", slice_bytes)  # in one piece, and in three
    torch.manual_seed(2)
    hidden = (4 * torch.randn(40, 32)).requires_grad_()
    weight = torch.randn(67, 32).requires_grad_()
    targets = torch.randint(0, 67, (40,))
    plain = functional.cross_entropy(functional.linear(hidden, weight), targets, reduction="sum")
    expected = torch.autograd.grad(0.3 * plain, (hidden, weight))
    ours = loss.summed_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(0.3 * ours, (hidden, weight)), expected)
    with torch.no_grad():
        torch.testing.assert_close(loss.summed_cross_entropy(hidden, weight, targets), plain.detach())


def test_the_sliced_loss_under_autocast_is_near_the_plain_one() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(40, 32, requires_grad=True), torch.randn(67, 32, requires_grad=True)
    targets = torch.randint(0, 67, (40,))
    plain = functional.cross_entropy(functional.linear(hidden, weight), targets, reduction="sum")
    expected = torch.autograd.grad(plain, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        ours = loss.summed_cross_entropy(hidden, weight, targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain, rtol=1e-2, atol=0)
    for found, wanted in zip(torch.autograd.grad(ours, (hidden, weight)), expected, strict=True):
        assert found.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.999


def test_the_cache_gives_the_same_as_reading_all_again() -> None:
    ours = model()
    tokens = torch.randint(0, 67, (2, 16))
    cache = ours.new_cache(2)
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 12), (12, 16)):  # a prompt, a token, several after others
            got = ours.logits(tokens[:, start:end], cache)
            torch.testing.assert_close(got, ours.logits(tokens[:, :end]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (0.9, 0), (0.9, 5)])
def test_sampling_does_not_depend_on_the_cache_past_the_end_of_the_context(temperature: float, top_k: int) -> None:
    def tokens(*, cached: bool, seed: int = 3) -> list[int]:
        return list(generate(model(), [1, 2, 3], 45, temperature=temperature, top_k=top_k, seed=seed, cached=cached))

    assert tokens(cached=True) == tokens(cached=False)
    assert len(tokens(cached=True)) == 45
    assert (tokens(cached=True) == tokens(cached=True, seed=4)) == (temperature == 0)


def test_the_optimizer_is_fused_and_decays_matrices_only() -> None:
    ours = model()
    optimizer = optim.build(ours, TrainSection())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {p.dim() for p in optimizer.param_groups[0]["params"]} == {2}
    assert {p.dim() for p in optimizer.param_groups[1]["params"]} == {1}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(ours.parameters()))
    optimizer.param_groups[1]["fused"] = None
    with pytest.raises(RuntimeError, match="not fused"):
        optim.check_fused(optimizer)


def test_a_restored_optimizer_goes_on_to_the_same_bits() -> None:
    tokens = torch.randint(0, 67, (2, 16))

    def step(ours: GPT, optimizer: torch.optim.Optimizer) -> None:
        ours(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    first, second = model(), model()
    optimizer = optim.build(first, TrainSection())
    step(first, optimizer)
    second.load_state_dict(first.state_dict())
    other = optim.build(second, TrainSection())
    optim.restore(second, other, {name: t.clone() for name, t in optim.tensors(first, optimizer).items()})
    step(first, optimizer)
    step(second, other)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_learning_rate_warms_up_and_ends_at_its_least() -> None:
    train = TrainSection(steps=10, lr=6e-4, min_lr=6e-5, warmup=2)
    rates = [optim.learning_rate(train, step) for step in range(1, 11)]
    assert rates[:2] == pytest.approx([2e-4, 4e-4])
    assert rates[-1] == pytest.approx(6e-5)
    assert all(a > b for a, b in itertools.pairwise(rates[2:]))
    assert optim.learning_rate(TrainSection(steps=1), 1) == pytest.approx(6e-5)


def test_the_first_loss_is_that_of_a_guess() -> None:
    inputs, targets = torch.randint(0, 67, (2, 4, 16))
    assert model()(inputs, targets).item() / 64 == pytest.approx(math.log(67), abs=0.15)
