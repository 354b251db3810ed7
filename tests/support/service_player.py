"""Plays systemd on a node of a test: a job's service is one process here, which really trains, on this node alone.

    python3 service_player.py PYTHON RUN_DIR

Everything else of a job on the head is real: its number, its records, its log, and how they are read back. PYTHON has
torch. The records are written in the form that the programs on a node write and read (runs/ID/state.json, log).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SUDO = """#!/bin/sh
[ "$1" = -n ] && shift
[ "$1" = systemd-run ] || exec "$@"
for run_dir; do :; done
setsid {python} {program} {python} "$run_dir" </dev/null >"$HOME/service.out" 2>&1 &
echo $! >"$HOME/service.pid"
"""
SYSTEMCTL = """#!/bin/sh
case $1 in
show) kill -0 "$(cat "$HOME/service.pid")" 2>/dev/null && echo active || echo inactive ;;
is-active) exit 3 ;;
esac
"""


def install(programs: Path, python: str = sys.executable) -> None:
    """Put `sudo`, `systemctl` and the training environment's `python` into a folder for a node's PATH."""
    program = Path(__file__).resolve()
    scripts = {
        "sudo": SUDO.format(python=python, program=program),
        "systemctl": SYSTEMCTL,
        "python": f'#!/bin/sh\nexec {python} "$@"\n',
    }
    for name, script in scripts.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)


def main(python: str, run_dir: Path) -> None:
    spec = json.loads((run_dir / "spec.json").read_text())
    state = json.loads((run_dir / "state.json").read_text())

    def put(**changes: Any) -> None:
        state.update(changes)
        (run_dir / "state.json.new").write_text(json.dumps(state))
        (run_dir / "state.json.new").replace(run_dir / "state.json")

    put(state="RUNNING", attempt=state["attempt"] + 1, started=state["started"] or time.time())
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    own = {"RUN_DIR": str(run_dir), "TRAINYARD_NODE": "node1", "PYTHONPATH": spec["code"], "OMP_NUM_THREADS": "1"}
    argv = [python, "-u", "-m", "training.train", str(run_dir / "job.toml"), *(["--resume"] if spec["resume"] else [])]
    process = subprocess.Popen(
        argv,
        env={**os.environ, **environment, **own, "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path.home(),
    )

    def hand_on_a_stop() -> None:
        while not (run_dir / "stop.json").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)

    threading.Thread(target=hand_on_a_stop, daemon=True).start()
    assert process.stdout
    line = ""
    with (run_dir / "log").open("a", buffering=1) as log:
        for line in process.stdout:
            log.write(f"{time.time():.3f} node1 0 {line.rstrip()}\n")
    code = process.wait()
    asked = (run_dir / "stop.json").exists()
    ended = "CANCELLED" if asked else "FAILED" if code else "SUCCEEDED"
    put(state=ended, reason=line.strip() if asked or code else "", exit_code=code, ended=time.time())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
