"""What a node of aws-xeon sends to CloudWatch: the real program against a moto server; and the step that starts it."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import moto_cloud
import pytest
from bootstrap_runner import BOOTSTRAP

PROGRAM = BOOTSTRAP / "aws-xeon/monitor.py"
OWN = {"TRAINYARD_STACK": "yard", "TRAINYARD_NODE": "node2", "TRAINYARD_REGION": moto_cloud.REGION}
DIMENSIONS = [{"Name": "Stack", "Value": "yard"}, {"Name": "Node", "Value": "node2"}]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_cloud.aws(monkeypatch) as endpoint:
        yield endpoint


def sends(*, until: float = 30.0, **environment: str) -> str:
    """Run it, once every 0.2 s, until it has sent something or that many seconds are over; what it printed."""
    cloudwatch, end = boto3.client("cloudwatch"), time.monotonic() + until
    argv: list[str | Path] = [sys.executable, "-I", PROGRAM, "0.2"]
    with subprocess.Popen(argv, env={**os.environ, **OWN, **environment}, stdout=-1, stderr=-2, text=True) as running:
        while time.monotonic() < end and running.poll() is None and not cloudwatch.list_metrics()["Metrics"]:
            time.sleep(0.1)
        running.kill()
        return running.communicate()[0]


def statistics(name: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    (found,) = boto3.client("cloudwatch").get_metric_statistics(
        Namespace="Trainyard",
        MetricName=name,
        Dimensions=DIMENSIONS,
        StartTime=now - datetime.timedelta(minutes=5),
        EndTime=now + datetime.timedelta(minutes=5),
        Period=3600,
        Statistics=["Average"],
    )["Datapoints"]
    return dict(found)


def test_cpu_memory_and_network_arrive_with_the_stack_and_the_node(cloud: str) -> None:
    output = sends()
    listed = boto3.client("cloudwatch").list_metrics()["Metrics"]
    names = {"CPUUtilization", "MemoryUtilization", "NetworkIn", "NetworkOut"}
    assert {entry["MetricName"] for entry in listed} == names, output
    assert all(entry["Namespace"] == "Trainyard" and entry["Dimensions"] == DIMENSIONS for entry in listed)
    memory = statistics("MemoryUtilization")
    assert 1 < memory["Average"] < 100 and memory["Unit"] == "Percent"
    assert 0 <= statistics("CPUUtilization")["Average"] <= 100
    assert statistics("NetworkIn")["Unit"] == "Bytes/Second"


def test_what_cannot_be_sent_is_told_and_tried_again(cloud: str) -> None:
    output = sends(until=6.0, AWS_ENDPOINT_URL="http://127.0.0.1:9", AWS_MAX_ATTEMPTS="1")
    assert output.count("metrics not sent: Could not connect to the endpoint") >= 2, output


def started(tmp_path: Path, monitoring: str) -> str:
    """The step on a node of aws-xeon, with systemd's two commands as programs of the test's; what they were given."""
    (tmp_path / "state").mkdir()
    for name, code in (("systemctl", 3), ("systemd-run", 0)):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/called\nexit {code}\n')
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "BOOTSTRAP": str(BOOTSTRAP),
        "VENV": "/opt/trainyard/venv",
        "TRAINYARD_MONITORING": monitoring,
        "TRAINYARD_CLUSTER": "aws-xeon",
    }
    subprocess.run(["bash", "-eu", BOOTSTRAP / "steps/node/50-monitor"], env=environment, check=True, timeout=20)
    called = tmp_path / "called"
    return called.read_text() if called.exists() else ""


def test_the_step_starts_it_where_the_key_says_so(tmp_path: Path) -> None:
    called = started(tmp_path, "true")
    assert "systemd-run --unit=trainyard-monitor" in called and f"{BOOTSTRAP}/aws-xeon/monitor.py" in called
    assert "EnvironmentFile=/etc/trainyard.env" in called


def test_the_step_does_nothing_without_the_key(tmp_path: Path) -> None:
    assert started(tmp_path, "") == ""
