"""The parts of a managed job's manager: bounds and money, its record and lock, which nodes are lost, where to go."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from fabfile.managed import record as records
from fabfile.managed.bounds import Bounds, spent
from fabfile.managed.places import Place, Places
from fabfile.managed.record import Record
from fabfile.managed.start import Options
from fabfile.managed.watch import CUT_OFF, PATIENCE, SILENT, Seen, Watch

WELL = [Seen("node1", "ready"), Seen("node2", "ready"), Seen("node3", "ready")]
ALL = ("node1", "node2", "node3")


def test_money_is_counted_at_the_price_of_its_time() -> None:
    assert spent([(0.0, 3.0)], 7200.0) == pytest.approx(6.0)
    assert spent([(0.0, 3.0), (3600.0, 12.0)], 5400.0) == pytest.approx(3.0 + 6.0)
    assert spent([(100.0, 3.0)], 50.0) == 0.0, "a clock that goes back gives nothing back"


def test_bounds_say_which_is_reached() -> None:
    bounds = Bounds(max_usd=5.0, max_hours=2.0, tries=3)
    assert bounds.reached(4.99, 1.99) == ""
    assert bounds.reached(5.01, 0.1) == "its nodes have cost $5.01 (--max-usd 5)"
    assert bounds.reached(0.0, 2.0) == "it has run for 2h00m (--max-hours 2)"
    assert bounds.shown() == "at most $5, 2 h, 3 replacements and restarts"
    assert Bounds().reached(1e9, 1e9) == "" and Bounds().shown() == "at most 20 replacements and restarts"


def test_a_record_comes_back_as_it_was(home: Path) -> None:
    record = Record("demo-1", "yard", 3, 1000.0, Bounds(max_usd=7.5), prices=[(1000.0, 3.0)], zones=["use1-az4"])
    record.decide("to be replaced: node2: gone")
    assert records.load("yard", "demo-1") == record and record.bounds.max_hours == math.inf
    assert not list(records.path_of("yard", "demo-1").parent.glob(".*")), "written whole"
    records.forget("yard", "demo-1")
    assert records.load("yard", "demo-1") is None and not records.path_of("yard", "demo-1").parent.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "demo-1"}', '{"bounds": 3, "prices": []}'])
def test_a_damaged_record_is_one_line(text: str, home: Path) -> None:
    path = records.path_of("yard", "demo-1")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(
        Exit, match=r"demo-1\.json: not a managed job's record .*: remove it to manage demo-1 anew"
    ) as one:
        records.load("yard", "demo-1")
    assert one.value.code == 2


def test_a_second_manager_on_this_machine_is_refused_and_hears_who_it_is(home: Path) -> None:
    code = "from fabfile.managed.record import held\nwith held('yard', 'demo-1'): print('held')"
    with records.held("yard", "demo-1"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and f"demo-1 is managed by {records.me()}" in done.stderr
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "held\n"


def test_tries_are_replacements_and_restarts_but_no_moves() -> None:
    record = Record("demo-1", "yard", 3, 0.0, replaced=2, resized=3)
    assert record.tries(1) == 2, "no restart yet"
    assert record.tries(1 + 3 + 4) == 6, "four restarts and three moves"


def test_a_pause_costs_nothing_and_takes_no_time() -> None:
    record = Record("demo-1", "yard", 3, 1000.0, prices=[(1000.0, 3.0), (4600.0, 6.0)])
    usd, hours = record.usd(8200.0), record.hours(8200.0)
    record.pause(0.0, 86400.0)
    assert (record.usd(8200.0 + 86400), record.hours(8200.0 + 86400)) == pytest.approx((usd, hours)) == (9.0, 2.0)


def test_a_machine_that_has_ended_is_lost_at_once() -> None:
    watch = Watch()
    assert watch.lost(WELL, ALL, 0.0) == {}
    seen = [*WELL[:2], Seen("node3", "gone", "its machine has ended")]
    assert watch.lost(seen, ALL, 1.0) == {"node3": "its machine has ended"}


def test_a_silent_node_is_lost_sooner_if_the_job_goes_on_without_it() -> None:
    seen = [*WELL[:2], Seen("node3", "unreachable", "timed out")]
    watch = Watch()
    assert watch.lost(seen, ALL, 0.0) == watch.lost(seen, ALL, SILENT - 1) == {}
    assert watch.lost(seen, ALL, SILENT) == {"node3": "timed out"}
    watch = Watch()
    assert watch.lost(seen, ALL[:2], 0.0) == {} and watch.lost(seen, ALL[:2], CUT_OFF) == {"node3": "timed out"}
    assert watch.lost(WELL, ALL[:2], CUT_OFF + 1) == {}
    assert watch.lost(seen, ALL[:2], CUT_OFF + 2) == {}, "its time begins anew"


def test_nothing_is_lost_while_nothing_answers() -> None:
    """It is then the operator's own network."""
    silent = [Seen(name, "unreachable", "no route") for name in ALL]
    watch = Watch()
    assert watch.lost(silent, ALL, 0.0) == watch.lost(silent, (), 1e6) == {}
    seen = [*silent[:2], Seen("node3", "gone", "ended")]
    assert watch.lost(seen, ALL, 2e6) == {"node3": "ended"}, "this host itself knows that"


