"""`fab train --managed --on head`: put a job's manager on its head as a service, follow the job, and make the machines
that the manager asks for.

The service and this process share nothing but the files of node/job/manager_service.py: either may go and come back.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from invoke.exceptions import Exit

from fabfile import backends, targets
from fabfile.backends.base import JobRecord, JobState, Unreachable, find_job
from fabfile.backends.ssh.head import Head, lost_connections, runs
from fabfile.managed import record as records
from fabfile.managed import software
from fabfile.managed.asked import MADE, NO_ROOM, NOT_MADE, as_the_head_sees
from fabfile.managed.look import Look
from fabfile.managed.machines import Needs, OfStack
from fabfile.managed.record import Record, me
from fabfile.managed.replacement import NoRoom, NotReplaced
from fabfile.managed.start import Options, follower
from fabfile.managed.watch import Seen
from fabfile.output import hint, next_command, say
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import MANAGED
from fabfile.stacks import pulumi_cli
from infra.inventory import SshCluster

_POLL = 2.0
_PRESENT = 30.0
"""Seconds after its last word at which the manager takes us for gone."""
_GIVE_UP = 600.0
"""Seconds without an answer of the head after which we end."""
_UP = 60.0
"""The same while there is no stack, as after `fab destroy`; in an `up` it may be so for a moment."""


def check(stack: str) -> SshCluster:
    """The stack's cluster. Exit 2 for one without a head."""
    cluster = targets.load_any(stack, "")
    if not isinstance(cluster, SshCluster):
        raise Exit("--on head: a cluster with Kubernetes has no head that could hold a manager: leave it out", code=2)
    return cluster


def prepare(stack: str) -> None:
    """Bring the head what its manager needs. Exit 1 if that fails: so before there is a job."""
    with Fleet(check(stack)) as fleet:
        software.bring(fleet)


def hand_over(
    chosen: Options, facts: Mapping[str, Any], record: Record, cursor: int | None, *, resume: bool
) -> JobRecord | None:
    """Have the job managed on its head, follow it to its end, and make machines for it meanwhile; returns its record,
    or None if it is not to be followed. `record`: the job's, unless the head has a newer one; the rest is as in
    `manage`. Exit with the manager's code and words if that could not hold the job. Ctrl-C leaves both running."""
    cluster = check(chosen.stack)
    name = cluster.head.name
    with Fleet(cluster) as fleet:
        code, path = software.bring(fleet)
        order = {
            "who": me(),
            "seconds": 0.0 if chosen.detach else _PRESENT,
            "settings": {
                "options": {**asdict(chosen), "on": "", "detach": False},
                "facts": dict(facts),
                "nodes": record.nodes,
                "resume": resume,
            },
            "inventory": as_the_head_sees(cluster),
            "code": code,
            "path": path,
            "record": records.plain(record),
            "record_path": _record_path(chosen.stack, record.job),
        }
        with records.held(chosen.stack, record.job):
            _ask(Head(fleet), "start", record.job, order)
    say(f"{record.job} is managed on {name}")
    if chosen.detach:
        say(next_command(f"fab train --resume {record.job} --managed --on head   (follows it, and makes its machines)"))
        return None
    return _follow(chosen, facts, record.job, name, cursor)


def recall(chosen: Options, job: str) -> None:
    """Get the record of a manager on the job's head, if there is or was one; end that manager, unless it is to stay."""
    cluster = targets.load_any(chosen.stack, "")
    if not isinstance(cluster, SshCluster):
        return
    with Fleet(cluster) as fleet:
        order = {"record_path": _record_path(chosen.stack, job)}
        found = _ask(Head(fleet), "record" if chosen.on else "stop", job, order)["record"]
    if found is not None:
        records.keep(chosen.stack, job, found)


def _record_path(stack: str, job: str) -> str:
    return f".trainyard/{stack or pulumi_cli.default_stack()}/{MANAGED}/{job}.json"


