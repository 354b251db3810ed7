"""`fab sample`: sample text from a job's model, on the cluster where the job ran."""

from __future__ import annotations

import sys
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import Ended, SampleOptions, Unreachable, find_job
from fabfile.command_line import AtLeast
from fabfile.output import write


@task(
    help={
        "prompt": "what the text begins with",
        "tokens": "how many to make",
        "temperature": "0: the likeliest each time",
        "top-k": "choose among so many; 0: all",
        "seed": "of the choice",
    }
)
def sample(
    _c: Context,
    job: str,
    prompt: str = "\n",
    tokens: Annotated[int, AtLeast(1)] = 100,
    temperature: Annotated[float, AtLeast(0)] = 0.8,
    top_k: Annotated[int, AtLeast(0)] = 200,
    seed: Annotated[int, AtLeast(0)] = 1337,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Sample text from a job's best or newest model, token by token."""
    with backends.connect(stack, inventory) as backend:
        id_ = find_job(backend, job).id
        try:
            for part in backend.sample(id_, SampleOptions(prompt, tokens, temperature, top_k, seed)):
                if not isinstance(part, Ended):
                    write(part)
                    continue
                write(part.stderr, file=sys.stderr)
                if part.code != 0:
                    raise Exit(code=part.code)
        except Unreachable as error:
            raise Exit(f"{backend.host}: the connection was lost: {error}", code=1) from None
