"""A rank of an elastic job: when the world changes, it goes on in the next one with what it has in memory.

When a rank is lost the collectives of all others fail. They then leave the process group, wait for the world that the
job's supervisor makes of those that are left, and go on from the last step that any of them has done. A rank that is
started in the lost one's place waits until the supervisor makes a world with it, and gets the state from another rank.
A rank whose node is about to be taken ends after a step, and the others go on from that one.
The windows of a step and their order do not depend on the number of ranks, so losses differ in the last digits only.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch.distributed as dist
from accelerate.state import AcceleratorState

from training import job as jobs
from training.checkpoint.carried import Carried
from training.job import Job
from training.keys import JobError
from training.loop import Loop, Stop
from training.parallel import ranks as joining
from training.parallel.peers import is_collective, plain
from training.parallel.world import Leaves, World, WorldChanged
from training.progress import Heartbeat, Phase

WAIT = 120.0
"""Seconds that a rank waits for a new world; train.timeout, if that is more."""
JOIN: Phase = "join"


def run(job: Job, folder: Path, stop: Stop, *, resume: bool) -> bool:
    """Train in one world after another until all steps are done (True) or a stop is requested (False). Raises Failed,
    JobError, Leaves if this rank is to end alone, and ConnectionError if no new world comes."""
    jobs.check_elastic(job)
    world = World.of_environment(os.environ)
    carried: Carried | None = None
    while True:
        _wait(world, folder, carried.step if carried else 0, job.train.timeout)
        loop: Loop | None = None
        try:
            world.entered()
            ranks = joining.join(job.train.timeout, elastic=True)
            jobs.check_ranks(job, ranks.size)
            jobs.check_torch(job)
            loop = Loop(job, folder, ranks, stop, resume=resume, world=world, carried=carried)
            carried = None  # the loop has it
            if loop.parallel.calls_together:
                raise JobError("train.parallel = auto is fsdp for this model; allowed in an elastic job: ddp")
            done = loop.run()
            ranks.close()
            loop.close()
            return done
        except WorldChanged:
            carried = loop.carry() if loop else carried
        except (RuntimeError, OSError) as error:
            if not is_collective(error):
                raise
            print(f"this rank has lost the others: {plain(error)}", flush=True)
            carried = loop.carry() if loop and loop.state.step else carried
        finally:
            world.left()
        loop = None  # and with it the model that the next one replaces
        _leave()


def _leave() -> None:
    """Leave the process group, which may have failed."""
    if dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()


def _wait(world: World, folder: Path, step: int, timeout: int) -> None:
    """Wait for the next world, if the environment does not have it; `step` is this rank's last one. ConnectionError,
    or Leaves."""
    heart = Heartbeat(folder, world.place, "", world.generation)
    if world.waits or world.newest() is not None:
        try:
            world.enter(lambda: heart.beat(step, JOIN), max(WAIT, float(timeout)))
        except Leaves:
            raise Leaves(f"this rank has left after step {step}: its node is about to be taken") from None
