"""Verbs that are killed or interrupted at random moments: `fab recover` and `fab destroy` leave nothing.

The moments are drawn from a seed, which a failure prints; TRAINYARD_SEED=... draws the same ones again.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from on_host import Traces, boots, engines, processes
from polling import until
from project import Project

from infra.clouds.local import paths

pytestmark = pytest.mark.faults

SEED = int(os.environ.get("TRAINYARD_SEED", time.time_ns() % 1_000_000))
NODES = 3
SLOW_STEP = "bootstrap/steps/image/00-slow"
VICTIMS = {
    "fab": ("/fab ",),
    "pulumi": ("pulumi ", "--stack"),
    "provider": ("-m pulumi.dynamic",),
    "program": ("pulumi-language-python-exec",),
    "engine": ("-m infra.state.engine",),
}

GROUP = "group"
"""As a victim: pulumi's whole process group, which `fab` is not in."""

# Engine, what it is doing, and what of it is killed at once. The rest goes on, or ends by itself.
KILLS = [
    ("pulumi", "starting", ["pulumi"]),
    ("pulumi", "baking", ["pulumi", "fab"]),
    ("pulumi", "booting", ["pulumi", "fab", "program"]),
    ("pulumi", "booting", ["provider"]),
    ("pulumi", "destroying", ["pulumi"]),
    ("pulumi", "starting", [GROUP]),
    ("pulumi", "baking", [GROUP]),
    ("pulumi", "booting", [GROUP]),
    ("pulumi", "booting", ["pulumi"]),
    ("pulumi", "booting", ["fab"]),
    ("embedded", "starting", ["engine", "fab"]),
    ("embedded", "baking", ["engine"]),
    ("embedded", "booting", ["engine", "fab"]),
    ("embedded", "booting", ["engine"]),
    ("embedded", "destroying", ["engine", "fab"]),
]
LONG = [("embedded", "starting", ["engine", "fab"]), ("embedded", "booting", ["engine"])]
"""Those for which continuous integration has no time: their like is run there."""


@pytest.mark.parametrize(
    ("number", "engine", "phase", "victims"),
    [pytest.param(n, *kill, marks=pytest.mark.soak if kill in LONG else []) for n, kill in enumerate(KILLS)],
)
def test_killed_verb_is_recovered(
    number: int, engine: str, phase: str, victims: list[str], make_project: Callable[..., Project]
) -> None:
    # Three nodes are made in little more than a tenth of a second.
    delay = random.Random(SEED + number).uniform(0, 0.1 if phase == "booting" else 0.6)
    print(f"TRAINYARD_SEED={SEED}: killed {delay:.3f} s into {phase}")
    project = make_project(engine)
    project.configure(nodes=NODES)
    traces = Traces(project)
    running = start(project, phase)
    time.sleep(delay)
    kill(project, victims)
    traces.note()
    running.communicate(timeout=60)
    if victims == ["fab"]:
        # What fab has started goes on, until it is done or finds that nobody reads what it says.
        until(lambda: not processes(project, *VICTIMS["pulumi"]), 120, "pulumi has ended")

    project.fab("recover", "--yes")
    traces.note()
    assert set(boots(project.stack)) <= known_nodes(project), "nothing runs that the state does not know"

    if phase != "destroying":
        (project.root / SLOW_STEP).unlink(missing_ok=True)
        project.fab("up", "--yes")
        assert set(boots(project.stack)) == {"node1", "node2", "node3"}
        traces.note()
    if phase == "booting":
        project.fab("wait")
        traces.note()
    project.fab("destroy", "--yes")
    traces.check_nothing_is_left()


def kill(project: Project, victims: list[str]) -> None:
    """Kill every process of the victims; one that has not begun, or has ended, is none."""
    if victims == [GROUP]:
        for pid in processes(project, *VICTIMS["pulumi"]):
            os.killpg(pid, signal.SIGKILL)
        return
    for pid in {pid for victim in victims for pid in processes(project, *VICTIMS[victim])}:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("engine", engines())
