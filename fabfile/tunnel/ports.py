"""Ports by the names of what listens there."""

from __future__ import annotations

import os
import socket

from invoke.exceptions import Exit

from fabfile.command_line import meant

NAMES = {
    "tensorboard": 6006,
    "jupyter": 8888,
    "mlflow": 5000,
    "ray": 8265,
    "gradio": 7860,
    "streamlit": 8501,
    "grafana": 3000,
    "prometheus": 9090,
}
"""What is known by name, and the port where it listens unless it is told otherwise."""
_HIGHEST = 65535


def number(text: str) -> int:
    """The port of a name or number. Exit 2 for another one."""
    if text.lower() in NAMES:
        return NAMES[text.lower()]
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _HIGHEST:
        return int(text)
    near = "" if text.isdigit() else meant(text.lower(), NAMES)
    raise Exit(f"port {text!r}: must be from 1 to {_HIGHEST}, or one of {', '.join(NAMES)}{near}", code=2)


def listen(port: int, *, exactly: bool) -> socket.socket:
    """Listen on this machine's loopback alone. If the port is taken: Exit 1 if it must be `exactly` this one, else a
    free one."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        if exactly:
            why = os.strerror(error.errno or 0)  # error.strerror has the address, too
            raise Exit(f"port {port} of this machine: {why}: choose another with --local", code=1) from None
        return socket.create_server(("127.0.0.1", 0))
