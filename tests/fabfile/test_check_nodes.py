"""`fab check`: a line, and the judgements on made-up facts of the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import cluster

from fabfile.check.node_rules import RULES, differing, verdict
from fabfile.check.verdict import SHOWN, UNREACHED, Fact, Problem, Verdict, judge, next_step, some, summary
from fabfile.remote.ended import WHY
from infra.inventory import SshCluster


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


@given(st.sampled_from(sorted(RULES)), st.integers(1, 5))
def test_a_fact_that_nobody_tells_is_never_a_pass(name: str, count: int) -> None:
    assert judged(name, *[None] * count).level != "pass"


@pytest.mark.parametrize("name", sorted(RULES))
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


@pytest.mark.parametrize("name", sorted(RULES))
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
    assert differing("torch", {"a": "2.8", "b": "2.13"}) == "torch differs: a 2.8, b 2.13"


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
