"""The signals that a terminal's keys send, in the process of the tests and in all that it starts."""

from __future__ import annotations

import signal


def restore() -> None:
    """Give SIGINT and SIGQUIT their meaning back where whoever started the tests ignores them, as
    `nohup` and a shell's `&` do. A program would inherit that from the tests, and not end when one
    of them sends it Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
