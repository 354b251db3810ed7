"""The arithmetic of a model's parameters against the models themselves, on the meta device."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from training import job as jobs
from training.models import architecture
from training.models.counts import counts
from training.parallel import memory
from training.sections import ModelSection

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"n_layer": 3, "n_head": 4, "n_embd": 48, "block_size": 20, "vocab_size": 331}
PUBLISHED = sorted(path.stem for path in (ROOT / "training/jobs").glob("*.toml"))

KNOWN = {
    "gpt2-124m-openwebtext": 124_439_808,
    "roberta-large-wikitext103": 355_412_057,  # with GPT-2's 50,257 tokens
    "llama-2-7b-c4": 6_738_415_616,
    "llama-2-13b-c4": 13_015_864_320,
    "llama-2-70b-c4": 68_976_648_192,
}
"""Parameters of the published models, as Hugging Face counts them."""


def compare(model: ModelSection, vocabulary: int) -> int:
    """That the real model has what the arithmetic says, of its shape and, if that has a vocabulary, of its keys."""
    cls = architecture(model.architecture)
    shape = cls.shape_of(model, vocabulary)
    with torch.device("meta"):
        made = cls(shape)
    size = memory.size_of(made, "muon")
    real = (size.parameters, size.trained, size.by_muon)
    assert counts(model.architecture, shape) == real
    assert not model.vocab_size or counts(model.architecture, model) == real
    return real[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_jobs(name: str) -> None:
    found = compare(jobs.load(ROOT / f"training/jobs/{name}.toml").model, 50_257)
    assert KNOWN.get(name, found) == found


@pytest.mark.parametrize(
    "keys",
    [
        {"architecture": "gpt2"},
        {"architecture": "gpt2", "bias": False},
        {"architecture": "roberta"},
        {"architecture": "llama"},
        {"architecture": "llama", "n_kv_head": 2, "tie": True},
        {"architecture": "llama", "n_kv_head": 1, "intermediate_size": 100},
    ],
)
def test_small_models(keys: dict[str, object]) -> None:
    compare(ModelSection(**{**SMALL, **keys}), 300)  # type: ignore[arg-type]
