"""`fab check` on GPUs: what nccl-tests and NCCL print is read, and the judgement on it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fabfile.check import gpu_rules, launch, network_rules, preflight
from fabfile.check.launch import ProbeRun
from fabfile.check.verdict import Fact, Verdict
from infra.inventory import Node, SshCluster, to_object
from node import launcher
from node.job import cleanup
from node.probes import nccl, nccl_output

# --- what is printed, as people quoted it ---

EFA_2025 = """
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Skipping NCCL_PROTO checks on P5en + RDMA
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
8h200-2:14630:14695 [1] NCCL INFO Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA
"""
"""https://github.com/NVIDIA/nccl/issues/1597, two p5en"""
TCP_PROVIDER_2019 = """
# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 2 validation: 1
#   Rank  0 Pid  25604 on ip-192-168-16-255 device  0 [0x00] Tesla V100-SXM2-32GB
#   Rank  1 Pid  24447 on ip-192-168-29-243 device  0 [0x00] Tesla V100-SXM2-32GB
ip-192-168-16-255:25604:25604 [0] NCCL INFO NET/Socket : Using [0]eth0:192.168.16.255<0>
ip-192-168-16-255:25604:25604 [0] NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm
NCCL version 2.4.6+cuda10.0
"""
"""https://github.com/NVIDIA/nccl/issues/229, two p3dn whose EFA was not found"""
SOCKET_2024 = """
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO NET/IB : No device found.
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO NET/Socket : Using [0]ens7:10.128.0.32<0>
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO Using network Socket
"""
"""https://github.com/NVIDIA/nccl/issues/1267"""
P2P_2021 = """
ip-172-31-6-104:9922:9980 [1] NCCL INFO Channel 01 : 9[101d0] -> 8[101c0] via P2P/IPC/read
ip-172-31-13-103:9738:9797 [0] NCCL INFO Channel 01 : 9[101d0] -> 0[101c0] [receive] via NET/AWS Libfabric/0
"""
"""https://github.com/aws/aws-ofi-nccl/issues/64"""
TABLE_2020 = """
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float     sum   1035.3    1.01    1.90  5e-07    643.4    1.63    3.06  5e-07
     2097152        524288   float     sum    671.4    3.12    5.86  5e-07    671.8    3.12    5.85  5e-07
     4194304       1048576   float     sum   1140.5    3.68    6.90  5e-07   1144.3    3.67    6.87  5e-07
"""
"""https://github.com/aws/aws-ofi-nccl/issues/33, two p3dn"""
TABLE_2024 = """
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     2097152        524288     float    none      -1   303.15    6.92    6.49       0   300.00    6.99    6.55    N/A
     1048576        262144     float    none      -1   212.76    2.46    2.31       0   223.82    2.34    2.20    N/A
# Out of bounds values : 0 OK
"""
"""The form of https://github.com/bottlerocket-os/bottlerocket-kernel-kit/pull/313"""


@pytest.mark.parametrize(
    ("text", "network", "provider", "over_efa"),
    [
        (EFA_2025, "Libfabric", "efa", True),
        (TCP_PROVIDER_2019, "Socket", "tcp;ofi_rxm", False),
        (SOCKET_2024, "Socket", "", False),
        ("", "", "", False),
    ],
    ids=["efa", "tcp under libfabric", "sockets", "nothing"],
)
def test_nccl_says_which_network_it_uses(text: str, network: str, provider: str, over_efa: bool) -> None:
    found = nccl_output.parse(text.splitlines())
    assert (found["network"], found["provider"]) == (network, provider)
    assert gpu_rules.over_efa(found) == over_efa
    assert over_efa or gpu_rules.network(found).startswith(("TCP (", "NCCL did not say"))


def test_the_bandwidth_is_that_of_the_largest_size() -> None:
    old, new = (nccl_output.parse(text.splitlines()) for text in (TABLE_2020, TABLE_2024))
    assert (old["size"], old["bus"], old["algorithm"], old["wrong"]) == (4194304, 6.90e9, 3.68e9, 0)
    assert (new["size"], new["bus"], new["wrong"]) == (2097152, 6.55e9, 0)
    assert nccl_output.parse(["# nothing"])["bus"] is None


def test_wrong_sums_and_ways_between_gpus_are_read() -> None:
    row = " 8388608 2097152 float sum -1 900.0 9.32 17.5 3 900.0 9.32 17.5 4"
    found = nccl_output.parse([row, *P2P_2021.splitlines(), "n1:1:2 [0] init.cc:9 NCCL WARN Cuda failure 'no device'"])
    assert (found["wrong"], found["ways"], found["warning"]) == (7, ["NET", "P2P"], "Cuda failure 'no device'")


