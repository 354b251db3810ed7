"""Numbers in 8 or 4 bits: blocks of 128, each with a scale of its own.

A block's largest magnitude becomes 127, or 7 in 4 bits; the others are rounded to the nearest of the whole multiples of
the scale. With the scales that is 8.25 and 4.25 bits a number. All operations are exactly rounded ones, so the same
bytes are the same numbers on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128  # numbers that share a scale
_LARGEST = {8: 127, 4: 7}


def packed(values: Tensor, bits: int) -> bytes:
    """The bytes of fp32 `values` (numbers), in `bits` = 4, 8 or 32 bits each. ValueError if one is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("a number that is not finite")
    if bits == 32:
        return values.contiguous().numpy().tobytes()
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True) / _LARGEST[bits]
    divisors = torch.where(scales > 0, scales, torch.ones(()))
    whole = (blocks / divisors).round_().clamp_(-_LARGEST[bits], _LARGEST[bits]).to(torch.int8).flatten()
    if bits == 4:
        pairs = (whole + 8).view(torch.uint8).view(-1, 2)
        whole = (pairs[:, 0] | pairs[:, 1] << 4).view(torch.int8)
    return scales.numpy().tobytes() + whole.numpy().tobytes()


def unpacked(raw: bytes, count: int, bits: int) -> Tensor:
    """The `count` numbers in what `packed` returned, fp32. ValueError if it is not as long as that."""
    if len(raw) != length(count, bits):
        raise ValueError(f"{len(raw)} bytes instead of {length(count, bits)}")
    if bits == 32:
        return torch.frombuffer(bytearray(raw), dtype=torch.float32)
    blocks = -(-count // BLOCK)
    scales = torch.frombuffer(bytearray(raw[: 4 * blocks]), dtype=torch.float32)
    whole = torch.frombuffer(bytearray(raw[4 * blocks :]), dtype=torch.uint8)
    if bits == 4:
        whole = (torch.stack((whole & 15, whole >> 4), dim=1).flatten().view(torch.int8) - 8).view(torch.uint8)
    return (whole.view(torch.int8).view(blocks, BLOCK).float() * scales[:, None]).flatten()[:count].contiguous()


def length(count: int, bits: int) -> int:
    """How many bytes `packed` makes of `count` numbers."""
    blocks = -(-count // BLOCK)
    return 4 * count if bits == 32 else blocks * (4 + BLOCK * bits // 8)
