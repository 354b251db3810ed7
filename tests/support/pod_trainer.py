"""The smallest trainer that a job's programs can tell from the real one: steps, heartbeats, a checkpoint, SIGTERM.

The ranks take each step together, over files, so that one that dies holds the others up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import tomllib
from pathlib import Path

SECONDS = 0.1
run, rank, size = Path(os.environ["RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
stop: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
checkpoint = run / "checkpoint.json"
meeting = run / "meeting" / os.environ["TRAINYARD_ATTEMPT"]


def together(step: int) -> bool:
    """Whether a rank was asked to stop before this step, known to all when all are there."""
    meeting.mkdir(parents=True, exist_ok=True)
    word = meeting / f"{step}-{rank}"
    word.with_suffix(".new").write_text("stop" if stop else "go")
    word.with_suffix(".new").rename(word)
    others = [meeting / f"{step}-{other}" for other in range(size)]
    while not all(other.exists() for other in others):
        time.sleep(0.01)
    return any(other.read_text() == "stop" for other in others)


def main() -> None:
    steps = tomllib.loads(Path(sys.argv[1]).read_text())["steps"]
    begin = json.loads(checkpoint.read_text())["step"] if "--resume" in sys.argv and checkpoint.exists() else 0
    where = f"{os.environ['MASTER_ADDR']} {os.environ['TRAINYARD_NODE']} local {os.environ['LOCAL_RANK']}"
    print(f"rank {rank} of {size} from step {begin}: {where} {os.environ['TRAINYARD_COLLECTIVES']}")
    print(f"key {os.environ.get('WANDB_API_KEY', 'none')}")
    beat = run / "heartbeat" / f"rank-{rank}.json"
    for step in range(begin + 1, steps + 1):
        stopped = together(step)
        now = {"step": step, "time": time.time(), "phase": "train", "pid": os.getpid(), "rank": rank}
        beat.with_suffix(".tmp").write_text(json.dumps(now))
        beat.with_suffix(".tmp").rename(beat)
        time.sleep(SECONDS)
        if rank == 0 and (stopped or step % 5 == 0):
            checkpoint.write_text(json.dumps({"step": step}))
        if stopped:
            print(f"stopped: step {step} is in the checkpoint")
            return
    print("done")


main()
# As the real trainer ends: Python's own way out takes the handler of SIGTERM away first, and a rank that is asked to
# stop after the others have would be killed by it.
sys.stdout.flush()
os._exit(0)
