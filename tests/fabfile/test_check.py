"""`fab check`: the judgements on made-up facts, the probes on this machine, the strictness of what is network_rules."""

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
from hypothesis import given
from hypothesis import strategies as st

from fabfile.check import network_rules
from fabfile.check.launch import Run
from fabfile.check.network_rules import BAD, SLOW, blame, rate, slow
from fabfile.check.node_rules import differing
from fabfile.check.observations import NODE_FACTS, UNREACHED, Fact
from fabfile.check.preflight import JUDGES, verdict
from fabfile.check.verdict import SHOWN, Problem, Verdict, judge, next_step, some, summary
from fabfile.launchers import Found, Launch, mpirun, nodes_to_text
from fabfile.remote.ended import WHY
from infra.inventory import Node, SshCluster, to_object
from node import scope
from node.probes import launch, peers

ROOT = Path(__file__).resolve().parents[2]

NAMES = ["node1", "node2", "node3"]


def cluster(count: int = 3, **settings: Any) -> SshCluster:
    nodes = [
        Node(name=f"node{i}", private_ip=f"10.0.0.{i}", role="head" if i == 1 else "worker", **settings)
        for i in range(1, count + 1)
    ]
    return SshCluster(name="test", nodes=tuple(nodes))


def judged(name: str, *values: Any, of: SshCluster | None = None) -> Verdict:
    """The verdict on a fact that node1, node2 ... told; None: that node was not reached."""
    fact = Fact(name)
    for index, value in enumerate(values, 1):
        if value is None:
            fact.missing[f"node{index}"] = UNREACHED
        else:
            fact.values[f"node{index}"] = value
    return verdict(of or cluster(len(values)), fact)


# --- a line ---


def test_line_has_level_check_finding_and_mend() -> None:
    assert Verdict("ssh", "fail", "a ->\n b: no", "fab wait").line() == "fail  ssh         a -> b: no; mend: fab wait"


@pytest.mark.parametrize(("level", "mend"), [("pass", "fab wait"), ("warn", ""), ("fail", "")])
def test_trouble_has_a_mend_and_only_trouble(level: Any, mend: str) -> None:
    with pytest.raises(ValueError, match="ssh"):
        Verdict("ssh", level, "found", mend)


def test_worst_problem_makes_the_level_and_the_mend() -> None:
    one = judge("disk", [Problem("warn", "w", "mend w"), Problem("fail", "f", "mend f")], "good")
    assert (one.level, one.found, one.mend) == ("fail", "f; w", "mend f")


@given(st.lists(st.text("ab", min_size=1), max_size=40))
def test_some_names_or_counts_every_text(texts: list[str]) -> None:
    shown = some(texts)
    more = len(texts) - SHOWN
    assert shown == ("; ".join(texts) if more <= 1 else "; ".join(texts[:SHOWN]) + f"; and {more} more")


def test_summary_counts_and_next_step_is_the_first_failure() -> None:
    verdicts = [
        Verdict("a", "pass", ""),
        Verdict("b", "warn", "", "w"),
        Verdict("c", "fail", "", "f"),
        Verdict("d", "fail", "", "g"),
    ]
    assert summary(verdicts, 3.21) == "1 pass, 1 warn, 2 fail in 3.2 s"
    assert next_step(verdicts) == "f"
    assert next_step(verdicts[:2]) == "fab run hostname"


# --- facts ---


@given(st.sampled_from(sorted(JUDGES)), st.integers(1, 5))
def test_a_fact_that_nobody_tells_is_never_a_pass(name: str, count: int) -> None:
    assert judged(name, *[None] * count).level != "pass"


@pytest.mark.parametrize("name", sorted(JUDGES))
def test_a_node_that_falls_silent_is_named(name: str) -> None:
    fact = Fact(name, missing={"node1": "the connection broke", "node2": "the connection broke"})
    fact.values = {"node3": GOOD[name]}
    one = verdict(cluster(), fact)
    assert one.level == "fail"
    assert "node1: the connection broke" in one.found


