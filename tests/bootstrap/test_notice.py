"""bootstrap/notice.py: what a cloud says before it takes a node, from its metadata service into the node's record.

The metadata service is a web server on loopback; the program runs as its service does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import http_server
import pytest
from http_server import Answer, Asked
from polling import until

PROGRAM = Path(__file__).resolve().parents[2] / "bootstrap/notice.py"
QUICK = "import runpy, sys, time; sleep = time.sleep; time.sleep = lambda s: sleep(s / 10); runpy.run_path(sys.argv[1])"
"""Runs the program with its pauses a tenth as long."""


@dataclass
class Cloud:
    """A metadata service: what it says may change."""

    action: dict[str, str] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    maintenance: list[dict[str, Any]] | None = None
    """EC2's; None: it does not know the path."""
    broken: Answer | None = None
    refused: int = 0
    """How often it has answered while broken."""
    looks: int = 0
    """How often it was asked for what is planned."""

    def answer(self, asked: Asked) -> Answer:
        if self.broken:
            self.refused += 1
            return self.broken
        return self._aws(asked) if asked.path.startswith("/latest/") else self._azure(asked)

    def _aws(self, asked: Asked) -> Answer:
        """IMDSv2: without a token nothing is said, and a token is not given to a GET."""
        if asked.path == "/latest/api/token":
            given = asked.method == "PUT" and "x-aws-ec2-metadata-token-ttl-seconds" in asked.headers
            return Answer(body=b"token-1") if given else Answer(405)
        if asked.headers.get("x-aws-ec2-metadata-token") != "token-1":
            return Answer(401)
        if asked.path == "/latest/meta-data/spot/instance-action":
            self.looks += 1
            return Answer(body=json.dumps(self.action).encode()) if self.action else Answer(404)
        if asked.path == "/latest/meta-data/events/maintenance/scheduled" and self.maintenance is not None:
            return Answer(body=json.dumps(self.maintenance).encode())
        return Answer(404)

    def _azure(self, asked: Asked) -> Answer:
        if asked.headers.get("metadata") != "true":
            return Answer(400)
        if asked.path.startswith("/metadata/instance/compute/name?"):
            return Answer(body=b"trainyard-yard-node2")
        if asked.path == "/metadata/scheduledevents?api-version=2020-07-01":
            self.looks += 1
            return Answer(body=json.dumps({"DocumentIncarnation": 1, "Events": self.events}).encode())
        return Answer(404)