def test_interrupted_up_needs_no_recover(engine: str, make_project: Callable[..., Project]) -> None:
    """During a bake, where it also holds others off, and while nodes are made."""
    project = make_project(engine)
    project.configure(nodes=NODES)
    traces = Traces(project)
    baking = start(project, "baking")
    traces.note()
    check_others_are_refused(project)
    interrupt(baking)
    project.fab("destroy", "--yes")
    traces.check_nothing_is_left()

    (project.root / SLOW_STEP).unlink()
    delay = random.Random(SEED).uniform(0, 0.05)
    print(f"TRAINYARD_SEED={SEED}: interrupted {delay:.3f} s into booting")
    booting = start(project, "booting")
    time.sleep(delay)
    traces.note()
    interrupt(booting)
    project.fab("up", "--yes")
    assert set(boots(project.stack)) == {"node1", "node2", "node3"}
    traces.note()
    destroying = start(project, "destroying")
    interrupt(destroying)
    project.fab("destroy", "--yes")
    traces.check_nothing_is_left()
    again = project.fab("destroy", "--yes").stdout
    assert not re.search(r"- (\d+ )?deleted", again), "the second is a no-op"
    traces.check_nothing_is_left()


def check_others_are_refused(project: Project) -> None:
    """While an `up` is at work, another one and a recover say so, and say who it is."""
    holder = str(processes(project, *VICTIMS["pulumi" if project.engine == "pulumi" else "engine"])[0])
    before = project.remaining()
    for verb in ("up", "recover", "destroy"):
        refused = project.fab(verb, "--yes", code=None)
        output = refused.stdout + refused.stderr
        assert refused.returncode == (1 if project.engine == "pulumi" else 2), output
        assert holder in output and "Traceback" not in output, output
    assert [resource for resource in before if resource not in project.remaining() and resource.kind != "process"] == []


def start(project: Project, phase: str) -> subprocess.Popen[str]:
    """Start the verb that gets into a phase; returns when that has begun."""
    if phase == "destroying":
        project.fab("up", "--yes", timeout=600)
        verb = project.start("destroy", "--yes")
        until(lambda: len(boots(project.stack)) < NODES, 60, "the first node is being removed")
        return verb
    if phase == "baking":
        # A new image, whose bake lasts: it never ends well, so that nobody can take it for one.
        step = project.root / SLOW_STEP
        step.write_text(f"#!/bin/sh\n# {project.stack}\nsleep 120\nexit 1\n")
        step.chmod(0o755)
    verb = project.start("up", "--yes")
    signs: dict[str, Callable[[], object]] = {
        "starting": lambda: processes(project, *VICTIMS["pulumi" if project.engine == "pulumi" else "engine"]),
        "baking": lambda: "builder" in boots(project.stack),
        "booting": lambda: list(paths.stack(project.stack).glob("nodes/*")),
    }
    until(lambda: signs[phase]() or verb.poll() is not None, 600, f"{phase} has begun")
    assert verb.poll() is None, verb.stdout.read() if verb.stdout else ""
    return verb


def interrupt(verb: subprocess.Popen[str]) -> None:
    """SIGINT to `fab` alone, as a job's runner sends it; it ends soon, and without a traceback."""
    began = time.monotonic()
    verb.send_signal(signal.SIGINT)
    output, _ = verb.communicate(timeout=60)
    assert time.monotonic() - began < 30, output
    assert verb.returncode in (0, 1, 130), output  # 0: it was done by then
    assert "Traceback" not in output, output


def known_nodes(project: Project) -> set[str]:
    """The nodes in the stack's state."""
    code = f"from fabfile.stacks import pulumi_cli; print(*pulumi_cli.resources({project.stack!r}))"
    names = subprocess.check_output(["python", "-c", code], cwd=project.root, env=project.env, text=True).split()
    return {name for name in names if name.startswith("node")}