def test_a_spot_node_is_lost_when_the_job_has_left_it_and_a_reboot_is_waited_for() -> None:
    taken = [*WELL[:2], Seen("node3", "ready", notice="EC2 takes this Spot node at 12:00:00Z")]
    watch = Watch()
    assert watch.lost(taken, ALL, 0.0) == {}, "it is about to stop with a checkpoint"
    assert watch.lost(taken, ALL[:2], 1.0) == {"node3": "EC2 takes this Spot node at 12:00:00Z"}
    reboot = [*WELL[:2], Seen("node3", "ready", notice="Azure reboots this node now")]
    assert watch.lost(reboot, ALL[:2], 2.0) == {}
    assert watch.lost(reboot, ALL[:2], 2.0 + PATIENCE["booting"]) != {}
    assert not any(node.is_well for node in (taken[2], reboot[2]))


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Seen("node3", "ready", disk="No space left on device"), "its disk cannot be written: No space left on device"),
        (Seen("node3", "failed", "step torch: no room"), "step torch: no room"),
        (Seen("node3", "down", "Slurm: down* (no answer)"), "Slurm: down* (no answer)"),
        (Seen("node3", "not ready"), "it is not ready"),
    ],
)
def test_other_troubles_are_waited_for_in_their_own_time(node: Seen, why: str) -> None:
    watch, kind = Watch(), node.trouble()[0]
    first = watch.lost([*WELL[:2], node], ALL, 0.0)
    assert (first == {}) == (PATIENCE[kind] > 0)
    assert watch.lost([*WELL[:2], node], ALL, PATIENCE[kind]) == {"node3": why}


def test_a_full_disk_on_kubernetes_has_time_to_be_emptied_and_is_then_a_loss() -> None:
    """The kubelet removes images, and takes the condition back five minutes after there is room."""
    watch = Watch()
    seen = [*WELL[:2], Seen("node3", "out of disk", "its disk is full")]
    assert watch.lost(seen, ALL, 0.0) == watch.lost(seen, ALL, 330.0) == {}
    assert watch.lost(seen, ALL, 361.0) == {"node3": "its disk is full"}
    assert watch.lost([seen[2]], ALL, 362.0) == {"node3": "its disk is full"}, "it is the API that answers"


def test_a_cordoned_machine_is_nobodys_loss_and_of_no_use() -> None:
    """Somebody drains it, and takes it back or away; it counts as a node that answers."""
    cordoned = Seen("node3", "cordoned")
    watch = Watch()
    assert watch.lost([*WELL[:2], cordoned], ALL, 0.0) == watch.lost([*WELL[:2], cordoned], ALL[:2], 1e6) == {}
    assert not cordoned.is_well


def test_without_room_it_waits_longer_and_longer_and_then_goes_where_it_may() -> None:
    places = Places.of(["use1-az4"], ["m7i.4xlarge"])
    assert [places.no_room() for _ in range(3)] == [(30.0, None), (60.0, None), (0.0, Place("zone", "use1-az4"))]
    assert places.no_room() == (30.0, None)
    places.room()
    assert [places.no_room() for _ in range(3)][-1] == (0.0, Place("instanceType", "m7i.4xlarge"))
    waits = [places.no_room() for _ in range(8)]
    assert waits[-1] == (600.0, None), "nowhere else: never silently, never more often than that"


def test_decisions_are_json_that_others_can_read(home: Path) -> None:
    record = Record("demo-1", "yard", 3, 0.0, prices=[(0.0, 0.0)])
    record.decide("goes on")
    (one,) = json.loads(records.path_of("yard", "demo-1").read_text())["decisions"]
    assert one.keys() == {"time", "text", "usd"} and one["text"] == "goes on"


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, Bounds(20.0, 5.0, 3)),
        ({"max_usd": 30.0}, Bounds(30.0, 5.0, 3)),
        ({"max_hours": 6.0, "tries": 4}, Bounds(20.0, 6.0, 4)),
    ],
)
def test_a_bound_that_is_not_given_again_stays(given: dict[str, Any], bounds: Bounds) -> None:
    """Who only comes to have a machine made lifts none."""
    nothing: dict[str, Any] = {"max_usd": None, "max_hours": None, "tries": None}
    words: dict[str, Any] = {"stack": "yard", "inventory": "", "detach": False, "every": None, "yes": True}
    chosen = Options(**words, zones="", types="", **{**nothing, **given})
    assert chosen.bounds_after(Bounds(20.0, 5.0, 3)) == bounds


def test_the_time_since_a_jobs_end_is_left_out_once() -> None:
    record = Record("smoke-1", "yard", 3, 1000.0, prices=[(1000.0, 3.0)])
    record.pause(2000.0, 5000.0)
    record.pause(2000.0, 5000.0)
    assert record.began == 4000.0 and record.usd(5000.0) == pytest.approx(3 * 1000 / 3600)
    record.pause(2000.0, 6000.0)
    assert record.began == 5000.0