GOOD: dict[str, Any] = {
    "reach": {},
    "clock": (0.01, 0.02),
    "record": {
        "state": "ready",
        "kernel": "6.1",
        "os": "Debian",
        "content": {"image": "k", "profile": "native", "versions": {"torch": "2.13"}},
    },
    "disk": {"/": {"free_gb": 50.0, "total_gb": 99.0, "inodes_free": 0.9, "writable": True}},
    "memory": {"total_gb": 8.0, "available_gb": 7.0},
    "tcmalloc": {"loaded": True, "library": "/usr/lib/libtcmalloc_minimal.so.4"},
    "cpu": {"model": "Xeon", "amx_bf16": True, "avx512_bf16": True, "bf16": True},
    "names": {"hostname": "node1", "wrong": {}},
    "ports": {"port": 20001, "error": "", "wrong": {}},
    "ssh": {"wrong": {}},
}


@pytest.mark.parametrize("name", sorted(JUDGES))
def test_good_facts_pass_and_say_how_many_nodes(name: str) -> None:
    values = [{**GOOD[name], "hostname": f"node{i}"} if name == "names" else GOOD[name] for i in (1, 2, 3)]
    one = judged(name, *values)
    assert one.level == "pass"
    assert "all 3 nodes" in one.found
    if name != "reach":
        assert "2 of 3 nodes" in judged(name, *values[:2], None).found


def changed(name: str, **change: Any) -> dict[str, Any]:
    return {**GOOD[name], **change}


def root(**change: Any) -> dict[str, Any]:
    return {"/": {**GOOD["disk"]["/"], **change}}


def record(**change: Any) -> dict[str, Any]:
    return changed("record", content={**GOOD["record"]["content"], **change})


FAILED = changed("record", state="failed", content={"step": "torch", "reason": "no wheel"})
CPU_NONE = {"model": "Xeon", "amx_bf16": False, "avx512_bf16": False, "bf16": False}


@pytest.mark.parametrize(
    ("name", "odd", "level", "found"),
    [
        ("record", record(versions={"torch": "2.8"}), "fail", "node3 has torch 2.8, the others 2.13"),
        ("record", record(image="other"), "fail", "node3 has image other, the others k"),
        ("record", changed("record", kernel="6.2"), "fail", "node3 has kernel 6.2, the others 6.1"),
        ("record", record(versions={}), "fail", "node3 has torch none, the others 2.13"),
        ("record", {"state": "none", "kernel": "6.1", "os": "Debian"}, "warn", "node3 has no ready record"),
        ("record", FAILED, "fail", "node3: bootstrap failed in step torch: no wheel"),
        ("record", changed("record", state="broken", reason="no JSON", content={}), "fail", "node3: no JSON"),
        ("disk", root(free_gb=3.0), "warn", "node3: 3.0 GiB free in /"),
        ("disk", root(free_gb=0.2), "fail", "node3: 0.2 GiB free in /"),
        ("disk", root(inodes_free=0.001), "fail", "node3: 0% of the inodes free in /"),
        ("disk", {"/": {"error": "/: gone"}}, "fail", "node3: shared_dir /: gone"),
        ("memory", changed("memory", available_gb=0.4), "warn", "node3: 0.40 GiB of memory available"),
        ("memory", changed("memory", available_gb=0.1), "fail", "node3: 0.10 GiB of memory available"),
        ("tcmalloc", {"loaded": False, "reason": "no file"}, "fail", "node3: no file"),
        ("cpu", CPU_NONE, "fail", "node3 has bf16 in emulation, the others amx_bf16+avx512_bf16"),
        ("cpu", changed("cpu", amx_bf16=False), "warn", "node3 has bf16 in avx512_bf16"),
        ("cpu", changed("cpu", model="EPYC"), "warn", "node3 has processor EPYC, the others Xeon"),
        ("clock", (3.0, 0.1), "warn", "node3 is 3.0 s ahead"),
        ("clock", (-9.0, 0.1), "fail", "node3 is 9.0 s behind"),
        ("clock", (0.9, 0.8), "warn", "node3 is too slow to answer"),
        ("ssh", {"wrong": {"node1": "the host key is not known"}}, "fail", "node3 -> node1: the host key is not known"),
        ("ports", {"port": 1, "error": "", "wrong": {"node2": "dropped"}}, "fail", "node3 -> node2: dropped"),
        ("ports", {"port": 0, "error": "nothing to bind", "wrong": {}}, "fail", "node3: nothing to bind"),
        ("names", {"hostname": "node3", "wrong": {"node1": "is 127.0.1.1"}}, "fail", "node3 looks node1 up: is 127."),
        ("names", {"hostname": "ip-10-0-0-3", "wrong": {}}, "warn", "node3 calls itself ip-10-0-0-3"),
    ],
)  # fmt: skip
def test_the_odd_node_is_named(name: str, odd: Any, level: str, found: str) -> None:
    usual = [{**GOOD[name], "hostname": f"node{i}"} if name == "names" else GOOD[name] for i in (1, 2)]
    one = judged(name, *usual, odd)
    assert (one.level, one.found[: len(found)]) == (level, found)
    assert "node1" not in one.found.replace(found, "")