# --- the judgement ---


def cluster(count: int = 2, **changed: Any) -> SshCluster:
    facts = {"gpus": 8, "slots": 8, "gpu_architecture": "sm_70", "efa_cards": 1, "efa_gbps": 100.0}
    facts |= {"nvlink_gb_per_s": 150.0, **changed}
    roles = ["head", *["worker"] * (count - 1)]
    nodes = tuple(
        Node(name=f"node{i + 1}", private_ip=f"10.0.0.{i + 1}", role=role, **facts)  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    )
    return SshCluster(name="yard", nodes=nodes)


def event(*names: str, bus: float | None, **more: Any) -> dict[str, Any]:
    found = nccl_output.parse(EFA_2025.splitlines()) | {"event": "nccl", "nodes": list(names), "bus": bus}
    return {**found, "ways": ["P2P"], **more}


def judged(*events: dict[str, Any], of: SshCluster | None = None) -> Verdict:
    return gpu_rules.nccl(of or cluster(), ProbeRun(events=list(events)))


def test_a_p3dn_that_is_well() -> None:
    one = judged(*(event(name, bus=130e9) for name in ("node1", "node2")), event("node1", "node2", bus=11.2e9))
    assert one.level == "pass"
    assert one.found == "within a node bus 130 GB/s; all-reduce over 16 GPUs bus 11.2 GB/s; over EFA; by nccl-tests"


@pytest.mark.parametrize(
    ("provider", "network", "why"),
    [
        ("tcp;ofi_rxm", "Socket", "EFA is off: TCP (libfabric's provider is tcp;ofi_rxm), 3.1 GB/s of 12.5 GB/s"),
        ("", "Socket", "EFA is off: TCP (NCCL uses its sockets), 3.1 GB/s of 12.5 GB/s"),
        ("", "", "EFA is off: NCCL did not say which network it uses"),
    ],
)
def test_efa_that_is_off_is_said(provider: str, network: str, why: str) -> None:
    one = judged(event("node1", "node2", bus=3.1e9, provider=provider, network=network))
    assert one.level == "fail" and f"all 2 nodes: {why}" in one.found
    assert "fi_info -p efa" in one.mend and "security group" in one.mend


def test_without_efa_in_the_machine_tcp_is_no_fault() -> None:
    g5 = cluster(gpus=1, slots=1, efa_cards=0, efa_gbps=0.0, nvlink_gb_per_s=0.0)
    one = judged(event("node1", "node2", bus=1.1e9, provider="", network="Socket"), of=g5)
    assert (one.level, one.found) == (
        "pass",
        "all-reduce over 2 GPUs bus 1.1 GB/s; over TCP (these machines have no EFA); by nccl-tests",
    )


def test_nvlink_that_is_off_or_slow_is_said() -> None:
    assert "NVLink is off" in judged(event("node1", bus=9e9, ways=["SHM"])).found
    assert judged(event("node1", bus=40e9)).level == "warn" and judged(event("node1", bus=9e9)).level == "fail"


def test_a_slow_pair_is_named_and_what_failed_is_told() -> None:
    three = cluster(3)
    one = judged(
        *(event("node1", "node2", bus=11e9), event("node2", "node3", bus=1.0e9), event("node1", "node3", bus=10e9)),
        of=three,
    )
    assert one.level == "fail" and one.found.startswith("node2, node3: slow over EFA: 1.0 GB/s of 12.5 GB/s")
    broken = judged(
        event("node1", "node2", bus=None, failed="Cuda failure 'no device'"), event("node1", bus=None, failed="x")
    )
    assert broken.level == "fail" and "all 2 nodes: Cuda failure 'no device'" in broken.found
    absent = judged(event("node1", bus=None, failed="sh: 1: /opt/trainyard/nccl-tests/all_reduce_perf: not found"))
    assert "trainyard-bootstrap" in absent.mend
    assert "the sum is wrong in 3 places" in judged(event("node1", bus=130e9, wrong=3)).found


# --- the probe on the head: a real process prints what nccl-tests prints ---


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """The nodes and the unit of each launch."""
    made: list[tuple[list[str], str]] = []

    def start(_launcher: str, launched: Any, _folder: Any, unit: str, _properties: Sequence[str]) -> Any:
        made.append(([node.name for node in launched.nodes], unit))
        text = EFA_2025 + TABLE_2020 if len(launched.nodes) > 1 else "mpirun: cannot open file"
        code = f"import sys; sys.stdout.write({text!r}); sys.exit({int(len(launched.nodes) == 1)})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    monkeypatch.setattr(launcher, "start", start)
    monkeypatch.setattr(nccl, "end_with_stdin", lambda _unit: None)
    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def probe(monkeypatch: pytest.MonkeyPatch, of: SshCluster, **more: Any) -> None:
    spec = {"id": "check-1", "cluster": to_object(of), "seconds": 60, "pair_seconds": 30, **more}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(spec) + "\n"))
    nccl.main([])


