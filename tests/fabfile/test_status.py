"""`fab status`: the table, the JSON, and what it says of a node that it cannot see."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sshd
from fab_command import fab

from fabfile.output import duration, gigabytes, prefixed, table
from fabfile.remote import node_program
from fabfile.remote.boot import NEVER_BOOTSTRAPPED
from fabfile.remote.command import Result
from fabfile.remote.ended import WHY
from fabfile.verbs.status import _HEADING, _money, _next, _of_queue, _row, describe, fitting, of_queue
from infra.inventory import Node, Queue, SshCluster, to_json

CLUSTER = SshCluster(
    name="yard",
    nodes=(
        Node(name="node1", private_ip="10.0.0.1", role="head", memory_gb=4),
        Node(name="node2", private_ip="10.0.0.2"),
    ),
    hourly_usd=3.0,
)
STATUS: dict[str, Any] = {
    "ready": {"mode": "node", "profile": "native", "versions": {"torch": "2.13.0"}, "cpu": {"cores": 2, "amx": True}},
    "failed": None,
    "step": "names",
    "job": {"id": "12", "state": "RUNNING"},
    "load": 0.5,
    "shared": True,
    "memory_used_gb": 1.25,
    "memory_total_gb": None,
    "disk_free_gb": 60.0,
    "disk_total_gb": 100.0,
    "up_seconds": 61,
}


def state_of(**changes: object) -> tuple[str, str]:
    node = describe(CLUSTER, CLUSTER.head, Result("node1", 0, json.dumps({**STATUS, **changes})))
    return node["state"], node["reason"]


def test_states() -> None:
    assert state_of() == ("ready", "")
    failed = {"step": "torch", "reason": "no wheel"}
    assert state_of(ready=None, failed=failed) == ("failed", "step torch: no wheel")
    assert state_of(ready=None) == ("booting", "step names")
    assert state_of(ready=None, step="") == ("booting", "the bootstrap has not begun")
    assert state_of(ready={"mode": "bake"})[0] == "booting"
    gone = describe(CLUSTER, CLUSTER.head, Result("node1", 255, reason="node1 (10.0.0.1:22): no answer"))
    assert (gone["state"], gone["reason"]) == ("unreachable", "node1 (10.0.0.1:22): no answer")


def test_a_local_node_that_has_ended() -> None:
    ended = replace(CLUSTER.head, control_group="/sys/fs/cgroup/no-such-group")
    row = describe(CLUSTER, ended, Result("node1", 255, reason="node1 (10.0.0.1:22): no answer"))
    assert (row["state"], row["reason"]) == ("gone", WHY)
    assert _next([row]).startswith("next: fab up")
    bare = describe(CLUSTER, CLUSTER.head, Result("node1", node_program.NO_PYTHON, stderr=NEVER_BOOTSTRAPPED))
    assert (bare["state"], bare["reason"]) == ("no node", NEVER_BOOTSTRAPPED)
    assert _next([bare]).startswith("next: fab bootstrap")
    odd = describe(CLUSTER, CLUSTER.head, Result("node1", 127, stderr="bash: python3: not found\n"))
    assert (odd["state"], odd["reason"]) == ("unknown", "exit code 127: bash: python3: not found")


def test_a_machine_without_python_says_so(tmp_path: Path) -> None:
    """As minimal Debian is. The line is the shell's own, and comes before the program is looked for."""
    line = node_program.command("status")
    without = subprocess.run(["/bin/sh", "-c", line], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (without.returncode, without.stderr) == (node_program.NO_PYTHON, f"{NEVER_BOOTSTRAPPED}\n")
    with_it = {"PATH": str(Path(sys.executable).parent), "TRAINYARD_PREFIX": str(tmp_path)}
    missing = subprocess.run(["/bin/sh", "-c", line], env=with_it, capture_output=True, text=True)
    said = f"{tmp_path}/.cache/trainyard/node/{node_program.digest()[:16]}.pyz: not the program that was sent\n"
    assert (missing.returncode, missing.stderr) == (node_program.MISSING, said)


def test_price_memory_and_job() -> None:
    node = describe(CLUSTER, CLUSTER.head, Result("node1", 0, json.dumps(STATUS)))
    assert node["hourly_usd"] == 1.5
    assert (node["memory_used_gb"], node["memory_gb"]) == (1.25, 4)
    assert node["job"] == {"id": "12", "state": "RUNNING"}


LIMITS = {
    "expires_in_seconds": 12000,
    "idle_minutes": 60,
    "used_by": "",
    "idle_seconds": 720,
    "ends": "",
    "failed": "",
}


def row_of(**changes: object) -> list[str]:
    return _row(describe(CLUSTER, CLUSTER.head, Result("node1", 0, json.dumps({**STATUS, **changes}))))


def test_money_and_limits_of_a_node() -> None:
    assert row_of(age_seconds=7200, limits=LIMITS)[-3:] == ["$3.00", "in 3h20m", "12m of 60m"]
    assert row_of(age_seconds=7200, limits={**LIMITS, "used_by": "job", "idle_seconds": 0})[-1] == "job"
    assert row_of(limits={**LIMITS, "expires_in_seconds": -5, "idle_minutes": 0})[-2:] == ["now", "-"]
    assert row_of(limits={**LIMITS, "expires_in_seconds": None})[-2] == "-"
    assert row_of(limits=None)[-3:] == ["$0.03", "-", "-"], (
        "a node from before the first boot was noted: since this one"
    )


def test_money_of_the_cluster_names_who_is_not_counted() -> None:
    known = describe(CLUSTER, CLUSTER.head, Result("node1", 0, json.dumps({**STATUS, "age_seconds": 3600})))
    gone = describe(CLUSTER, CLUSTER.nodes[1], Result("node2", 255, reason="no answer"))
    assert _money(CLUSTER, [known, known]) == "yard: $3.00/h, $3.00 so far"
    assert _money(CLUSTER, [known, gone]) == "yard: $3.00/h, $1.50 so far, without node2, which may cost as well"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"queue_running": 1}, "; queue p3dn: 1 of 2 nodes run, $31.20/h more"),
        ({"queue_running": 0}, "; queue p3dn: 0 of 2 nodes run, $0.00/h more"),
        ({"queue_running": None}, "; queue p3dn: Slurm does not say how many of its 2 nodes run, which cost more"),
        (None, "; queue p3dn: Slurm does not say how many of its 2 nodes run, which cost more"),
    ],
)
def test_the_machines_that_slurm_started_cost_as_well(answer: dict[str, Any] | None, said: str) -> None:
    queue = Queue(name="p3dn", nodes=2, node_prefix="p3dn-dy-big", hourly_usd=31.2)
    head = Result("node1", 255, reason="no answer") if answer is None else Result("node1", 0, json.dumps(answer))
    assert _of_queue(of_queue(replace(CLUSTER, queue=queue), head)) == said
    assert of_queue(CLUSTER, Result("node1", 0, json.dumps(STATUS))) == {} and _of_queue({}) == ""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshCluster, list[sshd.Sshd]]]:
    sshd.require()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    port = sshd.free_port()
    servers = [yard.start(f"127.0.0.{i + 2}", port) for i in range(2)]
    lost = Node(name="node3", private_ip="127.0.0.77", ssh_port=port, host_key=servers[0].host_key)
    yield yard.cluster(*(server.node(f"node{i + 1}") for i, server in enumerate(servers)), lost), servers
    yard.stop()