def _ask(head: Head, verb: str, job: str, order: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = head.ask("manager", verb, f"{runs(head.cluster)}/{job}", stdin=order)
    return answer


class _Line:
    """Talks to the manager in a thread: says every few seconds that we are there, and hears what it wants."""

    def __init__(self, stack: str, job: str) -> None:
        self._stack, self._job = stack, job
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Each answer of the head; for none {"silent": why, "patience": after how many seconds of that to give up}."""
        self.reply: dict[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the manager that we go."""
        self._over.set()
        self._thread.join(2 * _POLL)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with lost_connections():
                    cluster = check(self._stack)
                    with Fleet(cluster) as fleet:
                        self._talk(cluster, Head(fleet))
            except (Unreachable, Exit) as error:
                no_stack = isinstance(error, Exit) and error.code == pulumi_cli.USAGE
                why = str(getattr(error, "message", None) or error)
                self.heard.put({"silent": why, "patience": _UP if no_stack else _GIVE_UP})
                self._over.wait(_POLL)

    def _talk(self, cluster: SshCluster, head: Head) -> None:
        """Until we go, or have a reply: after that the stack has other nodes."""
        order = {"who": me(), "seconds": _PRESENT, "inventory": as_the_head_sees(cluster)}
        while not self._over.is_set():
            reply = self.reply
            self.heard.put(_ask(head, "look", self._job, {**order, "reply": reply}))
            if reply is not None:
                self.reply = None
                return
            self._over.wait(_POLL)
        _ask(head, "look", self._job, {**order, "seconds": 0, "reply": None})


def _follow(chosen: Options, facts: Mapping[str, Any], job: str, head: str, cursor: int | None) -> JobRecord:
    """Show the job's log and do what its manager asks for, until that has ended."""
    machines = OfStack(chosen.stack, facts)
    shown = follower(chosen, lambda: backends.of(machines.cluster()), job, cursor, leave_out="")
    line = _Line(chosen.stack, job)
    try:
        ended = _serve(line, machines, job, head)
    finally:
        line.close()
    shown.wait()
    if ended["code"]:
        text = "".join(letter for letter in str(ended["text"]) if letter.isprintable() or letter == "\n")
        raise Exit(hint(text), code=int(ended["code"]))
    with backends.of(machines.cluster()) as backend:
        found = find_job(backend, job)
    if found.state == JobState.SUCCEEDED:
        records.forget(chosen.stack, job)
    return found


def _serve(line: _Line, machines: OfStack, job: str, head: str) -> dict[str, Any]:
    """Returns how the manager has ended. Exit 1 if its head is silent for long, or has no manager any more."""
    done = other = ""
    for answer, silent in _answers(line):
        if silent > answer.get("patience", math.inf):
            why = f"{head}, with the manager of {job}, has not answered for {silent:.0f} s: {answer['silent']}"
            raise Exit(hint(f"{why}\nnext: fab train --resume {job} --managed"), code=1)
        if silent:
            continue
        if answer.get("ended"):
            return dict(answer["ended"])
        if not answer["is_there"] or answer["last"]:
            what = f"cannot run it: {answer['last']}" if answer["is_there"] else "does not have it any more"
            raise Exit(hint(f"the manager of {job}: {head} {what}\nnext: fab train --resume {job} --managed"), code=1)
        if answer["maker"] not in ("", other):
            other = answer["maker"]
            say(f"{other} makes the machines of {job} now; this command only follows it")
        request = answer.get("request") or {}
        if request and request["id"] != done:
            done = request["id"]
            line.reply = {"id": done, **_made(machines, request)}
    raise AssertionError("the line does not end")


def _answers(line: _Line) -> Iterator[tuple[dict[str, Any], float]]:
    """Each answer of the head, with the seconds since it last answered."""
    answered = time.monotonic()
    while True:
        answer = line.heard.get()
        if "silent" not in answer:
            answered = time.monotonic()
        yield answer, time.monotonic() - answered if "silent" in answer else 0.0


def _made(machines: OfStack, request: Mapping[str, Any]) -> dict[str, str]:
    """Do what the manager asks for; the reply. Whoever can write on the head can ask: so it is checked here, too."""
    try:
        names, needs = [str(name) for name in request["names"]], Needs(**request["needs"])
        cluster = machines.cluster()
        assert isinstance(cluster, SshCluster)
        if wrong := [name for name in names if name not in [node.name for node in cluster.nodes]]:
            raise NotReplaced(f"{cluster.name} has no {wrong[0]!r}")
        if cluster.head.name in names and not (cluster.shared_dir or cluster.data_url):
            raise NotReplaced(f"{cluster.head.name}, the head, alone has the job's files")
        seen = _seen(cluster)
        lost = [name for name in names if not seen[name].is_well]  # who asked may have asked twice
        say(f"making {', '.join(lost) or 'nothing'} again, for the manager")
        if lost:
            machines.make_again(lost, [name for name in lost if seen[name].state == "gone"], needs)
    except NoRoom as error:
        return {"result": NO_ROOM, "why": str(error)}
    except (NotReplaced, Exit) as error:
        return {"result": NOT_MADE, "why": " ".join(str(getattr(error, "message", None) or error).split())}
    except (KeyError, TypeError, ValueError) as error:
        return {"result": NOT_MADE, "why": f"the request cannot be read: {error!r}"}
    return {"result": MADE, "why": ""}


def _seen(cluster: SshCluster) -> dict[str, Seen]:
    look = Look(cluster)
    try:
        return {node.name: node for node in look.nodes()}
    finally:
        look.close()


def how_to_go_on(job: str) -> str:
    """What is said when the following is interrupted."""
    back = f"next: fab train --resume {job} --managed --on head   (stop: fab stop {job})"
    return hint(f"{job} and its manager go on; machines that it loses are made again when you are back\n{back}")