def event(kind: str, seconds: float | None, *machines: str, status: str = "Scheduled") -> dict[str, Any]:
    """As Azure documents it; without seconds it has begun."""
    at = "" if seconds is None else format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    return {
        **{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": kind, "ResourceType": "VirtualMachine"},
        **{"Resources": list(machines), "EventStatus": status, "NotBefore": at, "Description": ""},
        **{"EventSource": "Platform", "DurationInSeconds": -1},
    }


@contextmanager
def running(root: Path, cluster: str, cloud: Cloud) -> Iterator[subprocess.Popen[str]]:
    """The program, under a root of its own."""
    (root / "bin").mkdir()
    (root / "bin/wall").write_text(f'#!/bin/sh\necho "$*" >>{root}/wall\n')
    (root / "bin/wall").chmod(0o755)
    with http_server.serve(cloud.answer) as server:
        own = {"TRAINYARD_PREFIX": str(root), "TRAINYARD_CLUSTER": cluster, "TRAINYARD_IMDS": server.url}
        proxies = {"http_proxy": "http://127.0.0.1:9"}  # the metadata service is behind none
        environment = {**own, **proxies, "PATH": f"{root}/bin:{os.environ['PATH']}"}
        program = subprocess.Popen(
            [sys.executable, "-IS", "-c", QUICK, PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield program
        finally:
            program.kill()
            program.communicate()


def record(root: Path) -> dict[str, Any]:
    path = root / "run/trainyard/notice.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def looks_again(cloud: Cloud) -> None:
    """Waits until the program has dealt with what is planned now: when it asks for the second time, it is done with
    the first answer."""
    before = cloud.looks
    until(lambda: cloud.looks >= before + 2)


def test_ec2_says_that_it_takes_a_spot_node(tmp_path: Path) -> None:
    cloud = Cloud()
    with running(tmp_path, "aws-xeon", cloud):
        looks_again(cloud)
        assert not record(tmp_path), "nothing is planned"
        cloud.action = {"action": "terminate", "time": "2031-09-18T12:03:05Z"}
        until(lambda: bool(record(tmp_path)))
        found = record(tmp_path)
        assert found["why"] == "EC2 takes this Spot node at 12:03:05Z"
        assert found["at"] == datetime(2031, 9, 18, 12, 3, 5, tzinfo=UTC).timestamp()
        until(lambda: (tmp_path / "wall").exists())
        looks_again(cloud)
        assert (tmp_path / "wall").read_text() == "EC2 takes this Spot node at 12:03:05Z\n", "once"


def maintenance(code: str, minutes: float, state: str = "active") -> dict[str, Any]:
    """As EC2 documents it."""
    at, until = (f"{datetime.now(UTC) + timedelta(minutes=m):%d %b %Y %H:%M:%S GMT}" for m in (minutes, minutes + 120))
    return {
        **{"NotBefore": at.lstrip("0"), "Code": code, "Description": "scheduled reboot", "State": state},
        **{"EventId": "instance-event-0d59937288b749b32", "NotAfter": until.lstrip("0")},
    }


MAINTAINS = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot", "system-maintenance")


@pytest.mark.parametrize("code", MAINTAINS)
def test_ec2_says_that_it_maintains_a_node(tmp_path: Path, code: str) -> None:
    cloud = Cloud(maintenance=[maintenance(code, 14)])
    with running(tmp_path, "aws-xeon", cloud):
        until(lambda: bool(record(tmp_path)))
        assert record(tmp_path)["why"].startswith(f"EC2 maintains this node ({code}) at")
        assert 780 < record(tmp_path)["at"] - time.time() < 841
        cloud.maintenance = [maintenance(code, 14, "canceled")]
        until(lambda: not record(tmp_path))


def test_of_ec2s_maintenance_only_what_begins_soon_counts_and_the_first_of_it(tmp_path: Path) -> None:
    weeks = maintenance("instance-retirement", 14 * 24 * 60)
    cloud = Cloud(maintenance=[weeks, maintenance("instance-stop", 1, "completed")])
    with running(tmp_path, "aws-xeon", cloud):
        looks_again(cloud)
        assert not record(tmp_path)
        cloud.maintenance = [weeks, maintenance("system-reboot", 10), maintenance("instance-reboot", -1)]
        until(lambda: record(tmp_path).get("why", "").startswith("EC2 maintains this node (instance-reboot)"))
        assert record(tmp_path)["at"] < time.time(), "it has begun"
        soon = datetime.now(UTC) - timedelta(minutes=5)
        cloud.action = {"action": "terminate", "time": f"{soon:%Y-%m-%dT%H:%M:%SZ}"}
        until(lambda: record(tmp_path)["why"].startswith("EC2 takes this Spot node at"))


ENDS = {
    "Preempt": "Azure takes this Spot node at",
    "Terminate": "Azure deletes this node at",
    "Reboot": "Azure reboots this node at",
    "Redeploy": "Azure moves this node to another machine at",
}


@pytest.mark.parametrize("kind", ENDS)
def test_azure_says_that_it_ends_what_runs_here(tmp_path: Path, kind: str) -> None:
    cloud = Cloud(events=[event(kind, 30, "trainyard-yard-node1", "Trainyard-Yard-Node2")])
    with running(tmp_path, "azure-xeon", cloud):
        until(lambda: bool(record(tmp_path)))
        assert record(tmp_path)["why"].startswith(ENDS[kind])
        assert 10 < record(tmp_path)["at"] - time.time() < 31
        cloud.events = []
        until(lambda: not record(tmp_path))  # withdrawn


def test_of_several_events_the_first_counts_and_one_that_has_begun_before_all(tmp_path: Path) -> None:
    cloud = Cloud(events=[event("Reboot", 900, "trainyard-yard-node2"), event("Preempt", 30, "trainyard-yard-node2")])
    with running(tmp_path, "azure-xeon", cloud):
        until(lambda: record(tmp_path).get("why", "").startswith("Azure takes this Spot node"))
        cloud.events.append(event("Redeploy", None, "trainyard-yard-node2", status="Started"))
        until(lambda: record(tmp_path)["why"] == "Azure moves this node to another machine now")
        first = record(tmp_path)
        looks_again(cloud)
        assert record(tmp_path) == first, "said once"


@pytest.mark.parametrize("events", [[event("Freeze", 900, "trainyard-yard-node2")], [event("Preempt", 30, "another")]])
def test_a_pause_and_another_machine_s_end_are_no_notice(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    cloud = Cloud(events=events)
    with running(tmp_path, "azure-xeon", cloud):
        looks_again(cloud)
        assert not record(tmp_path)


BROKEN = [Answer(500), Answer(429), Answer(body=b""), Answer(body=b"[]"), Answer(body=b'{"Events": null}'), Answer(403)]


def has_refused(cloud: Cloud, count: int) -> bool:
    return cloud.refused >= count


@pytest.mark.parametrize("cluster", ["aws-xeon", "azure-xeon"])
def test_a_metadata_service_that_fails_is_said_and_asked_again(tmp_path: Path, cluster: str) -> None:
    cloud = Cloud()
    with running(tmp_path, cluster, cloud) as program:
        for broken in BROKEN:
            before, cloud.broken = cloud.refused, broken
            until(partial(has_refused, cloud, before + 1))
        cloud.broken = None
        cloud.action = {"action": "stop", "time": "2031-09-18T12:03:05Z"}
        cloud.events = [event("Preempt", 30, "trainyard-yard-node2")]
        until(lambda: bool(record(tmp_path)))
        assert program.stderr
        text = ""
        for line in program.stderr:  # the record is written before the last line
            text += line
            if "answers again" in line:
                break
        assert "cannot read the metadata service: HTTPError HTTP Error 500" in text and "answers again" in text
        assert "Traceback" not in text


def test_a_notice_stays_while_the_metadata_service_cannot_be_asked(tmp_path: Path) -> None:
    cloud = Cloud(events=[event("Preempt", 30, "trainyard-yard-node2")])
    with running(tmp_path, "azure-xeon", cloud):
        until(lambda: bool(record(tmp_path)))
        cloud.broken = Answer(500)
        until(lambda: cloud.refused >= 2)
        assert record(tmp_path)
