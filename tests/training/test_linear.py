"""Linear layers whose matmuls are oneDNN's: the values and gradients of torch's own, and only where they are faster."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import losses, start
from torch import Tensor, nn
from torch.nn import functional

from training.models import cross_entropy, linear

pytest_plugins = ["training_fixtures"]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any CPU, and for layers of any size."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setattr(linear, "LEAST", 1)
    monkeypatch.setattr(linear, "is_amd", lambda: True)


def use_everywhere(_rank: int) -> None:
    linear.LEAST, linear.is_amd = 1, lambda: True  # type: ignore[assignment]


def gradients(layer: nn.Linear, x: Tensor, *, by_onednn: bool) -> list[Tensor]:
    """The layer's output and the gradients of a sum that weighs it, for x, the weight and the bias."""
    inputs = x.clone().requires_grad_()
    y = linear.linear(inputs, layer.weight, layer.bias) if by_onednn else layer(inputs)
    wanted = [inputs, *layer.parameters()]
    return [y.detach(), *torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum(), wanted)]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (1, 1, 7)], ids=str)
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(7, 11, bias=bias), torch.randn(shape)
    for found, expected in zip(gradients(layer, x, by_onednn=True), gradients(layer, x, by_onednn=False), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("everywhere")
def test_what_is_not_trained_gets_no_gradient() -> None:
    layer = linear.Linear(4, 3)
    layer.weight.requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and layer.weight.grad is None and layer.bias.grad is not None
    with torch.no_grad():
        assert not layer(x).requires_grad


@pytest.mark.usefixtures("everywhere")
def test_the_sliced_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    targets = torch.randint(0, 30, (50,))
    monkeypatch.setattr(cross_entropy, "FASTER_SLICE_BYTES", 16 * 4 * 30)  # four slices, the last one shorter
    loss = cross_entropy.summed_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(loss, (hidden, weight))
    plain = functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, torch.autograd.grad(plain, (hidden, weight)))


def test_only_fp32_on_amds_cpus_and_not_for_small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "is_amd", lambda: True)
    x, weight = torch.empty(2**10, 2**7), torch.empty(2**7, 2**7)
    assert linear.has_faster_matmul(x, weight)
    assert not linear.has_faster_matmul(x[1:], weight), "too small to gain by it"
    assert not linear.has_faster_matmul(x.bfloat16(), weight.bfloat16())
    assert not linear.has_faster_matmul(x.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not linear.has_faster_matmul(x, weight)
    monkeypatch.setattr(linear, "is_amd", lambda: False)
    assert not linear.has_faster_matmul(x, weight)


@pytest.mark.faults
def test_jobs_have_the_same_losses_in_whole_models_and_in_shards(job: Path, tmp_path: Path) -> None:
    keys = ["model.dropout=0"]
    start(job, tmp_path / "torchs", 1, keys).done()
    for name, more in (("ddp", []), ("fsdp", ["train.parallel=fsdp"])):
        start(job, tmp_path / name, 2, [*keys, *more], before=use_everywhere).done()
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "torchs"), rel=2e-5), name
