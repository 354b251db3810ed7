"""What Slurm says of a cluster's nodes; and `fab wait`'s last part where Slurm runs jobs: until it can use all of them.

The nodes are those that run jobs: the inventory's, or the queue's, where Slurm starts machines for jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from invoke.exceptions import Exit

from fabfile.output import next_command, say
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from node.job.spec import job_nodes

USABLE = ("idle", "mixed", "allocated", "completing", "planned")
DRAINED = ("drain", "draining", "drained", "maint", "reserved")
"""States that only a person ends."""
_FLAGS = "~#%$@^+-!"  # power saving, a planned reboot; not `*`: the node does not answer
_ASK = "sinfo --noheader --Node --Format=NodeHost:64,StateLong:32,Reason:300"
_LOG = "sudo -n journalctl --unit={unit} --lines=8 --no-pager --output=cat"
_NO_ANSWER = "slurmctld does not answer: "
_PAUSE = 0.3
_QUIET_SECONDS = 5.0


class NoAnswer(Exception):
    """slurmctld does not answer: one line."""


@dataclass(frozen=True)
class State:
    """What Slurm says of a node."""

    word: str
    """sinfo's, such as `idle`, `idle~` for one that Slurm starts when a job needs it, `down*`."""
    reason: str
    """Why it is out of service; empty: it is not."""

    @property
    def is_usable(self) -> bool:
        """Whether jobs start there, now or when others have ended."""
        return self.word.rstrip(_FLAGS) in USABLE

    @property
    def is_there(self) -> bool:
        """Whether its machine runs, and no job has it."""
        return self.word == "idle"

    def __str__(self) -> str:
        return f"{self.word.rstrip(_FLAGS)} ({self.reason})" if self.reason else self.word.rstrip(_FLAGS)


def states(fleet: Fleet) -> dict[str, State]:
    """The state of every node that runs jobs, asked on the head. Raises NoAnswer."""
    head = fleet.cluster.head
    result = fleet.run(_ASK, nodes=[head], timeout=30)[head.name]
    if not result.ok:
        lines = result.stderr.strip().splitlines()
        raise NoAnswer(lines[-1] if lines else result.why)
    found = {}
    for line in result.stdout.splitlines():
        name, word, *reason = line.split(maxsplit=2)
        why = reason[0].strip() if reason else "none"
        found[name] = State(word, "" if why == "none" else why)
    return {node.name: found.get(node.name, State("unknown to Slurm", "")) for node in job_nodes(fleet.cluster)}


def unusable(fleet: Fleet) -> dict[str, str]:
    """Node -> what Slurm says of it, for nodes that cannot be used; only the head if its slurmctld does not answer."""
    try:
        return {name: str(state) for name, state in states(fleet).items() if not state.is_usable}
    except NoAnswer as error:
        return {fleet.cluster.head.name: f"{_NO_ANSWER}{error}"}


def wait_until_usable(fleet: Fleet, timeout: float) -> None:
    """Return when Slurm has every node that runs jobs in a state in which jobs start.

    Exit 1, with each other node's state, reason and end of log, after `timeout` seconds, or at once for a drained node.
    """
    began = printed = time.monotonic()
    while wrong := unusable(fleet):
        now = time.monotonic()
        if now - began > timeout or any(state.startswith(DRAINED) for state in wrong.values()):
            raise _failure(fleet, wrong, now - began)
        if now - printed >= _QUIET_SECONDS:
            printed = now
            listed = "; ".join(f"{name}: {state}" for name, state in list(wrong.items())[:4])
            say(f"waiting for Slurm on {_of(fleet, wrong)} ({now - began:.0f} s): {listed}")
        time.sleep(_PAUSE)


def _of(fleet: Fleet, wrong: dict[str, str]) -> str:
    return f"{len(wrong)} of {len(job_nodes(fleet.cluster))} nodes"


def _failure(fleet: Fleet, wrong: dict[str, str], seconds: float) -> Exit:
    silent = any(state.startswith(_NO_ANSWER) for state in wrong.values())
    # Machines of a queue have no address that could be asked: what slurmctld says of them is in its own log.
    there = [node for node in fleet.cluster.nodes if node.name in wrong and not fleet.cluster.queue]
    nodes, unit = (there, "slurmd") if there and not silent else ([fleet.cluster.head], "slurmctld")
    logs = fleet.run(_LOG.format(unit=unit), nodes=nodes, timeout=30)
    lines = [f"Slurm cannot use {_of(fleet, wrong)} after {seconds:.0f} s"]
    for name, state in wrong.items():
        lines.append(f"{name}  {state}")
        lines += _log(logs, name)
    lines += [line for name in logs.keys() - wrong.keys() for line in _log(logs, name)]
    return Exit("\n".join([*lines, next_command(f"fab ssh {nodes[0].name}")]), code=1)


def _log(logs: dict[str, Result], name: str) -> list[str]:
    if name not in logs:
        return []
    return [f"    {line}" for line in (logs[name].stdout or logs[name].why).splitlines()]
