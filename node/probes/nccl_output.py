"""Reads what nccl-tests and NCCL print: bus bandwidth, wrong results, and which network NCCL chose. Pure functions.

    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1073741824     268435456     float     sum      -1   180000    5.97   11.18      0   179900    5.97   11.19      0
    node1:17754:17754 [0] NCCL INFO Using network Libfabric

Bus bandwidth: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NUMBER = r"[0-9.]+(?:[eE][-+]?[0-9]+)?"
_ROW = re.compile(
    rf"^\s*(?P<size>\d+)\s+\d+\s+[a-z0-9_]+\s+[a-z]+\s+(?:-?\d+\s+)?"  # older versions have no column for the root
    rf"{_NUMBER}\s+(?P<algbw>{_NUMBER})\s+(?P<out>{_NUMBER})\s+(?P<wrong>{_NUMBER}|N/A)\s+"
    rf"{_NUMBER}\s+{_NUMBER}\s+(?P<into>{_NUMBER})\s+(?P<wrong_in>{_NUMBER}|N/A)"
)
_NETWORK = re.compile(r"NCCL INFO Using network (\S.*\S|\S)\s*$")
_OLD_SOCKET = re.compile(r"NCCL INFO NET/Socket : Using ")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
_CHANNEL = re.compile(r"NCCL INFO Channel .* via (?P<way>P2P|SHM|NET|direct)")
_WARNING = re.compile(r"NCCL WARN (.+)$")


def parse(lines: Iterable[str], ranks: int = 0) -> dict[str, Any]:
    """What an all-reduce printed: `bus` and `algorithm` bandwidth in bytes/s of the largest size (None: no row of
    results), `wrong` elements, the `network` that NCCL chose, the libfabric `provider` under it, the `ways` of its
    channels (P2P: NVLink or PCIe between GPUs; SHM: through the machine's memory), and its first `warning`.

    Two `ranks` or more reckon `#wrong`; nccl-tests before 2.12 print an error instead, which is no count: it is passed
    over.
    """
    found: dict[str, Any] = {"bus": None, "algorithm": None, "size": 0, "wrong": 0, "network": "", "provider": ""}
    ways: set[str] = set()
    warning = ""
    for line in lines:
        if row := _ROW.match(line):
            if int(row["size"]) >= found["size"]:
                best = max(float(row["out"]), float(row["into"]))
                found |= {"size": int(row["size"]), "bus": best * 1e9, "algorithm": float(row["algbw"]) * 1e9}
            found["wrong"] += sum(int(row[key]) for key in ("wrong", "wrong_in") if row[key].isdigit())
        elif network := _NETWORK.search(line):
            found["network"] = network[1]
        elif provider := _PROVIDER.search(line):
            found["provider"] = provider[1]
        elif _OLD_SOCKET.search(line) and not found["network"] and not found["provider"]:
            found["network"] = "Socket"
        elif channel := _CHANNEL.search(line):
            ways.add(channel["way"])
        elif not warning and (logged := _WARNING.search(line)):
            warning = logged[1].strip()
    return {**found, "ways": sorted(ways), "warning": warning}
