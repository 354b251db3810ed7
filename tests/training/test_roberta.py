"""RoBERTa against Hugging Face's; its masks, its dropout, its learning rate and its numbering of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch.nn import functional

from training import optimizer as optim
from training.data import order
from training.keys import JobError
from training.models import cross_entropy, hugging_face, roberta
from training.models.roberta import PAD, Roberta, Shape
from training.models.weight_files import WeightsError
from training.sections import ModelSection, TrainSection

SHAPE = Shape(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=75)
TOKENS, SEPARATOR = 67, 66


def model(shape: Shape = SHAPE, dropout: float = 0.0) -> Roberta:
    """With norms, biases and types that are not ones and zeros."""
    torch.manual_seed(1)
    made = Roberta(shape, dropout).eval()
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def windows(ours: Roberta) -> torch.Tensor:
    """Three windows, two of them with empty places."""
    split = np.array([*range(10), SEPARATOR, *range(9), SEPARATOR, 5, 6, SEPARATOR, *range(20, 35), SEPARATOR])
    packed = ours.windows(split, SEPARATOR)
    return torch.from_numpy(packed.read(np.arange(3)))


def inputs(ours: Roberta) -> torch.Tensor:
    return ours.batch(windows(ours), [1, 2**64 - 1, 3])[0]


def test_our_weights_open_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = model()
    hugging_face.save(Roberta, SHAPE, ours.state_dict(), tmp_path)
    theirs, report = transformers.RobertaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = inputs(ours)
    assert (tokens == PAD).any()
    expected = theirs.eval()(tokens, attention_mask=(tokens != PAD).long()).logits
    torch.testing.assert_close(ours.scores(tokens)[tokens != PAD], expected[tokens != PAD], rtol=0, atol=1e-5)


def test_their_weights_open_in_ours(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 128}
    config = transformers.RobertaConfig(
        **sizes, max_position_embeddings=18, vocab_size=75, type_vocab_size=1, layer_norm_eps=1e-5
    )
    theirs = transformers.RobertaForMaskedLM(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    ours = Roberta(SHAPE).eval()
    hugging_face.load(ours, tmp_path)
    tokens = inputs(ours)
    expected = theirs(tokens, attention_mask=(tokens != PAD).long()).logits
    torch.testing.assert_close(ours.scores(tokens)[tokens != PAD], expected[tokens != PAD], rtol=0, atol=1e-5)
    config.layer_norm_eps = 1e-12
    config.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="layer_norm_eps = 1e-12, the job's model has 1e-05"):
        hugging_face.load(ours, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"is \(75.*, the job's model has \(80"):
        hugging_face.load(Roberta(Shape(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=80)), tmp_path)


def test_a_vocabulary_without_room_for_the_special_tokens_is_refused() -> None:
    assert Roberta.shape_of(ModelSection(vocab_size=72), TOKENS).vocab_size == 72
    with pytest.raises(JobError, match=r"^model.vocab_size = 71: 67 tokens .*; allowed: 0 or at least 72$"):
        Roberta.shape_of(ModelSection(vocab_size=71), TOKENS)


def test_special_tokens_have_hugging_faces_numbers() -> None:
    ours = model()
    tokens, _, places, targets = ours.batch(windows(ours), [1, 2, 3])
    original = tokens.flatten().clone()
    original[places] = targets
    rows = original.view(3, 16).tolist()
    assert rows[0] == [0, *(4 + token for token in range(10)), 2, 1, 1, 1, 1]
    assert rows[1] == [0, *(4 + token for token in range(9)), 2, 4 + 5, 4 + 6, 2, 1, 1]
    assert not {0, 1, 2} & set(targets.tolist())
    assert set(ours.hugging_face_tokens({"a": 0}, SHAPE).values()) == set(range(75))


def test_the_loss_is_that_of_the_masked_tokens_only() -> None:
    ours = model()
    tokens, seeds, places, targets = ours.batch(windows(ours), [1, 2, 3])
    plain = functional.cross_entropy(ours.scores(tokens).flatten(0, 1)[places], targets, reduction="sum")
    expected = torch.autograd.grad(plain, [p for p in ours.parameters() if p.requires_grad])
    loss = ours(tokens, seeds, places, targets)
    torch.testing.assert_close(loss, plain)
    found = torch.autograd.grad(loss, [p for p in ours.parameters() if p.requires_grad])
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_masked_places_alone_go_through_the_output_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 places two or three: the output layer is most of a small model's work."""
    ours = model().train()
    rows: list[tuple[Any, ...]] = []

    def loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows.append((len(hidden), len(weight), len(targets)))
        return cross_entropy.summed_cross_entropy(hidden, weight, targets, bias)

    monkeypatch.setattr(roberta, "summed_cross_entropy", loss)
    ours.out_dense.register_forward_hook(lambda _layer, given, _made: rows.append(tuple(given[0].shape)))
    tokens, seeds, places, targets = ours.batch(windows(ours), [1, 2, 3])
    ours(tokens, seeds, places, targets).backward()
    masked = len(places)
    assert 0 < masked < tokens.numel() / 4
    assert rows == [(masked, 32), (masked, 75, masked)]