def test_a_node_unlike_another_without_a_majority() -> None:
    assert differing("torch", {"2.8": ["a"], "2.13": ["b"]}) == "torch differs: a 2.8, b 2.13"


def test_bf16_emulated_everywhere_is_a_warning_and_with_gpus_none() -> None:
    one = judged("cpu", CPU_NONE, CPU_NONE)
    assert (one.level, one.found) == ("warn", "bf16 is emulated (slower than fp32): precision auto will choose fp32")
    assert judged("cpu", CPU_NONE, CPU_NONE, of=cluster(2, gpus=8)).level == "pass"


def test_the_operators_clock_is_judged_against_the_nodes() -> None:
    assert judged("clock", (7.0, 0.1), (7.1, 0.1)).found == "the nodes are 7.0 s ahead against this machine (+-0.10 s)"


def test_a_node_that_nobody_reaches_is_named_once() -> None:
    values = [{"wrong": {"node3": "refused"}}, {"wrong": {"node3": "refused"}}, {"wrong": {}}]
    assert judged("ssh", *values).found == "every other node -> node3: refused"


def test_a_node_whose_machine_has_ended_is_made_anew() -> None:
    one = verdict(cluster(2), Fact("reach", {"node1": {}}, {"node2": f"node2: {WHY}"}))
    assert (one.level, one.found, one.mend) == ("fail", f"node2: {WHY}", "fab up")


def test_less_memory_than_the_inventory_says() -> None:
    one = judged("memory", GOOD["memory"], of=cluster(1, memory_gb=64.0))
    assert (one.level, one.found) == ("warn", "node1 has 8.0 GiB of memory, the inventory says 64.0")


# --- links ---


@st.composite
def matrices(draw: st.DrawFn, least: int = 2) -> list[list[float | None]]:
    """Links of a healthy network: none below SLOW of the best."""
    count = draw(st.integers(least, 9))
    speed = st.floats(0.5e9, 1e9)
    return [[None if r == s else draw(speed) for r in range(count)] for s in range(count)]


@given(matrices())
def test_a_healthy_network_has_no_slow_link(links: list[list[float | None]]) -> None:
    assert slow(links) == {}


@given(matrices(least=3), st.data(), st.floats(0.001, SLOW * 0.49))
def test_one_slow_link_is_named_and_no_other(links: list[list[float | None]], data: st.DataObject, part: float) -> None:
    names = [f"n{i}" for i in range(len(links))]
    sender, receiver = data.draw(st.permutations(range(len(links))))[:2]
    links[sender][receiver] = part * 1e9
    assert list(slow(links)) == [(sender, receiver)]
    assert blame(links, names) == [f"n{sender} -> n{receiver}"]
    (problem,) = network_rules.slow_links(names, links)
    assert (f"slow: n{sender} -> n{receiver}: ") in problem.text
    assert problem.level == "fail" or part * 1e9 >= BAD * 0.5e9


