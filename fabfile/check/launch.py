"""The checks that use mpirun: start a probe from the head, read its events here, clean up on every node."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fabfile.check.session import TROUBLE, Event, Running, Session
from fabfile.launchers import VENV
from infra.inventory import SshCluster, to_object

HELLO = 'printf \'{"rank": %s, "event": "hello", "hostname": "%s"}\\n\' "$PMI_RANK" "$(hostname)"'
HELLO_S = 20
NETWORK_S = 120
"""Seconds for mpirun: sixteen nodes on two busy cores take 45 s to import torch, and gloo waits 30 s for a peer."""
NCCL_S = 90
"""Seconds for one all-reduce of nccl-tests; NCCL alone takes 20 s to join 64 GPUs the first time."""
PAIRS_S = 180
"""Seconds for all pairs of nodes together."""
GLOO_S = 30
LINKS_S = 8
"""Seconds for the measurement of all links together."""
ENOUGH = 0.6e9
"""Bytes per second above which no link counts as slow: AWS limits one TCP stream to 5 Gbit/s. Only links between
machines of one host are faster, and there the processor's load decides, not the link."""
QUIET_S = 20.0
"""Seconds of silence of the whole job after which the head counts as hung."""
SILENT_S = {"import of torch": 20.0}
SILENT_ELSE_S = 8.0
"""Seconds of silence after which a rank counts as hung. A rank prints something every 1.5 s, but not while it loads
libraries from a cold disk, or while sixteen do so on two cores."""
GRACE_S = 3.0
"""Seconds from the first rank's error to the end of the probe: every other live rank prints once more in this time."""
CLEAN_S = 10.0
ALLOCATED_S = 40.0
"""Seconds that Slurm may take to give nodes, and to be asked which these are."""
A_RANK_FAILED, A_RANK_IS_SILENT = "a rank failed", "a rank is silent"


@dataclass
class ProbeRun:
    """The outcome of one probe on all nodes."""

    events: list[Event] = field(default_factory=list)
    failed: str = ""
    """Why the probe failed; empty: it ended well."""
    silent: list[int] = field(default_factory=list)
    """Ranks that were silent when it ended."""
    uncleaned: dict[str, str] = field(default_factory=dict)
    """Nodes that could not be cleaned up, and why."""

    def of(self, kind: str) -> list[Event]:
        """Its events of one kind."""
        return [event for event in self.events if event.get("event") == kind]


Sessions = Mapping[str, Session]


def hello(cluster: SshCluster, sessions: Sessions) -> ProbeRun:
    """Every node prints its name: does mpirun reach all nodes?"""
    return _launch(cluster, sessions, probe=["sh", "-c", HELLO], seconds=HELLO_S)


def network(cluster: SshCluster, sessions: Sessions) -> ProbeRun:
    """Measure every link, and an all-reduce over all nodes."""
    return _launch(cluster, sessions, probe=all_reduce("{program}"), seconds=NETWORK_S, beats=True)


def all_reduce(program: str) -> list[str]:
    """The command of each rank of that measurement; `program`: the path of the node program on its node."""
    return [f"{VENV}/python", "-I", program, "allreduce", *map(str, (GLOO_S, LINKS_S, ENOUGH))]


def gpu_ranks(program: str) -> list[str]:
    """The command of each rank that measures NCCL where there is no mpirun; `program` as above."""
    return [f"{VENV}/python", "-I", program, "gpu-ranks", *map(str, (NCCL_S, PAIRS_S))]


def nccl(cluster: SshCluster, sessions: Sessions) -> ProbeRun:
    """Measure NCCL's all-reduce on the GPUs: within every node, over all, and between every two
    (node/probes/nccl.py)."""
    name = f"check-{secrets.token_hex(4)}"
    spec = {"id": name, "cluster": to_object(cluster), "seconds": PAIRS_S, "pair_seconds": NCCL_S}
    run = ProbeRun()
    try:
        running = sessions[cluster.head.name].run("nccl", spec, timeout=2 * NCCL_S + PAIRS_S + 10)
        try:
            run.events += running.events()
        finally:
            running.let_go()
    except TROUBLE as error:
        run.failed = str(error)
    finally:
        run.uncleaned = clean(sessions, f"trainyard-{name}-*")
    return run


