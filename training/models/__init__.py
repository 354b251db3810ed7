"""What a model is to the rest of training/, and the table of those that a job can name.

To add one: a file here with a subclass of `Model`, and its row in ARCHITECTURES. The loop, the precision probe, the
proof that ranks are in step, checkpoints, weights and sampling use what is declared below and nothing else of a model.
Imports no torch, so that a job is checked where torch is not installed; training/models/base.py has the class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.models.base import Model

ARCHITECTURES = {"gpt2": "training.models.gpt2:GPT"}
"""Value of the key model.architecture -> module:class."""


def architecture(name: str) -> type[Model]:
    """The class of a model by its name in ARCHITECTURES; KeyError for any other."""
    module, _, cls = ARCHITECTURES[name].partition(":")
    found: type[Model] = getattr(import_module(module), cls)
    return found