def test_the_sliced_loss_has_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "SLICE_BYTES", 16 * 67 * 4)  # three slices
    torch.manual_seed(2)
    hidden, weight, bias = torch.randn(40, 32), torch.randn(67, 32), torch.randn(67)
    given = [each.requires_grad_() for each in (hidden, weight, bias)]
    targets = torch.randint(0, 67, (40,))
    plain = functional.cross_entropy(functional.linear(hidden, weight, bias), targets, reduction="sum")
    ours = cross_entropy.summed_cross_entropy(hidden, weight, targets, bias)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(0.3 * ours, given), torch.autograd.grad(0.3 * plain, given))


def test_dropout_depends_on_the_window_and_not_on_its_batch() -> None:
    ours = model(dropout=0.2).train()
    made, seeds = windows(ours), [7, 8, 9]
    together = float(ours(*ours.batch(made, seeds)).detach())
    each = [float(ours(*ours.batch(made[row : row + 1], seeds[row : row + 1])).detach()) for row in (2, 0, 1)]
    assert sum(each) == pytest.approx(together, rel=1e-6)
    batch = list(ours.batch(made, seeds))
    batch[1] = batch[1] + 1
    assert float(ours(*batch).detach()) != pytest.approx(together, rel=1e-4)
    assert float(ours.eval()(*batch).detach()) == float(ours(*ours.batch(made, seeds)).detach())


@pytest.mark.acceptance
def test_a_compiled_model_is_compiled_once_for_any_number_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be compiled again in most steps; and the digits would depend on the steps before."""
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    ours, eager = model(dropout=0.1).train(), model(dropout=0.1).train()
    ours.compile(dynamic=False, backend="eager")
    made, counts = windows(ours), set()
    for step in range(6):
        batch = ours.batch(made, order.window_seeds(1, step, 0, 3))
        counts.add(len(batch[3]))
        loss = ours(*batch)
        loss.backward()
        assert float(loss.detach()) == float(eager(*batch).detach())
    assert len(counts) > 1


def test_the_targets_are_counted_before_they_are_drawn() -> None:
    ours = model()
    seeds = order.window_seeds(3, 5, 0, 3)
    tokens = [10, 11, 14]
    drawn = [len(ours.batch(windows(ours)[row : row + 1], seeds[row : row + 1])[2]) for row in range(3)]
    assert ours.targets(tokens, seeds) == sum(drawn)


def test_the_polynomial_schedule_is_fairseqs() -> None:
    train = TrainSection(steps=10, lr=6e-4, min_lr=0.0, warmup=4, schedule="polynomial")
    rates = [optim.learning_rate(train, step) for step in range(1, 11)]
    assert rates == pytest.approx([1.5e-4, 3e-4, 4.5e-4, 6e-4, 5e-4, 4e-4, 3e-4, 2e-4, 1e-4, 0.0])
    square = TrainSection(steps=10, lr=6e-4, min_lr=1e-4, schedule="polynomial", power=2.0)
    assert optim.learning_rate(square, 5) == pytest.approx(1e-4 + 0.25 * 5e-4)
    longer = TrainSection(steps=4, lr=6e-4, min_lr=0.0, warmup=400, decay_steps=1000, schedule="polynomial")
    assert optim.learning_rate(longer, 4) == pytest.approx(6e-6)


def test_adam_has_the_jobs_epsilon() -> None:
    assert {group["eps"] for group in optim.build(model(), TrainSection(epsilon=1e-6)).param_groups} == {1e-6}
    assert {group["eps"] for group in optim.build(model(), TrainSection()).param_groups} == {1e-8}
