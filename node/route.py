"""Which network interface leads to an address: asked of the kernel, as not every image has ip(8).

The words are rtnetlink(7)'s. Imports only the standard library.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

_GETROUTE, _REQUEST, _ERROR = 26, 1, 2
_DESTINATION, _OUTPUT = 1, 4  # attributes of a route: RTA_DST, RTA_OIF
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=8BI"), struct.Struct("=HH")


def interface(address: str) -> str:
    """Name of the interface on the route to an IP address. OSError if there is no route, or it is no address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    route = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body = route + _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _DESTINATION) + packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _GETROUTE, _REQUEST, 1, 0) + body)
        answer = kernel.recv(1 << 16)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise OSError(number, f"{address}: {os.strerror(number)}")
    for name, value in _attributes(answer[_HEADER.size + _ROUTE.size :]):
        if name == _OUTPUT:
            return socket.if_indextoname(struct.unpack("=I", value)[0])
    raise OSError(errno.ENETUNREACH, f"{address}: the route to it names no interface")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) of each attribute; they begin at multiples of four bytes."""
    while len(data) >= _ATTRIBUTE.size:
        length, name = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield name, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
