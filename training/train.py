"""One rank of a training job; the same program on every kind of cluster.

    python -m training.train job.toml [section.key=value ...] [--resume]
    torchrun --nproc-per-node 2 -m training.train job.toml train.steps=100
    mpirun -n 3 -ppn 1 python -m training.train job.toml          (MASTER_ADDR and MASTER_PORT set)

A run resumes from the newest checkpoint in its run directory; with --resume, from its mirror's if that is newer.
SIGTERM or SIGUSR1 to any rank ends the job on all of them after the step, with a checkpoint. Exit codes: 0 done or
stopped, 1 failed because of another rank, the network or a disk, 2 invalid job, 3 failed by itself, so that another
attempt would end so, too: a loss that is not finite, a bug, want of memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from training import job as jobs
from training.job import Job
from training.keys import JobError
from training.parallel import world

os.environ.setdefault("ACCELERATE_USE_IPEX", "0")  # training.stepper applies IPEX, before DDP hooks the gradients


def run_directory(job: Job) -> Path:
    """Where the run writes: run.directory, else $RUN_DIR, else runs/<name>."""
    return Path(job.run.directory or os.environ.get("RUN_DIR") or f"runs/{job.run.name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Train as one rank; returns the exit code. After a lost rank or an unexpected error the process ends at once, as
    its other threads may hang."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description="One rank of a training job.")
    parser.add_argument("job", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--resume", action="store_true", help="fetch the mirror's checkpoint if it is newer")
    args = parser.parse_intermixed_args(argv)
    try:
        job = jobs.load(args.job, args.overrides)
        return _run(job, args.resume)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2


def _run(job: Job, resume: bool) -> int:
    """Join the other ranks and train; every error becomes one line and an exit code."""
    with _uncollected():  # here, as torch takes seconds to import: an invalid job is refused first
        from training.beginning import Failed
        from training.data.stream.client import StreamError
        from training.loop import Loop
        from training.parallel.ranks import join

    stop = StopRequest()
    if os.environ.get(world.FILE):
        return _run_elastic(job, stop, resume)
    try:
        ranks = join(job.train.timeout)
    except ConnectionError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    try:
        jobs.check_ranks(job, ranks.size)
        jobs.check_torch(job)
        loop = Loop(job, run_directory(job), ranks, stop, resume=resume)
        done = loop.run()
        ranks.close()
        loop.close()
    except JobError as error:
        ranks.explain(error)  # tells the other ranks, as the cause, such as the data, may be on this node only
        raise
    except (Failed, StreamError) as error:  # raised on all ranks with the same text
        print(f"error: {error}", file=sys.stderr, flush=True)
        ranks.leave()
        return _exit_code(error)
    except Exception as error:  # noqa: BLE001 (the other ranks must get any error)
        _report(error, ranks.explain(error))
        return 1
    if ranks.is_first:
        _say_end(done, stop)
    return 0


def _run_elastic(job: Job, stop: StopRequest, resume: bool) -> int:
    """`_run` for a rank of an elastic job, which outlives the loss of others."""
    from training import elastic
    from training.beginning import Failed
    from training.parallel.peers import plain
    from training.parallel.world import Leaves

    try:
        done = elastic.run(job, run_directory(job), stop, resume=resume)
    except JobError:
        raise
    except Leaves as why:
        print(why, flush=True)
        return 0
    except Failed as error:  # raised on all ranks with the same text
        print(f"error: {error}", file=sys.stderr, flush=True)
        return _exit_code(error)
    except Exception as error:  # noqa: BLE001 (one line, as in _run)
        _report(error, plain(error))
        return 1
    _say_end(done, stop)
    return 0


def _say_end(done: bool, stop: StopRequest) -> None:
    print("done" if done else f"stopped: step {stop.step} is in the checkpoint", flush=True)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Import torch in the body: what that makes stays, and to look among it for what does not took a quarter of the 3 s
    of processor time; later collections leave it out, too."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _report(error: Exception, line: str) -> None:
    from training.checkpoint.files import CheckpointError
    from training.parallel.peers import is_collective

    if not is_collective(error) and not isinstance(error, CheckpointError):
        # A bug, or a fault of the machine: print the traceback.
        import traceback

        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    # A normal exit would wait for the broken process group's threads until their timeout.
    os._exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    """3 for what this program has done itself, and would do again; 1 if it was another rank, the network or a disk."""
    from training.beginning import Failed, FailsAgain
    from training.checkpoint.files import CheckpointError
    from training.data.stream.client import StreamError
    from training.parallel.peers import is_collective

    of_others = isinstance(error, Failed | StreamError | CheckpointError | OSError) or is_collective(error)
    return 1 if of_others and not isinstance(error, FailsAgain) else 3


class StopRequest:
    """Set by SIGTERM or SIGUSR1: end after this step, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = False
        self.step = 0
        self._stop_by = os.environ.get("TRAINYARD_STOP_BY", "")
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._ask)

    def left(self) -> float:
        """Seconds until this process is killed, or its node taken; `inf` if nobody has said (node/job/keeper.py)."""
        if not self._stop_by:
            return math.inf
        try:
            return float(json.loads(Path(self._stop_by).read_text())["by"]) - time.time()
        except OSError:
            return math.inf  # somebody else has sent the signal, or the disk was full

    def _ask(self, *_: object) -> None:
        self.asked = True


if __name__ == "__main__":
    code = main()
    # Skip the interpreter's shutdown: gloo's threads may still hold tensors, and torch 2.13 then aborts the process
    # although its work is done (pytorch#179291).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