def fab_status(folder: Path, cluster: SshCluster, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    (folder / "inventory.json").write_text(to_json(cluster))
    code = fab("status", "--inventory", str(folder / "inventory.json"), *more)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_over_ssh(
    cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines, servers = cluster
    folder = servers[0].root / "var/lib/trainyard"
    folder.mkdir(parents=True)
    (folder / "ready.json").write_text(json.dumps(STATUS["ready"]))
    (folder / "job.json").write_text(json.dumps(STATUS["job"]))
    (folder / "first-boot.json").write_text(json.dumps({"time": time.time() - 7200, "instance": "i-1"}))
    record = {
        "deadline": time.time() + 3630,
        "idle_minutes": 60,
        "used": "",
        "idle_since": time.time() - 700,
        "ends": "",
    }
    (servers[0].root / "run/trainyard").mkdir(parents=True)
    (servers[0].root / "run/trainyard/limits.json").write_text(json.dumps(record))
    why = "EC2 takes this Spot node at 12:03:05Z"
    (servers[0].root / "run/trainyard/notice.json").write_text(json.dumps({"time": 1, "at": 2, "why": why}))
    lines = fab_status(tmp_path, machines, capsys, "--wide").splitlines()
    assert lines[0].split() == (
        "NAME ADDRESS STATE SOFTWARE CPU LOAD MEMORY DISK JOB PRICE AGE SPENT ENDS IDLE".split()  # noqa: SIM905
    )
    assert lines[1].split()[:6] == ["node1", f"127.0.0.2:{servers[0].port}", "ready", "native", "torch", "2.13.0"]
    assert "12 RUNNING" in lines[1]
    assert f"node1 is about to go: {why}" in lines
    assert lines[1].split()[-6:] == ["$0.00", "in", "1h00m", "11m", "of", "60m"]
    assert lines[2].split()[2] == "booting"
    assert lines[3].split()[2] == "unreachable"
    assert f"node3 is unreachable: (127.0.0.77:{servers[0].port}): Connection refused" in lines
    assert lines[-1].startswith("next: fab wait --inventory ")

    narrow = fab_status(tmp_path, machines, capsys).splitlines()
    assert max(map(len, narrow[:4])) <= 100 and narrow[0].split()[0] == "NAME"
    assert narrow[4].startswith("not shown, for want of columns: CPU") and "(fab status --inventory" in narrow[4]

    read = json.loads(fab_status(tmp_path, machines, capsys, "--json"))
    assert [node["state"] for node in read["nodes"]] == ["ready", "booting", "unreachable"]
    assert [node["notice"] for node in read["nodes"]] == [why, "", ""]
    assert read["nodes"][0]["memory_used_gb"] > 0
    assert read["nodes"][0]["up_seconds"] > 0
    assert 7200 <= read["nodes"][0]["age_seconds"] < 7300 and read["spent_usd"] == 0
    limits = read["nodes"][0]["limits"]
    assert 3500 < limits["expires_in_seconds"] <= 3630 and 700 <= limits["idle_seconds"] < 800
    assert read["nodes"][1]["limits"] is None
    assert all(server.log.count("Accepted publickey") == 3 for server in servers)  # one connection per call


@pytest.mark.parametrize(("columns", "remaining"), [(0, 14), (200, 14), (100, 11), (80, 9), (40, 7)])
def test_a_table_gives_up_columns_until_it_fits(columns: int, remaining: int) -> None:
    node = describe(CLUSTER, CLUSTER.head, Result("node1", 0, json.dumps({**STATUS, "limits": LIMITS})))
    rows, left_out = fitting([_HEADING, _row(node)], columns)
    assert len(rows[0]) == len(rows[1]) == remaining and len(left_out) == 14 - remaining
    assert {"NAME", "STATE", "MEMORY", "DISK", "JOB", "AGE", "ENDS"} <= set(rows[0])
    assert columns in (0, 40) or max(map(len, table(rows).splitlines())) <= columns


def test_the_age_goes_on_over_a_reboot() -> None:
    assert row_of(age_seconds=7200, up_seconds=7190)[-4] == "2h00m"
    assert row_of(age_seconds=7200, up_seconds=300)[-4] == "2h00m (up 5m)"
    assert row_of(age_seconds=None, up_seconds=None)[-4] == "-"


def test_table_and_units() -> None:
    assert table([["A", "LONGER"], ["wide", "x"]]) == "A     LONGER\nwide  x"
    assert [duration(s) for s in (0, 59, 60, 3599, 3600, 12000, 86400, 172800)] == [
        "0s",
        "59s",
        "1m",
        "59m",
        "1h00m",
        "3h20m",
        "24h00m",
        "2d",
    ]
    assert [gigabytes(value) for value in (0.0, 0.4, 1.0, 3.25, 64)] == ["0M", "410M", "1G", "3.2G", "64G"]
    assert prefixed("node2", "hello") == "[node2] hello"  # no colour: this is no terminal
