"""`fab check`: the judgements on made-up links and launches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import cluster

from fabfile.check import network_rules
from fabfile.check.launch import ProbeRun
from fabfile.check.network_rules import BAD, SLOW, blame, rate, slow
from fabfile.check.preflight import NODE_FACTS
from fabfile.check.verdict import Fact

NAMES = ["node1", "node2", "node3"]

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
    record = {"bytes": 2**24, "seconds": 0.1, "algbw": 3e8, "busbw": 4e8, "wrong": 0}
    return {"event": "result", "rank": 0, "links": FAST, **record, **change}


def test_every_node_that_does_not_say_its_name_is_named() -> None:
    run = ProbeRun(events=[{"event": "hello", "rank": 0, "hostname": "node1"}], failed="not ready in time")
    one = network_rules.mpirun(cluster(), run)
    assert (one.level, one.found) == ("fail", "node2, node3 did not answer to mpirun (not ready in time)")


def test_a_good_network_passes() -> None:
    one = network_rules.network(cluster(), ProbeRun(events=[result()]))
    assert one.level == "pass"
    assert one.found == "6 links 1.0 GB/s to 1.0 GB/s; all-reduce of 16 MiB 300 MB/s (bus 400 MB/s), values right"


def test_wrong_sums_fail() -> None:
    assert network_rules.network(cluster(), ProbeRun(events=[result(wrong=3)])).level == "fail"


def test_links_left_out_are_counted() -> None:
    links = [[None, 1e9, None], [1e9, None, None], [None, None, None]]
    assert "2 of 6 links measured" in network_rules.network(cluster(), ProbeRun(events=[result(links=links)])).found


def test_one_node_has_no_links() -> None:
    one = network_rules.network(cluster(1), ProbeRun(events=[result(links=[[None]])]))
    assert one.level == "pass"
    assert "no links to measure" in one.found


def test_a_silent_rank_is_named_and_not_the_ones_that_complain() -> None:
    events = [
        {"event": "alive", "rank": 1, "phase": "import of torch"},
        {"event": "alive", "rank": 0, "phase": "link node1 -> node2"},
        {"event": "error", "rank": 2, "phase": "waiting for the next link", "error": "Connection closed by peer"},
    ]
    one = network_rules.network(cluster(), ProbeRun(events=events, failed="a rank is silent", silent=[1]))
    assert one.level == "fail"
    assert one.found.startswith("node2 stopped answering during: link node1 -> node2")
    assert "node3" not in one.found


def test_without_a_silent_rank_the_error_is_told_with_names_for_addresses() -> None:
    errors = [
        {"event": "error", "rank": 2, "phase": "waiting for the next link", "error": "closed"},
        {"event": "error", "rank": 0, "phase": "link node1 -> node2", "error": "timed out: 10.0.0.2:4711"},
    ]
    one = network_rules.network(cluster(), ProbeRun(events=errors, failed="a rank failed"))
    assert one.found == "node1 in link node1 -> node2: timed out: node2:4711"


def test_left_overs_are_a_warning() -> None:
    one = network_rules.network(cluster(), ProbeRun(events=[result()], uncleaned={"node2": "no answer"}))
    assert one.level == "warn"
    assert "node2 could not be cleaned up" in one.found


def facts(**change: Any) -> dict[str, Fact]:
    found = {name: Fact(name, values={node: {"missing": []} for node in NAMES}) for name in NODE_FACTS}
    return {
        **found,
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
    run = ProbeRun(failed="silent for 20 s", uncleaned={"node3": "no answer in 10 s"})
    assert network_rules.network(cluster(), run).found.startswith("node3 stopped answering before the start")
    assert network_rules.mpirun(cluster(), run).mend == "fab ssh node3"
