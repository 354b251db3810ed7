"""Llama against transformers', its cache against none, its initial weights on the meta device, its published sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from training import job as jobs
from training.models import elementwise, hugging_face
from training.models.llama import Llama, Rotation, Shape
from training.sample import generate

JOBS = Path(jobs.__file__).parent / "jobs"

GROUPED = Shape(
    n_layer=2, n_head=4, n_kv_head=2, n_embd=32, intermediate_size=48, block_size=16, vocab_size=67, rope_base=500.0
)
SHAPES = {
    "grouped": GROUPED,
    "one": replace(GROUPED, n_kv_head=1, tie=True, norm_epsilon=1e-6),
    "each": replace(GROUPED, n_kv_head=4),
}


def model(shape: Shape = GROUPED, seed: int = 1) -> Llama:
    """With norms that are not ones, and weights so large that positions and the mask are seen in the logits."""
    torch.manual_seed(seed)
    made = Llama(shape).eval()
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def all_logits(ours: Llama, tokens: torch.Tensor) -> torch.Tensor:
    return functional.linear(ours.hidden(tokens), ours.out_weight)


def config_of(shape: Shape) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        num_key_value_heads=shape.n_kv_head,
        hidden_size=shape.n_embd,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.block_size,
        vocab_size=shape.vocab_size,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base},
        tie_word_embeddings=shape.tie,
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_our_weights_open_in_transformers(tmp_path: Path, shape: Shape) -> None:
    transformers = pytest.importorskip("transformers")
    ours = model(shape)
    hugging_face.save(Llama, shape, ours.state_dict(), tmp_path)
    theirs, report = transformers.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.randint(0, 67, (3, 16))
    torch.testing.assert_close(all_logits(ours, tokens), theirs.eval()(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_their_weights_open_in_ours(tmp_path: Path, shape: Shape) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    theirs = transformers.LlamaForCausalLM(config_of(shape)).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    ours = Llama(shape).eval()
    hugging_face.load(ours, tmp_path)
    tokens = torch.randint(0, 67, (3, 16))
    torch.testing.assert_close(all_logits(ours, tokens), theirs(tokens).logits, rtol=0, atol=1e-5)


def test_the_gradients_are_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = model().train()
    hugging_face.save(Llama, GROUPED, ours.state_dict(), tmp_path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path).train()
    windows = torch.randint(0, 67, (3, 17))
    ours(*ours.batch(windows, [0, 0, 0])).backward()
    logits = theirs(windows[:, :-1]).logits.flatten(0, 1)
    functional.cross_entropy(logits, windows[:, 1:].flatten(), reduction="sum").backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[Llama.hugging_face(name)[0]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_cache_gives_the_same_as_reading_all_again(shape: Shape) -> None:
    ours = model(shape)
    tokens = torch.randint(0, 67, (2, 16))
    cache = ours.new_cache(2)
    assert cache.entries.numel() == 2 * 2 * 2 * shape.n_kv_head * 16 * 8, "the heads of keys only"
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 12), (12, 16)):  # a prompt, a token, several after others
            got = ours.logits(tokens[:, start:end], cache)
            torch.testing.assert_close(got, ours.logits(tokens[:, :end]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sampling_does_not_depend_on_the_cache_past_the_end_of_the_context(temperature: float) -> None:
    def tokens(*, cached: bool) -> list[int]:
        return list(generate(model(), [1, 2, 3], 45, temperature=temperature, top_k=0, seed=3, cached=cached))

    assert tokens(cached=True) == tokens(cached=False)
    assert len(tokens(cached=True)) == 45


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_model_from_the_meta_device_gets_the_same_initial_weights(shape: Shape) -> None:
    torch.manual_seed(7)
    expected = Llama(shape).state_dict()
    with torch.device("meta"):
        ours = Llama(shape)
    assert not list(ours.buffers())
    ours.to_empty(device="cpu")
    torch.manual_seed(7)
    for module in ours.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())


PUBLISHED = {"7b": (6_738_415_616, 3e-4), "13b": (13_015_864_320, 3e-4), "70b": (68_976_648_192, 1.5e-4)}


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_published_sizes(size: str) -> None:
    """Parameters as Hugging Face counts them on the hub, and the settings of the Llama 2 paper, of the job files."""
    job = jobs.load(JOBS / f"llama-2-{size}-c4.toml")
    shape = Llama.shape_of(job.model, 0)
    with torch.device("meta"):
        published = Llama(shape)
    parameters, rate = PUBLISHED[size]
    assert sum(p.numel() for p in published.parameters()) == parameters
    multiplied = sum(p.numel() for n, p in published.named_parameters() if p.dim() == 2 and n != "tokens.weight")
    assert published.flops_per_token() == 6 * multiplied + 12 * shape.n_layer * shape.n_embd * 4096
    assert job.train.lr == rate and job.train.min_lr == pytest.approx(rate / 10)
    assert (job.windows, shape.block_size, shape.vocab_size) == (1024, 4096, 32_000)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_first_loss_is_that_of_a_guess(shape: Shape) -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randint(0, 67, (2, 4, 16))
    assert Llama(shape)(inputs, targets).item() / 64 == pytest.approx(math.log(67), abs=0.15)


def test_a_block_by_itself_counts_positions_from_0() -> None:
    ours = model()
    x = torch.randn(1, 16, 32)
    for block in ours.blocks:
        assert block(x).shape == x.shape
    tokens = torch.randint(0, 67, (2, 16))
    x = ours.tokens(tokens)
    for block in ours.blocks:
        x = block(x)
    assert torch.equal(ours.norm(x), ours.hidden(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(3, 5, 32).to(dtype).requires_grad_(), torch.randn(32).to(dtype).requires_grad_()
    expected = functional.rms_norm(x.float(), (32,), weight.float(), 1e-3).to(dtype)
    found = elementwise.rms_norm(x, weight, 1e-3)
    gradient = torch.randn_like(found)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found, expected, **tolerance)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight), gradient),
        torch.autograd.grad(expected, (x, weight), gradient),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_under_autocast_the_norm_is_cast_once_for_the_matmuls() -> None:
    x, weight = torch.randn(3, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = elementwise.rms_norm(x, weight, 1e-5)
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32
    torch.testing.assert_close(found.float(), functional.rms_norm(x, (32,), weight, 1e-5), rtol=1e-2, atol=1e-2)


def test_the_rotation_turns_pairs_and_back() -> None:
    ours = Rotation(GROUPED, 3, 5, torch.device("cpu"))
    x = torch.randn(2, 5, 4, 8, dtype=torch.float64).float().requires_grad_()
    turned = ours(x)
    torch.testing.assert_close(turned.norm(dim=3), x.norm(dim=3))
    angle = 6 / 500.0 ** (2 / 8)  # of position 3 + 3, pair 1: places 1 and 5
    a, b = x[1, 3, 2, 1], x[1, 3, 2, 5]
    torch.testing.assert_close(turned[1, 3, 2, 1], a * math.cos(angle) - b * math.sin(angle), rtol=1e-5, atol=1e-5)
    (back,) = torch.autograd.grad(turned, x, turned)  # the transpose of a rotation is its inverse
    torch.testing.assert_close(back, x)


@pytest.mark.acceptance
def test_a_compiled_model_has_the_same_loss_and_gradients() -> None:
    eager, ours = model().train(), model().train()
    ours.compile(dynamic=False, backend="aot_eager")
    tokens = torch.randint(0, 67, (2, 16))
    for each in (eager, ours):
        each(tokens, tokens).backward()
    for expected, found in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
