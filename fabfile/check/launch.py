"""The checks that go through mpirun: started on the head node, heard from here, cleaned up on every node."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fabfile.check.observations import TROUBLE
from fabfile.check.session import Event, Running, Session
from fabfile.launchers import VENV
from infra.inventory import SshCluster, to_object

HELLO = 'printf \'{"rank": %s, "event": "hello", "hostname": "%s"}\\n\' "$PMI_RANK" "$(hostname)"'
HELLO_S = 20
NETWORK_S = 120
"""mpirun's time: sixteen nodes on two busy cores take 45 s to import torch, and gloo gives a peer 30 s."""
GLOO_S = 30
LINKS_S = 8
"""The budget for all links together."""
ENOUGH = 0.6e9
"""Bytes per second above which no link is slow: AWS lets one TCP stream have 5 Gbit/s. Faster ones are between
machines of one host, where the processor's other work decides, not the link."""
QUIET_S = 20.0
"""Silence of the whole job after which the head itself counts as hung."""
SILENT_S = {"import of torch": 20.0}
SILENT_ELSE_S = 8.0
"""Silence of one rank after which it counts as hung: it should say something every 1.5 s, but while it loads
libraries from a cold disk, or sixteen do on two cores, it cannot."""
GRACE_S = 3.0
"""From the first rank's error to the end: the time in which the other live ones are heard once more."""
EVERYWHERE_S = 10.0


@dataclass
class Run:
    """What came of one program on all nodes."""

    events: list[Event] = field(default_factory=list)
    failed: str = ""
    """Why it was not heard to a good end; empty: it was."""
    silent: list[int] = field(default_factory=list)
    """Ranks that had stopped talking when it ended."""
    left_over: dict[str, str] = field(default_factory=dict)
    """Nodes that could not be cleaned up, and why."""

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("event") == kind]


def hello(cluster: SshCluster, sessions: Mapping[str, Session]) -> Run:
    """Every node says its name."""
    return _launch(cluster, sessions, probe=["sh", "-c", HELLO], seconds=HELLO_S)


def network(cluster: SshCluster, sessions: Mapping[str, Session]) -> Run:
    """Every link, and all of them together."""
    probe = [f"{VENV}/python", "-I", "{program}", "allreduce", *map(str, (GLOO_S, LINKS_S, ENOUGH))]
    return _launch(cluster, sessions, probe=probe, seconds=NETWORK_S, beats=True)


def _launch(
    cluster: SshCluster, sessions: Mapping[str, Session], *, probe: list[str], seconds: int, beats: bool = False
) -> Run:
    """One probe on all nodes, see node/probes/launch.py; `beats`: its ranks say every moment that they are alive."""
    name = f"check-{secrets.token_hex(4)}"
    spec = {"id": name, "cluster": to_object(cluster), "seconds": seconds, "probe": probe}
    run = Run()
    try:
        running = sessions[cluster.head.name].run("launch", spec, timeout=seconds + 10)
        running.quiet = QUIET_S
        try:
            _follow(running, run, ranks=len(cluster.nodes), beats=beats)
        finally:
            running.let_go()
            _wait(running, 1.0)  # it takes its files with it
    except TROUBLE as error:
        run.failed = run.failed or str(error)
    finally:
        run.left_over = clean(sessions, f"trainyard-{name}")
    return run


def _follow(running: Running, run: Run, *, ranks: int, beats: bool) -> None:
    """Hear the job to its end, or until a rank has failed or has fallen silent."""
    seen: dict[int, float] = {}
    patience: dict[int, float] = {}
    try:
        for event in running.events():
            run.events.append(event)
            now = time.monotonic()
            if "rank" in event:
                seen[int(event["rank"])] = now
                patience[int(event["rank"])] = SILENT_S.get(event.get("phase", ""), SILENT_ELSE_S)
            if event["event"] == "result":
                break  # every rank has passed its last barrier; how long they take to go is of no interest
            if event["event"] == "error":
                run.failed = "a rank failed"
                running.deadline = min(running.deadline, now + GRACE_S)
            if beats and any(now - last > patience[rank] for rank, last in seen.items()):
                run.failed = "a rank is silent"
                break
            if event["event"] == "end" and (event["late"] or event["exited"] != 0):
                run.failed = run.failed or ("not ready in time" if event["late"] else running.complaint() or "failed")
    except TROUBLE as error:
        run.failed = run.failed or running.complaint() or str(error)
    if beats and run.failed and seen:  # without a word from anyone, nothing was started yet
        end = time.monotonic()
        run.silent = [rank for rank in range(ranks) if end - seen.get(rank, 0.0) > GRACE_S - 0.5]


def _wait(running: Running, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not running.channel.exit_status_ready() and time.monotonic() < deadline:
        time.sleep(0.02)


def clean(sessions: Mapping[str, Session], unit: str) -> dict[str, str]:
    """Kill what still runs of the probe on every node, and check that it is gone; the nodes where that failed."""
    # A scope that is gone already is no error: that is the good case.
    command = (
        f"sudo -n systemctl kill --signal=SIGKILL {unit}.scope 2>/dev/null; "
        f"for i in $(seq 50); do systemctl is-active --quiet {unit}.scope || exit 0; sleep 0.1; done; exit 1"
    )
    return everywhere(sessions, lambda session: session.output(command, timeout=EVERYWHERE_S))


def everywhere(sessions: Mapping[str, Session], work: Callable[[Session], object]) -> dict[str, str]:
    """Do something on all nodes at once; the nodes where it failed, and why. Bounded, whatever a node does."""
    wrong: dict[str, str] = {}

    def one(name: str, session: Session) -> None:
        try:
            work(session)
        except TROUBLE as error:
            wrong[name] = str(error)

    threads = {
        name: threading.Thread(target=one, args=(name, session), daemon=True) for name, session in sessions.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + EVERYWHERE_S + 1
    for name, thread in threads.items():
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            wrong[name] = f"no answer in {EVERYWHERE_S:.0f} s"
    return wrong
