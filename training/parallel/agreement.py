"""Check that the ranks that should hold equal parameters do, by comparing a digest of every parameter.

Without this check, ranks whose gradients are not averaged would not fail, only train badly, as happened in a published
multi-node trainer. A difference ends the job; its error names the ranks that differ from the majority and a parameter.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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


def compare(
    ranks: Ranks,
    parameters: Mapping[str, Tensor],
    step: int,
    groups: Sequence[int] | None = None,
    what: str = "parameters",
) -> str:
    """The digest over all parameters if it is equal on all ranks; otherwise DisagreementError, on every rank.

    `groups` has the number of each rank's group, if only the ranks of a group hold the same, as replicas of a shard do;
    the digest is then over all groups. `what` names the parameters in the error.
    """
    return compare_digests(ranks, list(parameters), digests(parameters.values()), step, groups, what)


def compare_digests(
    ranks: Ranks,
    names: Sequence[str],
    own: Tensor,
    step: int,
    groups: Sequence[int] | None = None,
    what: str = "parameters",
) -> str:
    """`compare` for tensors whose digests, uint8 (names, 16), are known."""
    everyone = ranks.gather(own)
    digest_of = [hashlib.sha256(bytes(rows.flatten().tolist())).hexdigest()[:16] for rows in everyone]
    of_groups: dict[int, list[int]] = {}
    for rank, group in enumerate(groups or [0] * ranks.size):
        of_groups.setdefault(group, []).append(rank)
    for members in of_groups.values():
        _check_group(ranks, members, digest_of, everyone, names, f"{what} of", step)
    found = [digest_of[members[0]] for members in of_groups.values()]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()[:16]


def _check_group(
    ranks: Ranks, members: list[int], digest_of: list[str], rows: Tensor, names: Sequence[str], what: str, step: int
) -> None:
    """DisagreementError unless the digests of these ranks are equal."""
    common, count = Counter(digest_of[rank] for rank in members).most_common(1)[0]
    if count == len(members):
        return
    if count <= len(members) // 2:
        seen = ", ".join(f"{ranks.name(rank)} {digest_of[rank]}" for rank in members)
        other = next(rank for rank in members if digest_of[rank] != digest_of[members[0]])
        first = names[int((rows[other] != rows[members[0]]).any(dim=1).nonzero()[0])]
        found = f"differ between the ranks after step {step}, first in {first}: {seen}"
        raise DisagreementError(f"{what.removesuffix(' of')} {found}")
    odd = [rank for rank in members if digest_of[rank] != common]
    reference = rows[next(rank for rank in members if digest_of[rank] == common)]
    first = names[int((rows[odd[0]] != reference).any(dim=1).nonzero()[0])]
    named = ", ".join(ranks.name(rank) for rank in odd)
    raise DisagreementError(
        f"{what} {named} differ from those of the other {count} ranks after step {step}, first in {first}"
    )


def check_own(ranks: Ranks, names: Sequence[str], equal: Sequence[bool], step: int) -> None:
    """DisagreementError, on every rank, if the rows that a rank holds of a parameter are not those that all compute
    with; `equal` has this rank's finding for each parameter."""
    wrong = ~ranks.gather(torch.tensor(equal, dtype=torch.uint8)).bool()
    for rank in range(ranks.size):
        if wrong[rank].any():
            which = f"after step {step}, first in {names[int(wrong[rank].nonzero()[0])]}"
            raise DisagreementError(f"the rows of {ranks.name(rank)} are not those that the ranks compute with {which}")