def test_nodes_all_and_pairs_are_measured(
    started: list[tuple[list[str], str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(monkeypatch, cluster(3))
    found = lines(capsys)
    assert found[-1] == {"event": "end"}
    each = [entry["nodes"] for entry in found[:-1]]
    assert sorted(each[:3]) == [["node1"], ["node2"], ["node3"]]
    assert each[3:] == [["node1", "node2", "node3"], ["node1", "node2"], ["node2", "node3"], ["node1", "node3"]]
    assert found[0]["failed"] == "mpirun: cannot open file"
    assert (found[3]["bus"], found[3]["provider"]) == (6.9e9, "efa") and "failed" not in found[3]
    units = [unit for _, unit in started]
    assert len(set(units)) == 7 and all(unit.startswith("trainyard-check-1-") for unit in units)


def test_pairs_without_time_are_left_out_but_never_the_whole(
    started: list[tuple[list[str], str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(monkeypatch, cluster(3, slots=1, gpus=1), seconds=0)
    assert [entry.get("nodes") for entry in lines(capsys)] == [["node1", "node2", "node3"], None]


def test_a_measurement_that_hangs_ends_in_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held: list[Any] = []

    def start(*_: Any) -> Any:
        held.append(subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE))
        return held[-1]

    monkeypatch.setattr(launcher, "start", start)
    monkeypatch.setattr(nccl, "end_with_stdin", lambda _unit: None)
    monkeypatch.setattr(cleanup, "kill", lambda _unit: held[-1].kill())
    probe(monkeypatch, cluster(2, slots=1, gpus=1), pair_seconds=0.3)
    assert lines(capsys)[0]["failed"] == "no result in 0 s"


ALL_REDUCE = """#!{python}
import json, os, sys
print(json.dumps({{"argv": sys.argv[1:], "environment": dict(os.environ)}}))
"""
"""In nccl-tests' place: says what it was started with."""


@pytest.mark.parametrize(
    ("written", "libraries"),
    [("LD_LIBRARY_PATH=/torch/nccl/lib:/cuda/lib64\n", "/torch/nccl/lib:/cuda/lib64:/efa/lib"), (None, "/efa/lib")],
)
def test_nccl_tests_are_started_with_their_libraries_and_say_what_nccl_uses(
    written: str | None, libraries: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text(ALL_REDUCE.format(python=sys.executable))
    program.chmod(0o755)
    if written is not None:
        (tmp_path / "environment").write_text(written)  # as bootstrap/cuda's step writes it
    monkeypatch.setattr(nccl, "TESTS", tmp_path)
    monkeypatch.setattr(nccl, "PROGRAM", program)
    before = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/efa/lib", "FI_PROVIDER": "efa", "NCCL_DEBUG": "WARN"}
    done = subprocess.run(nccl.command(), env=before, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    given = {name: value for name, value in found["environment"].items() if name not in ("PATH", "PWD", "LC_CTYPE")}
    assert given == {
        "LD_LIBRARY_PATH": libraries,
        "FI_PROVIDER": "efa",  # NCCL's, as of the plan; MPI's own is TCP
        "I_MPI_OFI_LIBRARY_INTERNAL": "0",
        "I_MPI_OFI_PROVIDER": "tcp",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
    }
    words = dict(zip(found["argv"][::2], found["argv"][1::2], strict=True))
    assert words == {"-b": "64M", "-e": "256M", "-f": "2", "-n": "10", "-w": "3", "-g": "1", "-c": "1"}


def test_only_a_cluster_of_gpus_is_checked_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(_self: Any) -> Iterator[Fact]:
        return iter([])

    ok = Verdict("x", "pass", "well")
    monkeypatch.setattr(preflight.Collector, "facts", facts)
    monkeypatch.setattr(network_rules, "blocked", lambda *_: None)
    for name, what in (("hello", "mpirun"), ("network", "network")):
        monkeypatch.setattr(launch, name, lambda *_: ProbeRun())
        monkeypatch.setattr(network_rules, what, lambda *_: ok)
    monkeypatch.setattr(launch, "nccl", lambda *_: ProbeRun(events=[event("node1", bus=130e9)]))
    assert [one.check for one in preflight.verdicts_of(cluster(), None)] == ["x", "x", "nccl"]  # type: ignore[arg-type]
    assert len(list(preflight.verdicts_of(cluster(gpus=0), None))) == 2  # type: ignore[arg-type]
