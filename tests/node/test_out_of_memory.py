"""A job's end for want of memory: what the kernel says of it on a node, and what is said of it to the person."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from node import memory
from node.job.diagnosis import Diagnosis, Outcome

UNIFIED, FIRST = "sys/fs/cgroup", "sys/fs/cgroup/memory"
EVENTS = {f"{UNIFIED}/memory.events": "oom 5\noom_kill 2\n"}
UNLIMITED = {f"{FIRST}/memory.limit_in_bytes": "9223372036854771712\n"}
KILLED = {"state": "exited", "code": -signal.SIGKILL}


def machine(root: Path, files: dict[str, str], *, container: bool) -> Path:
    for name, text in {**files, **({"run/systemd/container": "x"} if container else {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "container, files, killed, size",
    [
        (False, {"proc/vmstat": "a 1\noom_kill 3\nz 2\n", "proc/meminfo": "MemTotal: 134217728 kB\n"}, 3, "128 GiB"),
        (
            True,
            {**EVENTS, f"{UNIFIED}/memory.max": "2147483648\n"},
            2,
            "2 GiB",
        ),
        (True, {**EVENTS, f"{UNIFIED}/memory.max": "max\n"}, 2, "1.5 GiB"),
        (
            True,
            {
                f"{FIRST}/memory.oom_control": "under_oom 0\noom_kill 7\n",
                f"{FIRST}/memory.limit_in_bytes": "805306368\n",
            },
            7,
            "768 MiB",
        ),
        # The whole machine's count is not a container's.
        (
            True,
            {"proc/vmstat": "oom_kill 3\n", **UNLIMITED},
            0,
            "1.5 GiB",
        ),
        (False, {}, 0, "1.5 GiB"),
    ],
)
def test_what_the_kernel_says(container: bool, files: dict[str, str], killed: int, size: str, tmp_path: Path) -> None:
    root = machine(tmp_path, files, container=container)
    assert memory.killed(root) == killed
    assert memory.size(1.5, root) == size


def test_a_pod_is_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's count has the kills of all of its pods, and on the `local` stack of all nodes."""
    files = {**EVENTS, f"{UNIFIED}/memory.max": "2147483648\n", "proc/vmstat": "oom_kill 3\n"}
    root = machine(tmp_path, files, container=False)
    assert memory.killed(root) == 3
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert (memory.killed(root), memory.size(1.5, root)) == (2, "2 GiB")


def test_nothing_is_said_of_a_size_that_nobody_knows(tmp_path: Path) -> None:
    assert memory.size(0.0, tmp_path) == ""


def test_only_what_was_killed_lately_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/vmstat": "oom_kill 3\n"}, container=False)
    starved = memory.Starved(root)
    assert not starved.lately(100.0), "of an earlier attempt"
    (root / "proc/vmstat").write_text("oom_kill 4\n")
    assert starved.lately(101.0) and starved.lately(101.0 + memory.LATELY - 1)
    assert not starved.lately(101.0 + memory.LATELY)


def watch() -> Diagnosis:
    made = Diagnosis(["node1", "node2"], 10.0, 100.0)
    for number in range(2):
        made.update(f"node{number + 1}", {"event": "rank", "rank": number, "state": "running"}, 100.0)
    return made


@pytest.mark.parametrize(
    "of, expected",
    [
        (
            {**KILLED, "memory": "2 GiB"},
            "its 2 GiB of memory: rank 1 was killed for it",
        ),
        ({"state": "lost", "memory": "2 GiB"}, "its 2 GiB of memory: rank 1 was killed for it"),
        ({**KILLED, "memory": "unknown"}, "memory: rank 1 was killed for it"),
        ({"state": "exited", "code": 1, "memory": "2 GiB"}, "its 2 GiB of memory: rank 1 ended with exit code 1"),
    ],
)
def test_the_node_that_ran_out_is_named_whoever_else_complains(of: dict[str, object], expected: str) -> None:
    made = watch()
    made.update(
        "node1", {"event": "rank", "rank": 0, "state": "exited", "code": -signal.SIGABRT, "last": "gloo"}, 101.0
    )
    made.update("node2", {"event": "rank", "rank": 1, **of}, 101.5)
    made.mpirun_ended(-signal.SIGKILL, 101.6)
    assert made.verdict(101.7) == Outcome(1, f"node2 ran out of {expected}", by_program=True)
