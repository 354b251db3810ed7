"""The table of the models that a job can name.

To add one, write a file here with a subclass of `Model` (training/models/base.py) and add its row to ARCHITECTURES. The
rest of training/ uses only what `Model` declares. This file does not import torch, so that a job can be checked where
torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.models.base import Model

ARCHITECTURES = {
    "gpt2": "training.models.gpt2:GPT",
    "llama": "training.models.llama:Llama",
    "roberta": "training.models.roberta:Roberta",
}
"""Value of the key model.architecture -> module:class."""

WHOLE_DOCUMENTS = ("roberta",)
"""The models whose windows are of whole documents (training.data.packing): they need all of a text beforehand."""


def architecture(name: str) -> type[Model]:
    """The class of a model by its name in ARCHITECTURES; KeyError for any other."""
    module, _, cls = ARCHITECTURES[name].partition(":")
    found: type[Model] = getattr(import_module(module), cls)
    return found
