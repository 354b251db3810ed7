"""bootstrap.sh under a root of its own: which steps run, and which record they leave."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from bootstrap_runner import SETTINGS, Machine


@pytest.mark.parametrize("mistake", ["false", "false | true", 'echo "$NOT_SET"'])
def test_a_step_stops_at_its_first_error(machine: Machine, mistake: str) -> None:
    (machine.root / "bootstrap/steps/image/10-first").write_text(f"{mistake}\necho went on\n")
    assert machine.boot().returncode == 1
    assert machine.record("failed")["step"] == "first"
    assert "went on" not in (machine.root / "var/log/trainyard-bootstrap.log").read_text()


def test_steps_run_in_order_and_leave_a_ready_record(machine: Machine) -> None:
    done = machine.boot()
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [(step, state) for step in ("first", "second", "third") for state in ("start", "done")]
    assert machine.events() == expected
    ready = machine.record("ready")
    assert ready["node"] == "node1"
    assert ready["image"] == "key-1"
    versions, seconds, cpu = ready["versions"], ready["seconds"], ready["cpu"]
    assert isinstance(versions, dict) and isinstance(seconds, dict) and isinstance(cpu, dict)
    assert versions["torch"] == "2.13.0"
    assert versions["kernel"] == os.uname().release
    assert list(seconds) == ["first", "second", "third"]
    assert 1 <= cpu["cores"] <= cpu["threads"]
    assert cpu["numa_nodes"] >= 1
    assert isinstance(cpu["amx"], bool) and isinstance(cpu["avx512_bf16"], bool)
    assert "three" in (machine.root / "var/log/trainyard-bootstrap.log").read_text()


def test_second_boot_runs_the_node_part_alone(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    assert machine.boot().returncode == 0
    assert machine.events() == [("third", "start"), ("third", "done")]
    assert machine.boot(TRAINYARD_IMAGE="key-2").returncode == 0
    assert machine.record("ready")["image"] == "key-2"
    assert ("first", "done") in machine.events()


def test_bake_runs_the_image_part_alone(machine: Machine) -> None:
    assert machine.boot(TRAINYARD_MODE="bake").returncode == 0
    assert [step for step, _ in machine.events()] == ["first"] * 2 + ["second"] * 2
    assert machine.record("ready")["mode"] == "bake"


def test_failing_step_is_named_with_its_reason_and_log(machine: Machine) -> None:
    machine.step("image/20-second", 'for i in {1..30}; do echo "line $i"; done; ls "/no/such \\"thing\\""')
    done = machine.boot()
    assert done.returncode == 1
    assert "failed in step second" in done.stdout
    failed = machine.record("failed")
    assert (failed["node"], failed["mode"], failed["step"]) == ("node1", "both", "second")
    reason, log = failed["reason"], failed["log"]
    assert isinstance(reason, str) and isinstance(log, list)
    assert "No such file" in reason and "exit code 2" in reason and "\n" not in reason
    assert len(log) == 20 and "line 30" in log
    assert machine.events()[-1] == ("second", "failed")
    assert not (machine.root / "opt/trainyard/image.json").exists()


def test_reason_of_a_step_that_knows_it(machine: Machine) -> None:
    machine.step("image/10-first", 'fail "collectives need more"')
    machine.boot()
    assert machine.record("failed")["reason"] == "collectives need more"


def test_rerun_after_a_mended_step_is_ready(machine: Machine) -> None:
    machine.step("image/10-first", "exit 3")
    assert machine.boot().returncode == 1
    machine.step("image/10-first", "true")
    assert machine.boot().returncode == 0
    machine.record("ready")


def test_hanging_step_ends_within_its_bound_with_all_its_children(machine: Machine) -> None:
    pids = machine.root / "pids"
    body = f'trap "" TERM; setsid sleep 301 & echo $! > {pids}; (sleep 302 & echo $! >> {pids}); sleep 303'
    machine.step("image/10-first", body)
    start = time.monotonic()
    assert machine.boot(STEP_TIMEOUT="1").returncode == 1
    assert time.monotonic() - start < 10
    assert machine.record("failed")["reason"] == "did not end within 1 s and was killed"
    for pid in pids.read_text().split():
        status = Path(f"/proc/{pid}/status")  # a zombie that nobody reaped yet is dead too
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_stopped_from_outside_is_a_failure_with_a_record(machine: Machine) -> None:
    # Between the step and the runner stands `timeout`.
    machine.step("image/10-first", "read -r _ _ _ runner _ </proc/$PPID/stat; kill -TERM $runner; sleep 0.2")
    assert machine.boot().returncode == 143
    failed = machine.record("failed")
    assert (failed["step"], failed["reason"]) == ("first", "the bootstrap itself ended with code 143")


def test_two_runs_at_once_do_not_mix(machine: Machine) -> None:
    machine.step("image/10-first", '"$BOOTSTRAP/bootstrap.sh" || echo "second run: $?"')
    assert machine.boot().returncode == 0
    log = (machine.root / "var/log/trainyard-bootstrap.log").read_text()
    assert "another bootstrap is running\nsecond run: 1" in log


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"TRAINYARD_MODE": "cook"}, "TRAINYARD_MODE is 'cook' in /etc/trainyard.env, allowed: bake, node, both"),
        ({"TRAINYARD_PROFILE": ""}, "TRAINYARD_PROFILE is '' in /etc/trainyard.env, allowed: native, ipex"),
        ({"TRAINYARD_COLLECTIVES": "$(id)"}, "TRAINYARD_COLLECTIVES is '$(id)' in"),
        ({"TRAINYARD_IMAGE": ""}, "TRAINYARD_IMAGE is missing"),
        ({"TRAINYARD_NODE": ""}, "TRAINYARD_NODE is missing"),
        ({"STEP_TIMEOUT": "soon"}, "STEP_TIMEOUT is 'soon'"),
        ({"TRAINYARD_CLUSTER": "moon"}, "TRAINYARD_CLUSTER is 'moon' in /etc/trainyard.env, allowed: local, aws-xeon"),
        ({"TRAINYARD_MAX_HOURS": ""}, "TRAINYARD_MAX_HOURS is '' in /etc/trainyard.env, allowed: whole numbers from 0"),
        ({"TRAINYARD_IDLE_MINUTES": "1.5"}, "TRAINYARD_IDLE_MINUTES is '1.5'"),
    ],
)
def test_bad_settings_are_refused_before_any_step(machine: Machine, settings: dict[str, str], reason: str) -> None:
    assert machine.boot(**settings).returncode == 1
    failed = machine.record("failed")
    assert failed["step"] == "settings"
    assert reason in str(failed["reason"])
    assert machine.events() == []


def test_settings_from_an_editor_on_windows_are_read(machine: Machine) -> None:
    (machine.root / "etc/trainyard.env").write_text("".join(f"{k}={v}\r\n" for k, v in SETTINGS.items()), newline="")
    assert machine.run().returncode == 0
    assert machine.record("ready")["node"] == "node1"


def test_missing_settings_file_is_a_failure_with_a_record(machine: Machine) -> None:
    assert machine.run().returncode == 1
    assert "/etc/trainyard.env is missing" in str(machine.record("failed")["reason"])