@given(matrices(least=3), st.data(), st.sampled_from(["sending", "receiving", ""]))
def test_a_slow_node_is_named_with_its_direction(
    links: list[list[float | None]], data: st.DataObject, way: str
) -> None:
    count = len(links)
    node = data.draw(st.integers(0, count - 1))
    for other in set(range(count)) - {node}:
        if way in ("sending", ""):
            links[node][other] = 1e6 + other
        if way in ("receiving", ""):
            links[other][node] = 1e6 + other
    (culprit,) = blame(links, [f"n{i}" for i in range(count)])
    assert culprit.startswith(f"n{node} {way} (" if way else f"n{node} (to and from ")


def healthy(count: int) -> list[list[float | None]]:
    return [[None if r == s else 1e9 for r in range(count)] for s in range(count)]


def with_slow(count: int, *pairs: tuple[int, int]) -> list[list[float | None]]:
    links = healthy(count)
    for place, (sender, receiver) in enumerate(pairs):
        links[sender][receiver] = 1e6 * (place + 1)
    return links


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([(0, 1), (2, 3)], ["a -> b", "c -> d"]),
        ([(0, 1), (1, 0)], ["a -> b", "b -> a"]),
        ([(0, 1), (0, 2)], ["a sending (to b, c)"]),
        # A slow node, and a link that it does not explain.
        ([(0, 3), (1, 3), (2, 3), (4, 3), (0, 1)], ["d receiving (from a, b, c, e)", "a -> b"]),
        # Two slow nodes.
        (
            [(0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 4)],
            ["a sending (to b, c, d, e)", "e receiving (from b, c, d)"],
        ),
    ],
)  # fmt: skip
def test_who_is_to_blame(pairs: list[tuple[int, int]], named: list[str]) -> None:
    assert blame(with_slow(5, *pairs), "abcde") == named


def test_between_machines_of_one_host_no_link_is_slow() -> None:
    assert slow([[None, 5e9], [0.7e9, None]]) == {}
    assert slow([[None, 5e9], [0.5e9, None]]) == {(1, 0): 0.5e9}


def test_links_that_were_not_measured_are_not_slow() -> None:
    assert slow([[None, 1e9, None], [1e9, None, None], [None, None, None]]) == {}


@pytest.mark.parametrize(
    ("value", "text"), [(1.234e9, "1.2 GB/s"), (1.5e8, "150 MB/s"), (7.7e6, "7.7 MB/s"), (12, "12 B/s")]
)
def test_rate(value: float, text: str) -> None:
    assert rate(value) == text


# --- what was launched ---

FAST: list[list[float | None]] = [[None, 1e9, 1e9], [1e9, None, 1e9], [1e9, 1e9, None]]


def result(**change: Any) -> dict[str, Any]:
    whole = {"bytes": 2**24, "seconds": 0.1, "algbw": 3e8, "busbw": 4e8, "wrong": 0}
    return {"event": "result", "rank": 0, "links": FAST, **whole, **change}


def test_every_node_that_does_not_say_its_name_is_named() -> None:
    run = Run(events=[{"event": "hello", "rank": 0, "hostname": "node1"}], failed="not ready in time")
    one = network_rules.mpirun(cluster(), run)
    assert (one.level, one.found) == ("fail", "node2, node3 did not answer to mpirun (not ready in time)")


def test_a_good_network_passes() -> None:
    one = network_rules.network(cluster(), Run(events=[result()]))
    assert one.level == "pass"
    assert one.found == "6 links 1.0 GB/s to 1.0 GB/s; all-reduce of 16 MiB 300 MB/s (bus 400 MB/s), values right"


def test_wrong_sums_fail() -> None:
    assert network_rules.network(cluster(), Run(events=[result(wrong=3)])).level == "fail"


def test_links_left_out_are_counted() -> None:
    links = [[None, 1e9, None], [1e9, None, None], [None, None, None]]
    assert "2 of 6 links measured" in network_rules.network(cluster(), Run(events=[result(links=links)])).found


def test_one_node_has_no_links() -> None:
    one = network_rules.network(cluster(1), Run(events=[result(links=[[None]])]))
    assert one.level == "pass"
    assert "no links to measure" in one.found


