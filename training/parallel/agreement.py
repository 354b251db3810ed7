"""Check that all ranks hold equal parameters, by comparing a digest of every parameter.

Without this check, ranks whose gradients are not averaged would not fail, only train badly, as happened in a published
multi-node trainer. A difference ends the job; its error names the ranks that differ from the majority and a parameter.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from training.parallel.ranks import Ranks

_BYTES = 16  # of a digest


class DisagreementError(RuntimeError):
    """Ranks whose parameters are not equal: one line that names them."""


def digests(tensors: Iterable[Tensor]) -> Tensor:
    """A row of 16 bytes for each tensor: uint8 (tensors, 16)."""
    with concurrent.futures.ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        return torch.stack(list(pool.map(_digest, tensors)))


def _digest(tensor: Tensor) -> Tensor:
    raw = memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return torch.frombuffer(bytearray(hashlib.sha256(raw).digest()[:_BYTES]), dtype=torch.uint8)


def compare(ranks: Ranks, parameters: Mapping[str, Tensor], step: int) -> str:
    """The digest over all parameters if it is equal on all ranks; otherwise DisagreementError, on every rank."""
    everyone = ranks.gather(digests(parameters.values()))
    digest_of = [hashlib.sha256(bytes(rows.flatten().tolist())).hexdigest()[:16] for rows in everyone]
    if len(set(digest_of)) == 1:
        return digest_of[0]
    common, count = Counter(digest_of).most_common(1)[0]
    if count <= ranks.size // 2 and ranks.size > 1:
        seen = ", ".join(f"{ranks.name(rank)} {digest}" for rank, digest in enumerate(digest_of))
        raise DisagreementError(f"parameters differ between the ranks after step {step}: {seen}")
    odd = [rank for rank, digest in enumerate(digest_of) if digest != common]
    reference = everyone[digest_of.index(common)]
    first = list(parameters)[int((everyone[odd[0]] != reference).any(dim=1).nonzero()[0])]
    named = ", ".join(ranks.name(rank) for rank in odd)
    raise DisagreementError(
        f"parameters of {named} differ from those of the other {count} ranks after step {step}, first in {first}"
    )
