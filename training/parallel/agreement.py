"""Proof that the ranks are in step: a digest of every parameter, on every rank, compared.

Ranks that train apart do not fail, they only train badly: a published multi-node trainer's do so. A difference ends
the job, and names the ranks that differ from the most, with the first parameter that does.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections import Counter

import torch
from torch import Tensor, nn

from training.parallel.ranks import Ranks

_BYTES = 16  # of a digest


class DisagreementError(RuntimeError):
    """Ranks whose parameters are not equal: one line that names them."""


def digests(model: nn.Module) -> Tensor:
    """A row for each parameter, in the model's order."""
    with concurrent.futures.ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        rows = list(pool.map(_digest, [p.detach() for p in model.parameters()]))
    return torch.stack(rows)


def _digest(parameter: Tensor) -> Tensor:
    raw = memoryview(parameter.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return torch.frombuffer(bytearray(hashlib.sha256(raw).digest()[:_BYTES]), dtype=torch.uint8)


def compare(ranks: Ranks, model: nn.Module, step: int) -> str:
    """The digest that all ranks have in common; a DisagreementError where they do not."""
    everyone = ranks.gather(digests(model))
    whole = [hashlib.sha256(bytes(rows.flatten().tolist())).hexdigest()[:16] for rows in everyone]
    if len(set(whole)) == 1:
        return whole[0]
    common, count = Counter(whole).most_common(1)[0]
    if count <= ranks.size // 2 and ranks.size > 1:
        seen = ", ".join(f"{ranks.name(rank)} {digest}" for rank, digest in enumerate(whole))
        raise DisagreementError(f"parameters differ between the ranks after step {step}: {seen}")
    odd = [rank for rank, digest in enumerate(whole) if digest != common]
    reference = everyone[whole.index(common)]
    names = [name for name, _ in model.named_parameters()]
    first = names[int((everyone[odd[0]] != reference).any(dim=1).nonzero()[0])]
    named = ", ".join(ranks.name(rank) for rank in odd)
    raise DisagreementError(
        f"parameters of {named} differ from those of the other {count} ranks after step {step}, first in {first}"
    )