def test_a_silent_rank_is_named_and_not_the_ones_that_complain() -> None:
    events = [
        {"event": "alive", "rank": 1, "phase": "import of torch"},
        {"event": "alive", "rank": 0, "phase": "link node1 -> node2"},
        {"event": "error", "rank": 2, "phase": "waiting for the next link", "error": "Connection closed by peer"},
    ]
    one = network_rules.network(cluster(), Run(events=events, failed="a rank is silent", silent=[1]))
    assert one.level == "fail"
    assert one.found.startswith("node2 stopped answering during: link node1 -> node2")
    assert "node3" not in one.found


def test_without_a_silent_rank_the_error_is_told_with_names_for_addresses() -> None:
    errors = [
        {"event": "error", "rank": 2, "phase": "waiting for the next link", "error": "closed"},
        {"event": "error", "rank": 0, "phase": "link node1 -> node2", "error": "timed out: 10.0.0.2:4711"},
    ]
    one = network_rules.network(cluster(), Run(events=errors, failed="a rank failed"))
    assert one.found == "node1 in link node1 -> node2: timed out: node2:4711"


def test_left_overs_are_a_warning() -> None:
    one = network_rules.network(cluster(), Run(events=[result()], left_over={"node2": "no answer"}))
    assert one.level == "warn"
    assert "node2 could not be cleaned up" in one.found


def facts(**change: Any) -> dict[str, Fact]:
    told = {name: Fact(name, values={node: {"missing": []} for node in NAMES}) for name in NODE_FACTS}
    return {
        **told,
        "reach": Fact("reach"),
        "ssh": Fact("ssh", values={node: {"wrong": {}} for node in NAMES}),
        **change,
    }


def test_nothing_is_launched_where_it_cannot_work() -> None:
    assert network_rules.blocked("mpirun", cluster(), facts()) is None
    bare = Fact("launch", values={"node1": {"missing": []}, "node2": {"missing": ["torch", "mpirun"]}})
    one = network_rules.blocked("mpirun", cluster(), facts(launch=bare))
    assert one and (one.level, one.found) == ("fail", "node2 has no torch, no mpirun")
    cut = Fact("ssh", values={"node1": {"wrong": {"node3": "refused"}}, "node2": {"wrong": {}}})
    one = network_rules.blocked("mpirun", cluster(), facts(ssh=cut))
    assert one and (one.level, one.found) == ("warn", "not tried: SSH between the nodes is broken")
    one = network_rules.blocked("mpirun", cluster(), facts(reach=Fact("reach", missing={"node3": "no answer"})))
    assert one and (one.level, one.found) == ("warn", "not tried without node3")


def test_a_node_that_is_cut_off_before_anything_started_is_named() -> None:
    run = Run(failed="silent for 20 s", left_over={"node3": "no answer in 10 s"})
    assert network_rules.network(cluster(), run).found.startswith("node3 stopped answering before the start")
    assert network_rules.mpirun(cluster(), run).mend == "fab ssh node3"


# --- probes ---


def ask(name: str, spec: dict[str, Any], until: str) -> dict[str, Any]:
    """Run a probe here as a node would, up to one of its facts."""
    command = [sys.executable, "-m", "node.main", name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        told = {}
        for line in process.stdout:
            event = json.loads(line)
            told[event["fact"]] = event["value"]
            if event["fact"] == until:
                break
        process.stdin.close()
        process.wait(timeout=10)  # the end of stdin is its end
    return told


def test_the_node_probe_tells_every_fact(tmp_path: Path) -> None:
    told = ask("facts", {"shared_dir": str(tmp_path / "gone"), "memory_gb": 1.5}, "launch")
    assert set(told) == set(NODE_FACTS)
    assert told["disk"]["/"]["total_gb"] > 0
    assert "No such file" in told["disk"][str(tmp_path / "gone")]["error"]
    assert told["memory"]["available_gb"] > 0


def test_the_peers_probe_ends_when_the_operator_is_gone() -> None:
    spec = {"name": "me", "token": "t", "ports": [free_port()], "peers": [{"name": "me", "ip": "127.0.0.1"}]}
    told = ask("peers", spec, "ssh")
    assert told["ports"] == {"port": spec["ports"][0], "error": "", "wrong": {}}
    assert told["ssh"] == {"wrong": {}}


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
    found = Found(port="20001", interface="eth8", folder="/tmp/f")
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
