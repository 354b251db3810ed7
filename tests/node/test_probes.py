"""The probes of `fab check`, run on this machine, and that they are started as training is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_cluster import cluster

from fabfile.check.preflight import NODE_FACTS
from fabfile.launchers import HeadValues, Launch, mpirun, nodes_to_text
from infra.inventory import Node, to_object
from node import scope
from node.probes import launch, peers

ROOT = Path(__file__).resolve().parents[2]


def ask(name: str, spec: dict[str, Any], until: str) -> dict[str, Any]:
    """Run a probe here as a node would, up to one of its facts."""
    command = [sys.executable, "-m", "node.main", name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        facts = {}
        for line in process.stdout:
            event = json.loads(line)
            facts[event["fact"]] = event["value"]
            if event["fact"] == until:
                break
        process.stdin.close()
        process.wait(timeout=10)  # the end of stdin is its end
    return facts


def test_the_node_probe_tells_every_fact(tmp_path: Path) -> None:
    facts = ask("facts", {"shared_dir": str(tmp_path / "gone"), "memory_gb": 1e6}, "launch")
    assert set(facts) == set(NODE_FACTS)
    assert facts["disk"]["/"]["total_gb"] > 0
    assert "No such file" in facts["disk"][str(tmp_path / "gone")]["error"]
    assert facts["memory"]["available_gb"] > 0


def test_the_peers_probe_ends_when_the_operator_is_gone() -> None:
    spec = {"name": "me", "token": "t", "ports": [free_port()], "peers": [{"name": "me", "ip": "127.0.0.1"}]}
    facts = ask("peers", spec, "ssh")
    assert facts["ports"] == {"port": spec["ports"][0], "error": "", "wrong": {}}
    assert facts["ssh"] == {"wrong": {}}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_a_taken_port_is_passed_over_and_a_stranger_is_not_taken_for_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken, free = stranger.getsockname()[1], free_port()
        assert peers.listen("127.0.0.1", [taken, free], "token") == free
        monkeypatch.setattr(peers, "PORTS_S", 1)
        assert peers.reach({"name": "x", "ip": "127.0.0.1"}, [free], "token") == ""
        assert "another program" in peers.reach({"name": "x", "ip": "127.0.0.1"}, [free], "other")


@pytest.mark.parametrize(
    ("stderr", "why"),
    [
        ("HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.\n", "the host key is not the known one"),
        ("No ED25519 host key is known for x.\nHost key verification failed.\n", "the host key is not known"),
        ("u@x: Permission denied (publickey).\n", "u@x: Permission denied (publickey)."),
    ],
)  # fmt: skip
def test_why_ssh_failed(stderr: str, why: str) -> None:
    assert peers.reason(stderr) == why


def test_the_probe_logs_in_with_the_options_of_every_ssh_between_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/argv\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert peers.ssh_once("node2") == ""
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[2 : 2 + len(scope.STRICT)] == scope.STRICT and argv[-2:] == ["node2", "true"]


def test_names_that_cannot_be_right_are_told() -> None:
    assert peers.resolve({"name": "localhost", "ip": "10.1.2.3"}).startswith("the name is ")
    assert peers.resolve({"name": "no-such-name.invalid", "ip": "10.1.2.3"}) == "the name is not known"


def test_mpiruns_ssh_is_strict_and_puts_what_it_starts_in_a_leased_scope(tmp_path: Path) -> None:
    """The wrapper run for real, with an `ssh` that shows what it is given and runs the rest as a remote shell would."""
    wrapper = scope.ssh_in_scope(tmp_path, "u-1", ["RuntimeMaxSec=25"])
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "ssh").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$*"\nwhile [ "$1" != node2 ]; do shift; done; shift; eval "$*"\n'
    )
    (fake / "sudo").write_text('#!/bin/sh\nprintf "%s\\n" "$*"\n')
    for file in fake.iterdir():
        file.chmod(0o755)
    environment = {"PATH": f"{fake}:{os.environ['PATH']}"}
    command = [str(wrapper), "-q", "-x", "node2", "proxy", "--port", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    ssh, sudo = done.stdout.splitlines()
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ControlPath=none"):
        assert f"-o {option}" in ssh
    assert "--unit=u-1 --property=RuntimeMaxSec=25 --property=KillSignal=SIGKILL" in sudo
    assert sudo.endswith(f"--uid={os.getuid()} --gid={os.getgid()} -- proxy --port 1")


def test_a_check_is_launched_as_training_is() -> None:
    """What it finds to work must be what a job uses: all but the program and the job's own folders is the same."""
    machines = replace(cluster(3), interface="eth7")
    given = {"id": "check-1", "cluster": to_object(machines), "seconds": 20, "probe": ["sh", "{program}"]}
    checked = launch.launch_of(given, "/h/node.pyz")
    trained = Launch(id="check-1", nodes=machines.nodes, interface="eth7", run_dir="/h/runs/a-1", code="/h/code")
    found = HeadValues(port="20001", interface="eth8", folder="/tmp/f")
    check, training = mpirun.plan(checked, found), mpirun.plan(trained, found)
    assert (check.environment, check.hostfile) == (training.environment, training.hostfile)
    assert check.environment["I_MPI_PIN"] == "0" and "unset LD_PRELOAD" in check.shell
    options, program = split(check.argv)
    of_training, trainer = split(training.argv)
    for name in ("RUN_DIR", "PYTHONPATH"):
        at = of_training.index(name)
        del of_training[at - 1 : at + 2]
    assert options == of_training
    assert program == ["/usr/bin/python3", "-I", "/h/node.pyz", "probe-rank", "--", "sh", "/h/node.pyz"]
    assert trainer[:5] == ["/usr/bin/python3", "-I", "/h/code/launch", "rank", "--"]


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """mpirun's own words, and those of the program."""
    at = argv.index("/usr/bin/python3")
    return argv[:at], argv[at:]


def test_a_check_has_one_rank_a_node_with_all_of_its_cores() -> None:
    machines = replace(cluster(2), nodes=tuple(replace(n, slots=2, cores_per_slot=8) for n in cluster(2).nodes))
    given = {"id": "check-1", "cluster": to_object(machines), "seconds": 20, "probe": ["true"]}
    assert [(n.slots, n.cores_per_slot) for n in launch.launch_of(given, "/p").nodes] == [(1, 16), (1, 16)]


def test_a_probe_runs_in_the_environment_of_a_rank_and_prints_its_own_lines(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "node.main", "probe-rank", "--", "sh", "-c", "echo $GLOO_SOCKET_IFNAME $FROM_NODE"]
    nodes = nodes_to_text([Node(name="node1", private_ip="127.0.0.1")])
    environment = {**os.environ, "TRAINYARD_NODES": nodes, "TRAINYARD_JOB": "check-1", "PMI_RANK": "0"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "lo\n"), done.stderr