def on_slurm(
    cluster: SshCluster, session: Session, *, per: str, probe: list[str], seconds: float, ranks: int
) -> ProbeRun:
    """Run a probe in a job of Slurm's, see node/probes/slurm_launch.py. `session`: the head's; `per`: as Program's."""
    name = f"check-{secrets.token_hex(4)}"
    spec = {"id": name, "cluster": to_object(cluster), "seconds": seconds, "per": per, "probe": probe}
    run = ProbeRun()
    try:
        running = session.run("slurm-launch", spec, timeout=seconds + ALLOCATED_S)
        running.quiet = ALLOCATED_S
        try:
            _follow(running, run, ranks=ranks, beats=True)
        finally:
            running.let_go()
            running.channel.status_event.wait(CLEAN_S)  # it ends Slurm's job when it ends
    except TROUBLE as error:
        run.failed = run.failed or str(error)
    return run


def _launch(
    cluster: SshCluster, sessions: Sessions, *, probe: list[str], seconds: int, beats: bool = False
) -> ProbeRun:
    """Run a probe on all nodes, see node/probes/launch.py. `beats`: its ranks regularly print that they are alive."""
    name = f"check-{secrets.token_hex(4)}"
    spec = {"id": name, "cluster": to_object(cluster), "seconds": seconds, "probe": probe}
    run = ProbeRun()
    try:
        running = sessions[cluster.head.name].run("launch", spec, timeout=seconds + 10)
        running.quiet = QUIET_S
        try:
            _follow(running, run, ranks=len(cluster.nodes), beats=beats)
        finally:
            running.let_go()
            running.channel.status_event.wait(1.0)  # the probe removes its own files when it ends
    except TROUBLE as error:
        run.failed = run.failed or str(error)
    finally:
        run.uncleaned = clean(sessions, f"trainyard-{name}")
    return run


class Heard:
    """When each rank of a probe was last heard, which prints something again and again while it lives."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._seen: dict[int, float] = {}
        self._late_at: dict[int, float] = {}

    def hear(self, event: Event) -> None:
        """Take in an event that has just come."""
        if "rank" in event:
            now, rank = time.monotonic(), int(event["rank"])
            self._seen[rank] = now
            self._late_at[rank] = now + SILENT_S.get(event.get("phase", ""), SILENT_ELSE_S)

    def is_any_late(self) -> bool:
        """Whether a rank that was heard before counts as hung."""
        now = time.monotonic()
        return now > min(self._late_at.values(), default=now)

    def silent(self) -> list[int]:
        """The ranks that were not heard lately. None if none was ever heard: then nothing was started, and none is to
        blame."""
        end = time.monotonic()
        late = [rank for rank in range(self._ranks) if end - self._seen.get(rank, 0.0) > GRACE_S - 0.5]
        return late if self._seen else []


def _follow(running: Running, run: ProbeRun, *, ranks: int, beats: bool) -> None:
    """Read the job's events to its end, or until a rank has failed or is silent."""
    heard = Heard(ranks)
    try:
        for event in running.events():
            run.events.append(event)
            heard.hear(event)
            if event["event"] == "result":
                break  # every rank has passed its last barrier; do not wait for the processes to end
            if event["event"] == "error":
                run.failed = A_RANK_FAILED
                running.deadline = min(running.deadline, time.monotonic() + GRACE_S)
            if beats and heard.is_any_late():
                run.failed = A_RANK_IS_SILENT
                break
            if event["event"] == "end" and (event["late"] or event["exited"] != 0):
                run.failed = run.failed or ("not ready in time" if event["late"] else running.complaint() or "failed")
    except TROUBLE as error:
        run.failed = run.failed or running.complaint() or str(error)
    if beats and run.failed:
        run.silent = heard.silent()


def clean(sessions: Sessions, unit: str) -> dict[str, str]:
    """On all nodes at once, kill what still runs of the probe, and check that it is gone; returns why, by node, it is
    not. A node that hangs does not hold up the others."""
    # A scope that is already gone is no error.
    command = (
        f"sudo -n systemctl kill --signal=SIGKILL {unit}.scope 2>/dev/null; "
        f"for i in $(seq 50); do systemctl is-active --quiet {unit}.scope || exit 0; sleep 0.1; done; exit 1"
    )
    wrong: dict[str, str] = {}

    def one(name: str, session: Session) -> None:
        try:
            session.output(command, timeout=CLEAN_S)
        except TROUBLE as error:
            wrong[name] = str(error)

    threads = {item[0]: threading.Thread(target=one, args=item, daemon=True) for item in sessions.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + CLEAN_S + 1
    for name, thread in threads.items():
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            wrong[name] = f"no answer in {CLEAN_S:.0f} s"
    return wrong
