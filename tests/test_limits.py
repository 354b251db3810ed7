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

import http_server
import pytest
from http_server import Answer, Asked, Server

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

    @property
    def limits(self) -> Path:
        return self.root / "run/trainyard/limits.json"

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.limits.read_text())
        return found

    def was(self, **values: object) -> None:
        """What the last run has left; times as seconds before now."""
        times = {key: time.time() - float(str(value)) for key, value in values.items()}
        self.limits.write_text(json.dumps({"time": time.time(), "used": "", **times}))

    def change(self, **values: object) -> None:
        """Change the last run's record by hand."""
        self.limits.write_text(json.dumps({**self.record(), **values}))

    def tick(self, **changes: str) -> list[str]:
        """One run; what was called, a word or two of each."""
        lines = [
            f"{key}={value}\n" for key, value in {**ENVIRONMENT, **changes}.items() if key.startswith("TRAINYARD_")
        ]
        (self.root / "etc/trainyard.env").write_text("".join(lines))
        return self.run(**{key: value for key, value in changes.items() if not key.startswith("TRAINYARD_")})

    def run(self, code: int = 0, **environment: str) -> list[str]:
        """One run with the settings that are there."""
        (self.root / "called").write_text("")
        path = f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"
        environment = {**environment, "PATH": path, "TRAINYARD_PREFIX": str(self.root)}
        done = subprocess.run(
            [sys.executable, "-IS", PROGRAM], env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == code, done.stderr
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
    for folder in ("bin", "etc", "proc", "run/trainyard", "var/lib/trainyard"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/machine-id").write_text("i\n")
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


def test_a_node_without_limits_stays_and_its_timer_ends(node: Node) -> None:
    node.booted(ago=1000 * HOUR)
    assert node.tick() == ["systemctl stop --no-block trainyard-limits.timer"]
    assert not node.limits.exists()


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
    node.process(100, "bash -c cat /run/trainyard/limits.json", SSH)
    node.was(idle_since=100 * HOUR)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")


def test_status_asks_in_words_that_are_recognised() -> None:
    """Or a loop of `fab status` would keep a cluster alive for ever."""
    assert "var/lib/trainyard" in PROGRAM.read_text()
    name = next(line for line in PROGRAM.read_text().splitlines() if line.startswith("NAME = ")).split('"')[1]
    assert f'"status", "{name}"' in (BOOTSTRAP.parent / "fabfile/verbs/status.py").read_text()


def test_a_login_on_a_worker_keeps_the_head(node: Node) -> None:
    node.was(idle_since=100 * HOUR)
    mark = node.root / "run/trainyard/limits.json.node3"
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
    assert "node1 sudo touch /run/trainyard/limits.json.node3; cat /run/trainyard/limits.json" in called[0]


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
    with http_server.serve(lambda asked: azure(asked, allowed=allowed)) as server:
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

    with http_server.serve(nonsense) as server:
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
    return node


def bootstrap(machine: Node, **changes: str) -> list[str]:
    """One run of it; what it asked of systemd for the limits."""
    values = {**ENVIRONMENT, "TRAINYARD_PROFILE": "native", "TRAINYARD_COLLECTIVES": "gloo", "TRAINYARD_IMAGE": "key"}
    lines = [f"{key}={value}\n" for key, value in {**values, **changes}.items()]
    (machine.root / "etc/trainyard.env").write_text("".join(lines))
    return boot(machine)


def boot(machine: Node) -> list[str]:
    (machine.root / "called").write_text("")
    environment = {"PATH": f"{machine.root}/bin{os.pathsep}{os.environ['PATH']}", "TRAINYARD_PREFIX": str(machine.root)}
    subprocess.run([machine.root / "bootstrap/bootstrap.sh"], env=environment, capture_output=True, timeout=30)
    called = (machine.root / "called").read_text().replace(f"{machine.root}/bootstrap/", "")
    return [line for line in called.splitlines() if "trainyard-limits" in line]


def failed_step(machine: Node) -> str:
    return str(json.loads((machine.state / "failed.json").read_text())["step"])


START = "systemctl start trainyard-limits.timer"
LINK = "systemctl link trainyard-limits.service"


def test_the_bootstrap_starts_the_timer_first_so_that_a_node_that_fails_ends_as_well(machine: Node) -> None:
    assert bootstrap(machine, TRAINYARD_MAX_HOURS="24") == [START]
    assert failed_step(machine) == "first", "and it did fail"


@pytest.mark.parametrize("bad", ["TRAINYARD_MODE", "TRAINYARD_PROFILE", "TRAINYARD_MAX_HOURS", "TRAINYARD_CLUSTER"])
def test_settings_that_make_no_sense_start_the_timer_all_the_same(machine: Node, bad: str) -> None:
    assert bootstrap(machine, **{bad: "nonsense"}) == [START]
    assert failed_step(machine) == "settings"


def test_without_any_settings_the_timer_is_started(machine: Node) -> None:
    assert boot(machine) == [START]
    assert failed_step(machine) == "settings"


def test_a_bare_machine_gets_the_timer_and_a_builder_takes_it_along_without_starting_it(machine: Node) -> None:
    machine.program("systemctl", '[ "$1" != start ]')
    assert bootstrap(machine) == [START, LINK, "systemctl enable --now trainyard-limits.timer"]
    assert bootstrap(machine, TRAINYARD_MODE="bake") == [LINK, "systemctl enable trainyard-limits.timer"]


def test_a_timer_that_cannot_be_started_is_a_failure_with_a_record(machine: Node) -> None:
    machine.program("systemctl", "echo no bus >&2; exit 1")
    bootstrap(machine, TRAINYARD_IDLE_MINUTES="60")
    failed = json.loads((machine.state / "failed.json").read_text())
    assert (failed["step"], failed["reason"]) == ("limits", "the timer of its hours cannot be started: no bus")


def test_the_hours_count_from_the_first_boot_of_this_machine(node: Node) -> None:
    first = node.state / "first-boot.json"
    first.unlink()
    node.tick(TRAINYARD_MAX_HOURS="1")
    assert abs(json.loads(first.read_text())["time"] - time.time()) < 20
    first.write_text(json.dumps({"time": 5, "instance": "i"}))
    assert node.ends(TRAINYARD_MAX_HOURS="1"), "kept over reboots"
    (node.root / "etc/machine-id").write_text("another\n")
    node.limits.unlink()
    assert not node.ends(TRAINYARD_MAX_HOURS="1"), "a copy of the disk is another node"
    uuid = node.root / "sys/class/dmi/id/product_uuid"
    uuid.parent.mkdir(parents=True)
    uuid.write_text("ec2-1\n")
    first.write_text(json.dumps({"time": 5, "instance": "another"}))
    node.limits.unlink()
    assert not node.ends(TRAINYARD_MAX_HOURS="1"), "in another virtual machine as well"
    assert json.loads(first.read_text())["instance"] == "ec2-1 another"


def test_systemd_knows_every_word_of_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine")
    units = [Path(shutil.copy(unit, tmp_path)) for unit in sorted(BOOTSTRAP.glob("trainyard-limits.*"))]
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (len(units), done.returncode, done.stderr) == (2, 0, "")


# --- whatever else fails ---


@pytest.fixture
def over(node: Node) -> Node:
    """A node whose hours are over, with settings that say so."""
    node.booted(ago=3 * HOUR)
    node.tick(TRAINYARD_MAX_HOURS="4")
    settings = node.root / "etc/trainyard.env"
    settings.write_text(settings.read_text().replace("HOURS=4", "HOURS=2"))
    return node


POWEROFF = "systemctl poweroff -i"


def in_the_way(folder: Path) -> None:
    """Nothing can be read or written in a folder from here on."""
    shutil.rmtree(folder)
    folder.write_text("a file where a folder should be")


def test_a_record_that_cannot_be_written_keeps_no_node(over: Node) -> None:
    in_the_way(over.root / "run/trainyard")
    assert POWEROFF in over.run()


def test_a_first_boot_that_cannot_be_read_any_more_is_in_memory(over: Node) -> None:
    in_the_way(over.state)
    assert POWEROFF in over.run()


def test_without_any_record_the_hours_count_from_this_boot(over: Node) -> None:
    """By its own init's start: a container's host may be up for longer."""
    in_the_way(over.state)
    in_the_way(over.root / "run/trainyard")
    (over.root / "proc/1/stat").write_text(f"1 (init) S {'0 ' * 18}{10_000 * os.sysconf('SC_CLK_TCK')} 0\n")
    for up, ends in ((2 * HOUR - MINUTE, False), (2 * HOUR + MINUTE, True)):
        (over.root / "proc/uptime").write_text(f"{10_000 + up} 1.0\n")
        assert (POWEROFF in over.run()) == ends


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_a_full_or_read_only_disk_keeps_no_node(over: Node, options: str) -> None:
    """A disk that is full or read-only, for real: everything but what is in memory."""
    disk = over.root / "var/lib/trainyard"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
    try:
        if options != "ro":
            with (disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
        assert POWEROFF in over.run()
    finally:
        subprocess.run(["umount", disk], check=True)


BROKEN = ["", "{", "[]", "null", '"text"', "{}", '{"time": "x"}', '{"time": NaN, "idle_since": []}', '{"time": 1e999}']


@pytest.mark.parametrize("text", [*BROKEN, "\udcff"])
@pytest.mark.parametrize("which", ["limits", "first-boot"])
def test_a_broken_record_keeps_no_node(over: Node, which: str, text: str) -> None:
    path = over.limits if which == "limits" else over.state / "first-boot.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    called: list[str] = []
    for _ in range(2):  # a record that the first run cannot make sense of is gone for the second
        try:
            called = over.run()
        except AssertionError:
            called = (over.root / "called").read_text().splitlines()
    assert POWEROFF in called


def test_a_first_boot_that_cannot_be_read_is_dated_by_its_file(node: Node) -> None:
    first = node.state / "first-boot.json"
    first.write_text("{")
    os.utime(first, (0, time.time() - 3 * HOUR))
    assert not node.ends(TRAINYARD_MAX_HOURS="4")
    assert abs(json.loads(first.read_text())["time"] - (time.time() - 3 * HOUR)) < 5, "and mended"


def test_a_first_boot_in_the_future_does_not_count(node: Node) -> None:
    """Or a clock that was wrong for a moment would give a node years."""
    node.booted(ago=-1000 * HOUR)
    node.tick(TRAINYARD_MAX_HOURS="4")
    assert node.record()["deadline"] < time.time() + 4 * HOUR + MINUTE


@pytest.mark.parametrize("name", ["wall", "runuser"])
@pytest.mark.parametrize("fault", ["exit 1", "kill -KILL $$", "missing"])
def test_what_it_calls_keeps_no_node(over: Node, name: str, fault: str) -> None:
    over.program(name, fault)
    if fault == "missing":
        (over.root / "bin" / name).write_bytes(b"\0")  # no program at all
    assert POWEROFF in over.run()


def test_a_poweroff_that_fails_is_done_by_force_and_then_by_the_kernel(over: Node) -> None:
    over.program("systemctl", '[ "$2" != -i ]')
    assert [line for line in over.run() if line.startswith("systemctl")] == [POWEROFF, "systemctl poweroff -f"]
    sysrq = over.root / "proc/sysrq-trigger"
    sysrq.write_text("")
    over.program("systemctl", "exit 1")
    over.run()
    assert sysrq.read_text() == "o"


def test_a_poweroff_that_is_taken_and_never_comes_is_done_by_force(over: Node) -> None:
    seen = [[line.removeprefix("systemctl ") for line in over.run() if "poweroff" in line] for _ in range(6)]
    assert seen == [["poweroff -i"]] * 4 + [["poweroff -f"]] * 2


# --- settings that are missing or make no sense ---


def hours_of(node: Node) -> float:
    """How long the node may live, by its record."""
    record = node.record()
    return round((record["deadline"] - record["first"]["time"]) / HOUR)


@pytest.mark.parametrize(
    ("settings", "image", "hours", "idle"),
    [
        (None, "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        (None, None, 24, 60),
        ("", "TRAINYARD_CLUSTER=azure-xeon\n", 24, 60),
        ("TRAINYARD_MAX_HOURS=x\nTRAINYARD_IDLE_MINUTES=7\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 7),
        ("TRAINYARD_MAX_HOURS=-1\nTRAINYARD_IDLE_MINUTES=1e9\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        ("TRAINYARD_MAX_HOURS=\u0663\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        ("\ufeffTRAINYARD_MAX_HOURS=3\r\nTRAINYARD_IDLE_MINUTES=5\r\n", None, 3, 5),
        ("TRAINYARD_MAX_HOURS=3\nTRAINYARD_MODE=\udcff\udcfe\n", None, 3, 60),
        ("TRAINYARD_CLUSTER=moon\nTRAINYARD_MAX_HOURS=3\n", "TRAINYARD_CLUSTER=aws-xeon\n", 3, 60),
        ("TRAINYARD_MAX_HOURS=0\n", "TRAINYARD_CLUSTER=aws-xeon\n", None, 60),
    ],
)
def test_the_limits_of_a_node_whose_settings_are_missing_or_bad(
    node: Node, settings: str | None, image: str | None, hours: int | None, idle: int
) -> None:
    for name, text in (("etc/trainyard.env", settings), ("opt/trainyard/image.env", image)):
        (node.root / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (node.root / name).write_bytes(text.encode(errors="surrogateescape"))
    node.run()
    assert node.record()["idle_minutes"] == idle
    assert hours_of(node) == hours if hours else node.record()["deadline"] > time.time() + 10000 * HOUR


@pytest.mark.parametrize("settings", [None, "TRAINYARD_CLUSTER=local\nTRAINYARD_MAX_HOURS=never\n"])
def test_a_local_node_has_no_limit_but_the_one_that_is_set(node: Node, settings: str | None) -> None:
    """It costs nothing, and this machine may be somebody's own: its timer ends itself."""
    (node.root / "opt/trainyard").mkdir(parents=True)
    (node.root / "opt/trainyard/image.env").write_text("TRAINYARD_CLUSTER=local\n")
    if settings:
        (node.root / "etc/trainyard.env").write_text(settings)
    node.booted(ago=10000 * HOUR)
    assert node.run() == ["systemctl stop --no-block trainyard-limits.timer"]


def test_a_node_of_azure_whose_settings_are_lost_is_not_powered_off_either(node: Node) -> None:
    (node.root / "opt/trainyard").mkdir(parents=True)
    (node.root / "opt/trainyard/image.env").write_text("TRAINYARD_CLUSTER=azure-xeon\n")
    node.booted(ago=30 * HOUR)
    with cloud() as (server, environment):
        hosts = [f"{key}={value}\n" for key, value in environment.items() if key.endswith(("IMDS", "ARM"))]
        (node.root / "etc/trainyard.env").write_text("".join(hosts))
        assert not any("poweroff" in line for line in node.run())
        assert server.asked[-1].method == "POST"
