"""The outer optimizer and its numbers in few bits, without a bucket and without ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from training.outer import quantise, state
from training.outer.state import OuterState
from training.sections import OuterSection

seeds = st.integers(0, 2**32)
lengths = st.integers(1, 700)


def numbers(seed: int, count: int, scale: float = 1.0) -> torch.Tensor:
    """Numbers of very different magnitudes, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator) * 10 ** (4 * torch.rand(count, generator=generator) - 4)
    return values * scale * (torch.rand(count, generator=generator) > 0.1)


def outer(*, bits: int = 8, lr: float = 0.7, momentum: float = 0.9) -> OuterSection:
    return OuterSection(exchange="file:///x", clusters=2, bits=bits, lr=lr, momentum=momentum)


@given(seeds, lengths, st.sampled_from([4, 8]), st.sampled_from([1e-20, 1.0, 1e20]))
def test_no_number_is_off_by_more_than_half_a_step_of_its_block(seed: int, count: int, bits: int, scale: float) -> None:
    values = numbers(seed, count, scale)
    raw = quantise.packed(values, bits)
    assert len(raw) == quantise.length(count, bits)
    back = quantise.unpacked(raw, count, bits)
    for begin in range(0, count, quantise.BLOCK):
        block = values[begin : begin + quantise.BLOCK]
        step = float(block.abs().max()) / {8: 127, 4: 7}[bits]
        assert float((back[begin : begin + quantise.BLOCK] - block).abs().max()) <= 0.5001 * step


@given(seeds, lengths)
def test_32_bits_lose_nothing(seed: int, count: int) -> None:
    values = numbers(seed, count)
    assert torch.equal(quantise.unpacked(quantise.packed(values, 32), count, 32), values)


@pytest.mark.parametrize("bits, bytes_", [(8, 132), (4, 68), (32, 512)])
def test_the_size_of_a_block(bits: int, bytes_: int) -> None:
    assert len(quantise.packed(torch.ones(128), bits)) == bytes_


@pytest.mark.parametrize("bits", [4, 8, 32])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_sent(bits: int, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        quantise.packed(torch.tensor([1.0, bad]), bits)


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_bytes_of_another_length_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="bytes instead of"):
        quantise.unpacked(quantise.packed(torch.ones(5), bits) + b"x", 5, bits)


@given(seeds, lengths, st.sampled_from([4, 8]), st.integers(1, 12))
def test_error_feedback_sends_the_true_sum(seed: int, count: int, bits: int, rounds: int) -> None:
    """What was sent so far and what is still owed are together the sum of all differences."""
    own = OuterState.first(torch.zeros(count, dtype=torch.float32))
    true, sent = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for number in range(rounds):
        own.sent = own.parameters - numbers(seed + number, count, 0.01)
        true += (own.parameters - own.sent).double()
        most = float((own.parameters - own.sent + own.error).abs().max())
        raw = own.difference(bits)
        sent += quantise.unpacked(raw, count, bits).double()
        own.apply(outer(bits=bits, lr=0.7, momentum=0.9), {1: (1, raw)}, 1)
        assert float(own.error.abs().max()) <= 0.5001 * most / {8: 127, 4: 7}[bits], "the error grows"
    assert torch.allclose(sent + own.error.double(), true, atol=1e-6 * rounds)


def test_what_is_left_out_of_a_round_that_ends_without_this_cluster_is_still_owed() -> None:
    own = OuterState.first(torch.zeros(3))
    own.error = torch.tensor([1.0, 2.0, 3.0])
    own.sent = torch.ones(3)
    own.apply(outer(), {2: (1, quantise.packed(torch.ones(3), 8))}, 1)
    assert own.error.tolist() == [1.0, 2.0, 3.0]


@given(seeds, lengths, st.floats(0.1, 1.0), st.sampled_from([0.0, 0.5, 0.9]), st.integers(1, 3))
def test_at_32_bits_it_is_torchs_nesterov_on_the_mean_difference(
    seed: int, count: int, lr: float, momentum: float, clusters: int
) -> None:
    parameter = torch.nn.Parameter(numbers(seed, count))
    torchs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=momentum > 0)
    own = OuterState.first(parameter.detach().clone())
    for number in range(4):
        differences = [numbers(seed + 10 * number + each, count, 0.1) for each in range(clusters)]
        parameter.grad = torch.stack(differences).mean(dim=0)
        torchs.step()
        parts = {each: (3, quantise.packed(values, 32)) for each, values in enumerate(differences, 1)}
        own.apply(outer(bits=32, lr=lr, momentum=momentum), parts, 9)
    assert torch.allclose(own.parameters, parameter.detach(), rtol=1e-5, atol=1e-5)
    assert own.rounds == 4


def test_a_cluster_counts_as_much_as_its_windows() -> None:
    assert state.mean([(3, torch.tensor([1.0])), (1, torch.tensor([5.0]))]).tolist() == [2.0]
    assert state.mean([(7, torch.tensor([1.0])), (7, torch.tensor([5.0]))]).tolist() == [3.0]
