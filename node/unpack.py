"""Puts a deployment in its place on a node, by its content: what is there already is not sent again.

Talks over its stdin and stdout, in lines of JSON:

    in   {"hash": ..., "sizes": {"wheel": n, "launch": n}, "job": text or "", "ranks": n, "wandb": bool}
    out  {"have": bool}
    in   the bytes of both, where they were not there
    out  {"folder": where they are, "busy": the job that the node has or "", "problem": why it cannot have this one}
"""

from __future__ import annotations

import compileall
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

CODE = Path.home() / ".cache" / "trainyard" / "code"
OLD = 14 * 86400
PYTHON = "/opt/trainyard/venv/bin/python"


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    folder = CODE / asked["hash"]
    have = folder.is_dir()
    print(json.dumps({"have": have}), flush=True)
    if have:
        os.utime(folder)  # in use: it stays
    else:
        unpack(folder, {name: sys.stdin.buffer.read(size) for name, size in asked["sizes"].items()})
        forget_old(folder)
    problem = check(folder, asked["job"], asked["ranks"], asked["wandb"]) if asked["job"] else ""
    print(json.dumps({"folder": str(folder), "busy": busy(), "problem": problem}), flush=True)


def unpack(folder: Path, parts: dict[str, bytes]) -> None:
    """Under another name first, so that the folder is whole when it is there."""
    CODE.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=CODE, prefix=".new-"))
    try:
        zipfile.ZipFile(io.BytesIO(parts["wheel"])).extractall(temporary)
        zipfile.ZipFile(io.BytesIO(parts["launch"])).extractall(temporary / "launch")
        compileall.compile_dir(temporary, quiet=2)  # not once per rank, at the start of a job
        temporary.chmod(0o755)
        if not folder.is_dir():  # somebody else may have been quicker
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def forget_old(current: Path) -> None:
    for other in CODE.iterdir():
        if other != current and time.time() - other.stat().st_mtime > OLD:
            shutil.rmtree(other, ignore_errors=True)


def check(folder: Path, job: str, ranks: int, wandb: bool) -> str:
    """The job against the data that this node has, by the trainer's own eyes."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(job)
        file.flush()
        argv = [PYTHON, "-m", "training.job", "check", file.name, "--ranks", str(ranks)]
        argv += ["--wandb"] if wandb else []
        # Relative paths in a job start at home, on every node.
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(argv, cwd=Path.home(), env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip() or "the job cannot be checked").splitlines()[-1]


def busy() -> str:
    unit = "trainyard-job-*-keeper.service"
    listed = subprocess.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", unit],
        capture_output=True,
        text=True,
        check=True,
    )
    units = listed.stdout.split()
    return units[0].removeprefix("trainyard-job-").removesuffix("-keeper.service") if units else ""


if __name__ == "__main__":
    main()
