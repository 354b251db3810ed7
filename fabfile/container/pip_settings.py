"""pip's settings on this machine, for a build that has to find packages as this machine does."""

from __future__ import annotations

import ast
import subprocess

_SECTIONS = ("global", "install", ":env:")
_TAKEN = ("index-url", "extra-index-url", "no-index", "proxy", "trusted-host", "default-timeout", "timeout", "cert")
"""Others are about this machine's folders or pip's output. `cert` is a file here, which the build gets apart."""


def read(python: str) -> dict[str, str]:
    """The settings of this Python's pip, from its files and its environment.

    `pip config list` knows them all: a line is global.index-url='https://...', or :env:.index-url=... of the
    environment. A Python without a pip of its own has no settings. With `-P` no folder `pip` in the current one
    is run.
    """
    argv = [python, "-P", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, str] = {}
    for section in _SECTIONS:  # the later wins, as with pip
        for line in done.stdout.splitlines() if done.returncode == 0 else ():
            name, equals, value = line.partition("=")
            where, _, key = name.rpartition(".")
            if equals and where == section and key in _TAKEN:
                found[key] = str(ast.literal_eval(value)).strip()
    return found


def text(settings: dict[str, str]) -> str:
    """The settings as a pip.conf. A value may have several lines."""
    lines = [f"{key} = {value}" for key, value in settings.items()]
    return "\n".join(["[global]", *(line.replace("\n", "\n    ") for line in lines), ""])
