"""Run pip and show what it does: on a terminal one line that changes every second, elsewhere a line every 15 seconds.

`python fabfile/pip_progress.py VENV ARGUMENT ...` is `VENV/bin/pip install ARGUMENT ...`. The Makefile runs this file
before any package is installed: it imports the standard library alone.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_REDRAW, _LINE = 1.0, 15.0  # seconds between two states of the live line, between two lines
_DOWNLOAD = re.compile(r"\s*Downloading (?P<file>\S+) \((?P<size>[\d.]+) (?P<unit>kB|MB|GB)\)")
_MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
_INSTALLING = "Installing collected packages: "
_KEPT_LINES = 30
"""So many of pip's last lines are shown if it fails."""


class PipProgress:
    """What pip does, from the lines that it prints."""

    def __init__(self, site_packages: Path) -> None:
        self.collected, self.megabytes, self.to_install = 0, 0.0, 0
        self.now = "starting"
        self._site_packages = site_packages
        self._there_before = self._count_packages()

    def read(self, line: str) -> None:
        """Take a line of pip's output."""
        words = line.split()
        if line.startswith("Collecting ") and len(words) > 1:
            self.collected += 1
            self.now = f"looking at {words[1]}"
        elif download := _DOWNLOAD.match(line):
            self.megabytes += float(download["size"]) * _MEGABYTES[download["unit"]]
            self.now = f"downloading {download['file']}, {download['size']} {download['unit']}"
        elif line.startswith(_INSTALLING):
            self.to_install = len(line.removeprefix(_INSTALLING).split(","))

    def text(self, seconds: float) -> str:
        """Where pip is after so many seconds."""
        if self.to_install:
            # pip is silent while it unpacks, so count the packages that are there.
            installed = min(self.to_install, max(0, self._count_packages() - self._there_before))
            return f"{seconds:.0f} s: installing, {installed} of {self.to_install} packages are there"
        return f"{seconds:.0f} s: {self.collected} packages, {self.megabytes:.0f} MB downloaded; {self.now}"

    def _count_packages(self) -> int:
        return sum(1 for _ in self._site_packages.glob("*.dist-info"))


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _follow(stream: IO[str], progress: PipProgress) -> list[str]:
    """Show pip's progress until its output ends; returns its last lines."""
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    every = _REDRAW if is_live else _LINE
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(stream, lines), daemon=True).start()
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    began = shown = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=max(0.0, shown + every - time.monotonic()))
        except queue.Empty:
            line = ""
        if line is None:
            break
        if line:
            last.append(line)
            progress.read(line)

        now = time.monotonic()
        if now - shown >= every:
            shown = now
            text = progress.text(now - began)
            if is_live:
                columns = shutil.get_terminal_size().columns
                print(f"\r\033[K{text[: max(1, columns - 1)]}", end="", flush=True)
            else:
                print(f"pip: {text}", flush=True)
    if is_live:
        print("\r\033[K", end="", flush=True)
    return list(last)


def main(argv: Sequence[str]) -> int:
    """Returns pip's exit code."""
    venv = Path(argv[0])
    command = [str(venv / "bin/python"), "-m", "pip", "install", "--no-color", "--progress-bar", "off", *argv[1:]]
    (site_packages,) = venv.glob("lib/python3*/site-packages")
    began = time.monotonic()
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as pip:
        assert pip.stdout is not None
        last = _follow(pip.stdout, PipProgress(site_packages))
    if pip.returncode != 0:
        print("".join(last), end="", file=sys.stderr)
        print(f"pip install failed with exit code {pip.returncode}", file=sys.stderr)
    else:
        print(f"Python packages installed in {time.monotonic() - began:.0f} s")
    return pip.returncode if pip.returncode >= 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print(flush=True)
        sys.exit(130)
