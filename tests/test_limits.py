"""bootstrap/limits.py: when a node ends by itself, run as its timer runs it, under a root of its own.

What it calls (systemctl, wall, runuser) are programs of the test's; what it reads of /proc is a folder; Azure's
metadata service and its manager are a web server on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import http_stand_in
import pytest
from http_stand_in import Answer, Asked, Server

BOOTSTRAP = Path(__file__).parent.parent / "bootstrap"
PROGRAM = BOOTSTRAP / "limits.py"
HOUR, MINUTE = 3600.0, 60.0
ENVIRONMENT = {
    "TRAINYARD_MODE": "node",
    "TRAINYARD_NODE": "node1",
    "TRAINYARD_ROLE": "head",
    "TRAINYARD_CLUSTER": "local",
    "TRAINYARD_MAX_HOURS": "0",
    "TRAINYARD_IDLE_MINUTES": "0",
}
WORKER = {"TRAINYARD_NODE": "node3", "TRAINYARD_ROLE": "worker"}
SSH = {"SSH_CONNECTION": "203.0.113.7 50000 10.0.0.10 22"}


@dataclass(frozen=True)
class Node:
    """A root with the records of a node, and the programs that are called on it."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "var/lib/trainyard"

    def program(self, name: str, body: str = "") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/called\n{body}\n')
        path.chmod(0o755)

    def process(self, pid: int, command: str, environment: dict[str, str] | None = None) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (environment or {}).items()))

    def booted(self, ago: float) -> None:
        (self.state / "first-boot.json").write_text(json.dumps({"time": time.time() - ago, "instance": "i"}))

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "limits.json").read_text())
        return found

    def was(self, **values: object) -> None:
        """What the last run has left; times as seconds before now."""
        times = {key: time.time() - float(str(value)) for key, value in values.items()}
        (self.state / "limits.json").write_text(json.dumps({"time": time.time(), "used": "", **times}))

    def change(self, **values: object) -> None:
        """Change the last run's record by hand."""
        (self.state / "limits.json").write_text(json.dumps({**self.record(), **values}))

    def tick(self, **changes: str) -> list[str]:
        """One run; what was called, a word or two of each."""
        (self.root / "called").write_text("")
        path = f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"
        environment = {**ENVIRONMENT, **changes, "PATH": path, "TRAINYARD_PREFIX": str(self.root)}
        done = subprocess.run(
            [sys.executable, "-IS", PROGRAM], env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return (self.root / "called").read_text().splitlines()

    def ends(self, **changes: str) -> bool:
        return "systemctl poweroff -i" in self.tick(**changes)

    def head_says(self, **values: object) -> None:
        """What the head's record is to a worker that asks for it."""
        told = json.dumps({"time": time.time(), "used": "", **values})
        self.program("runuser", f"cat <<'END'\n{told}\nEND")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    for folder in ("bin", "proc", "var/lib/trainyard"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("systemctl", "wall"):
        node.program(name)
    node.program("runuser", "exit 255")  # the head does not answer
    node.process(1, "/sbin/init")
    node.process(77, "/usr/lib/systemd/systemd-logind")
    node.process(78, "sshd: /usr/sbin/sshd -D [listener] 0 of 200-400 startups")
    node.process(79, "/sbin/agetty -o -- \\u --noclear tty1 linux")
    node.booted(ago=HOUR)
    return node


# --- the hours ---


def test_a_node_without_limits_stays(node: Node) -> None:
    node.booted(ago=1000 * HOUR)
    assert not node.ends()
    assert node.record()["deadline"] > time.time() + 10000 * HOUR


def test_a_node_ends_when_its_hours_are_over_whoever_is_logged_in(node: Node) -> None:
    node.process(100, "-bash", SSH)
    node.booted(ago=1.9 * HOUR)
    assert not node.ends(TRAINYARD_MAX_HOURS="2")
    node.booted(ago=2.01 * HOUR)
    assert node.ends(TRAINYARD_MAX_HOURS="2")
    assert node.record()["ends"] == "its hours are over"


def test_everybody_is_told_ten_minutes_before_and_once(node: Node) -> None:
    node.booted(ago=2 * HOUR - 11 * MINUTE)
    assert node.tick(TRAINYARD_MAX_HOURS="2") == []
    node.booted(ago=2 * HOUR - 9 * MINUTE)
    assert node.tick(TRAINYARD_MAX_HOURS="2") == ["wall this node ends in 10 minutes, as its hours are over"]
    assert node.tick(TRAINYARD_MAX_HOURS="2") == []


def test_a_job_has_five_minutes_more_for_its_last_checkpoint(node: Node) -> None:
    node.process(100, "/usr/bin/python3 -I /c/launch supervise /srv/u/runs/smoke-1")
    node.booted(ago=2 * HOUR + 4 * MINUTE)
    assert not node.ends(TRAINYARD_MAX_HOURS="2")
    node.booted(ago=2 * HOUR + 6 * MINUTE)
    assert node.ends(TRAINYARD_MAX_HOURS="2")


@pytest.mark.parametrize("changes", [{"TRAINYARD_MODE": "bake"}, {"TRAINYARD_MODE": "both"}])
def test_nothing_ends_during_a_bake_or_a_bootstrap(node: Node, changes: dict[str, str]) -> None:
    if changes["TRAINYARD_MODE"] == "both":
        node.process(100, "bash /opt/trainyard/bootstrap/bootstrap.sh")
    node.booted(ago=100 * HOUR)
    node.was(idle_since=100 * HOUR)
    assert node.tick(TRAINYARD_MAX_HOURS="1", TRAINYARD_IDLE_MINUTES="1", **changes) in ([], [WARNING])


WARNING = "wall this node ends in 10 minutes, as its hours are over"


# --- the idle limit, on the head ---


def test_an_unused_head_goes_two_minutes_after_the_limit(node: Node) -> None:
    node.was(idle_since=61 * MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    node.was(idle_since=63 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")
    assert node.record()["ends"] == "nobody uses it"


def test_the_first_run_begins_the_clock(node: Node) -> None:
    assert not node.ends(TRAINYARD_IDLE_MINUTES="1")
    assert node.record()["idle_since"] > time.time() - 10


USERS = {
    "a rank": ("/opt/trainyard/venv/bin/python -u -m training.train job.toml", {"TRAINYARD_JOB": "smoke-1"}, "job"),
    "a keeper": ("/usr/bin/python3 -I /c/launch keep", {}, "job"),
    "a job that waits for its nodes": ("/usr/bin/python3 -I /c/launch supervise /srv/u/runs/smoke-2", {}, "job"),
    "a shell over SSH": ("-bash", SSH, "login"),
    "what a login has left running": ("python3 prepare.py", SSH, "login"),
    "a console": ("/bin/login -p --", {}, "login"),
    "a session of SSM": ("/usr/bin/ssm-session-worker user-1", {}, "login"),
}


@pytest.mark.parametrize("what", USERS)
def test_who_uses_a_node(node: Node, what: str) -> None:
    command, environment, kind = USERS[what]
    node.process(100, command, environment)
    node.was(idle_since=100 * HOUR)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    record = node.record()
    assert record["used"] == kind and record["idle_since"] > time.time() - 10


def test_who_only_asks_for_the_record_does_not_use_it(node: Node) -> None:
    node.process(100, "bash -c cat /var/lib/trainyard/limits.json", SSH)
    node.was(idle_since=100 * HOUR)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")


def test_status_asks_in_words_that_are_recognised() -> None:
    """Or a loop of `fab status` would keep a cluster alive for ever."""
    assert "var/lib/trainyard" in PROGRAM.read_text()
    name = next(line for line in PROGRAM.read_text().splitlines() if line.startswith("NAME = ")).split('"')[1]
    assert name in (BOOTSTRAP.parent / "fabfile/on_node/status.py").read_text()


def test_a_login_on_a_worker_keeps_the_head(node: Node) -> None:
    node.was(idle_since=100 * HOUR)
    mark = node.state / "limits.json.node3"
    mark.touch()
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    node.was(idle_since=100 * HOUR)
    os.utime(mark, (0, time.time() - 5 * MINUTE))
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")


# --- the idle limit, on a worker ---


def test_a_worker_within_its_limit_asks_nobody(node: Node) -> None:
    node.was(idle_since=50 * MINUTE)
    assert node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER) == []


def test_a_worker_goes_with_the_head_and_not_before(node: Node) -> None:
    node.was(idle_since=61 * MINUTE)
    node.head_says(used="job", idle_since=time.time())
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER), "a job on fewer nodes than all"
    node.head_says(idle_since=time.time() - 30 * MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER), "the next job may come"
    node.head_says(idle_since=time.time() - 61 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)


def test_a_worker_that_somebody_is_logged_in_to_tells_the_head(node: Node) -> None:
    node.process(100, "-bash", SSH)
    node.was(idle_since=100 * HOUR)
    node.head_says(idle_since=time.time() - 100 * HOUR)
    called = node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    assert len(called) == 1 and called[0].startswith("runuser -u trainyard -- ssh ")
    assert "node1 sudo touch /var/lib/trainyard/limits.json.node3; cat /var/lib/trainyard/limits.json" in called[0]


def test_a_worker_waits_ten_minutes_for_a_head_that_is_silent(node: Node) -> None:
    node.was(idle_since=61 * MINUTE, head_heard=MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    heard = node.record()["head_heard"]
    assert heard < time.time() - 50, "the clock of its silence goes on"
    node.was(idle_since=71 * MINUTE, head_heard=11 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)


def test_a_silence_is_counted_from_the_first_question(node: Node) -> None:
    node.was(idle_since=59 * MINUTE, head_heard=59 * MINUTE)
    node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    assert node.record()["head_heard"] > time.time() - 10


# --- how it ends on Azure ---

MACHINE = (
    "/subscriptions/0/resourceGroups/trainyard-yard/providers/Microsoft.Compute/virtualMachines/trainyard-yard-node1"
)


def azure(asked: Asked, *, allowed: bool = True) -> Answer:
    """The metadata service and the resource manager, as they are documented."""
    if asked.path.startswith("/metadata/"):
        if asked.headers.get("metadata") != "true":
            return Answer(400, b'{"error": "invalid_request"}')
        if "/identity/oauth2/token" in asked.path and "resource=https://management.azure.com/" in asked.path:
            return Answer(body=b'{"access_token": "secret", "expires_on": "1", "token_type": "Bearer"}')
        return Answer(body=MACHINE.encode())
    if asked.headers.get("authorization") != "Bearer secret" or not allowed:
        return Answer(403, b'{"error": {"code": "AuthorizationFailed"}}')
    return Answer(202, headers={"Location": "https://management.azure.com/subscriptions/0/operations/1"})


@contextmanager
def cloud(*, allowed: bool = True) -> Iterator[tuple[Server, dict[str, str]]]:
    with http_stand_in.serve(lambda asked: azure(asked, allowed=allowed)) as server:
        environment = {"TRAINYARD_CLUSTER": "azure-xeon", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        yield server, {**environment, "TRAINYARD_MAX_HOURS": "1"}


def test_a_node_of_azure_deallocates_itself(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud() as (server, environment):
        assert not node.ends(**environment), "switched off it would be paid for"
        assert (server.asked[-1].method, server.asked[-1].path) == (
            "POST",
            f"{MACHINE}/deallocate?api-version=2024-11-01",
        )
        assert server.asked[-1].headers["content-length"] == "0"
        node.tick(**environment)
        assert sum(asked.method == "POST" for asked in server.asked) == 2, "as long as it is there, it asks again"


def test_a_proxy_is_not_asked_for_the_token(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud() as (server, environment):
        node.tick(**environment, http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
        assert server.asked[-1].method == "POST"


def test_a_node_of_azure_that_cannot_be_deallocated_is_never_switched_off_and_tries_for_ever(node: Node) -> None:
    """Switched off it would be billed as before, with nobody left on it to ask again."""
    node.booted(ago=2 * HOUR)
    waits = []
    with cloud(allowed=False) as (server, environment):
        for number in range(1, 9):
            called = node.tick(**environment)
            record = node.record()
            assert not any("poweroff" in line for line in called)
            assert any("wall this node is STILL PAID FOR" in line and f"try {number}," in line for line in called)
            assert "HTTP Error 403" in record["failed"] and "AuthorizationFailed" in record["failed"]
            waits.append(round(record["next_try"] - record["time"]))
            asked = len(server.asked)
            assert node.tick(**environment) == [] and len(server.asked) == asked, "not before its time"
            node.change(next_try=time.time() - 1)
    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]
    with cloud() as (server, environment):  # a day later Azure answers again
        node.tick(**environment)
        assert server.asked[-1].path.startswith(f"{MACHINE}/deallocate")
    assert node.record()["failed"] == "" and "next_try" not in node.record()


def test_a_clock_that_jumped_back_does_not_stop_the_tries(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud(allowed=False) as (server, environment):
        node.tick(**environment)
        node.change(next_try=time.time() + 1000 * HOUR)
        before = len(server.asked)
        node.tick(**environment)
        assert len(server.asked) > before


@pytest.mark.parametrize("answer", [b"[]", b"null", b"{", b'"x"', b'{"access_token": null}', b"{}"])
def test_a_metadata_service_that_answers_nonsense_is_a_failed_try(node: Node, answer: bytes) -> None:
    node.booted(ago=2 * HOUR)

    def nonsense(asked: Asked) -> Answer:
        return Answer(body=answer) if "/oauth2/token" in asked.path else azure(asked)

    with http_stand_in.serve(nonsense) as server:
        both = {"TRAINYARD_CLUSTER": "azure-xeon", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        called = node.tick(**both, TRAINYARD_MAX_HOURS="1")
    assert "cannot be deallocated" in node.record()["failed"]
    assert not any("poweroff" in line for line in called)


def test_a_node_that_is_used_again_begins_anew(node: Node) -> None:
    with cloud(allowed=False) as (_, environment):
        environment = {**environment, "TRAINYARD_MAX_HOURS": "0", "TRAINYARD_IDLE_MINUTES": "60"}
        node.was(idle_since=100 * MINUTE)
        assert not node.ends(**environment) and "next_try" in node.record()
        node.process(100, "-bash", SSH)
        assert not node.ends(**environment)
        assert not {"next_try", "tries", "failed"} & set(node.record())


# --- how it is started ---


@pytest.fixture
def machine(node: Node) -> Node:
    """With a copy of the bootstrap that has one step of its own."""
    shutil.copytree(BOOTSTRAP, node.root / "bootstrap", ignore=shutil.ignore_patterns("steps", "__pycache__"))
    for part in ("node", "image"):
        step = node.root / f"bootstrap/steps/{part}/10-first"
        step.parent.mkdir(parents=True)
        step.write_text("#!/bin/sh\nexit 1\n")
        step.chmod(0o755)
    for folder in ("etc", "var/lib/cloud/data"):
        (node.root / folder).mkdir(parents=True)
    (node.root / "var/lib/cloud/data/instance-id").write_text("i-1\n")
    (node.state / "first-boot.json").unlink()
    node.program("systemctl", '[ "$1" != is-active ]')
    node.program("systemd-run")
    return node


def bootstrap(machine: Node, **changes: str) -> list[str]:
    values = {**ENVIRONMENT, "TRAINYARD_PROFILE": "native", "TRAINYARD_COLLECTIVES": "gloo", "TRAINYARD_IMAGE": "key"}
    lines = [f"{key}={value}\n" for key, value in {**values, **changes}.items()]
    (machine.root / "etc/trainyard.env").write_text("".join(lines))
    (machine.root / "called").write_text("")
    environment = {"PATH": f"{machine.root}/bin{os.pathsep}{os.environ['PATH']}", "TRAINYARD_PREFIX": str(machine.root)}
    subprocess.run([machine.root / "bootstrap/bootstrap.sh"], env=environment, capture_output=True, timeout=30)
    return [line for line in (machine.root / "called").read_text().splitlines() if line.startswith("systemd-run")]


def test_the_bootstrap_starts_the_timer_first_so_that_a_node_that_fails_ends_as_well(machine: Node) -> None:
    (started,) = bootstrap(machine, TRAINYARD_MAX_HOURS="24")
    assert json.loads((machine.state / "failed.json").read_text())["step"] == "first", "and it did fail"
    assert "--unit=trainyard-limits" in started and "--on-unit-inactive=30" in started
    assert f"EnvironmentFile={machine.root}/etc/trainyard.env" in started
    assert started.endswith(f"/usr/bin/python3 -IS {machine.root}/bootstrap/limits.py")


def test_no_timer_where_there_is_no_limit_and_none_on_a_builder(machine: Node) -> None:
    assert bootstrap(machine) == []
    assert bootstrap(machine, TRAINYARD_MODE="bake", TRAINYARD_MAX_HOURS="24") == []


def test_a_timer_that_runs_is_left_alone(machine: Node) -> None:
    machine.program("systemctl")
    assert bootstrap(machine, TRAINYARD_IDLE_MINUTES="60") == []


def test_a_timer_that_cannot_be_started_is_a_failure_with_a_record(machine: Node) -> None:
    machine.program("systemd-run", "echo no bus >&2; exit 1")
    bootstrap(machine, TRAINYARD_IDLE_MINUTES="60")
    failed = json.loads((machine.state / "failed.json").read_text())
    assert (failed["step"], failed["reason"]) == ("limits", "the timer of its hours cannot be started: no bus")


def test_the_hours_count_from_the_first_boot_of_this_instance(machine: Node) -> None:
    bootstrap(machine)
    first = json.loads((machine.state / "first-boot.json").read_text())
    assert first["instance"] == "i-1" and time.time() - first["time"] < 20
    (machine.state / "first-boot.json").write_text(json.dumps({"time": 5, "instance": "i-1"}))
    (machine.state / "limits.json").write_text("{}")
    bootstrap(machine)
    assert json.loads((machine.state / "first-boot.json").read_text())["time"] == 5, "kept over reboots"
    assert not (machine.state / "limits.json").exists(), "but a boot is a use"
    (machine.root / "var/lib/cloud/data/instance-id").write_text("i-2\n")
    bootstrap(machine)
    assert json.loads((machine.state / "first-boot.json").read_text())["instance"] == "i-2", "a copy of the disk"


def test_systemd_knows_every_word_of_the_timer(machine: Node, tmp_path: Path) -> None:
    """What systemd-run is given, written as the unit files that it stands for, and looked at by systemd itself."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine")
    (started,) = bootstrap(machine, TRAINYARD_MAX_HOURS="24")
    *options, python, flags, program = started.split()[1:]
    pairs = [option.removeprefix("--").split("=", 1) for option in options]
    timer = [value for key, value in pairs if key == "timer-property"]
    timer += [f"On{key[3:].title().replace('-', '')}Sec={value}" for key, value in pairs if key.startswith("on-")]
    service = [*(value for key, value in pairs if key == "property"), f"ExecStart={python} {flags} {program}"]
    files = {"timer": ("Timer", timer), "service": ("Service", service)}
    for kind, (section, lines) in files.items():
        (tmp_path / f"trainyard-limits.{kind}").write_text("\n".join([f"[{section}]", *lines, ""]))
    units = sorted(tmp_path.glob("trainyard-limits.*"))
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
