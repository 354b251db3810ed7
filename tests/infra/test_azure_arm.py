"""What runs inside a machine on Azure during `up`: over HTTP, against a stand-in of the documented interface."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from azure.core.credentials import AccessToken
from azure_arm import MACHINE, Machine, serve
from http_server import Answer, Asked

from infra.clouds.azure import arm, credentials, image, run_command, running_machine
from infra.clouds.azure.budget import MonthProvider
from infra.clouds.azure.builder_stop import StopError, StopProvider
from infra.clouds.azure.run_command import CommandError, CommandProvider
from infra.state import operation

BUILDER = {"name": "builder-0123456789abcdef", "machine": MACHINE, "incarnation": "one"}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


class Token:
    """Who may come in."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://management.azure.com/.default",)
        return AccessToken("let-me-in", int(time.time()) + 3600)


@pytest.fixture
def vm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    with serve(machine) as address:
        monkeypatch.setattr(arm, "ENDPOINT", address)
        monkeypatch.setattr(running_machine, "WAIT", 0.01)
        monkeypatch.setattr(arm, "credential", Token)
        yield machine


def props(**changed: object) -> dict[str, Any]:
    return {
        **{"name": "gate", "machine": MACHINE, "incarnation": "one", "location": "eastus", "script": "true"},
        **{"seconds": 60, "wanted": "(?s).*", "builder": False, "output": None},
        **changed,
    }


def test_a_command_ends_with_what_it_printed(vm: Machine) -> None:
    vm.view["output"] = f"{KEY}\n"
    made = CommandProvider().create(props(wanted="ssh-ed25519 [A-Za-z0-9+/=]+"))
    assert made.outs is not None and made.outs["output"] == KEY
    (sent,) = vm.commands.values()
    assert (sent["location"], sent["source"], sent["timeoutInSeconds"]) == ("eastus", {"script": "true"}, 60)
    assert vm.asked.count("GET /runCommands/gate") == 3, "it was waited for"


def test_a_command_that_failed_shows_what_it_said_last_and_its_machine_stays(vm: Machine) -> None:
    vm.view |= {"executionState": "Failed", "exitCode": 3, "output": "the log's tail", "error": "no such thing"}
    with pytest.raises(CommandError) as caught:
        CommandProvider().create(props(name="host-key"))
    assert str(caught.value) == "host-key: Failed, exit code 3\nthe log's tail\nno such thing"
    assert vm.power == "running"


def test_a_bake_that_failed_leaves_no_builder_running_and_can_be_tried_again(vm: Machine) -> None:
    vm.view |= {"executionState": "Failed", "exitCode": 1, "output": "bake failed: no torch"}
    with pytest.raises(CommandError) as caught:
        CommandProvider().create(props(builder=True))
    assert "bake failed: no torch" in str(caught.value) and "was stopped (deallocated)" in str(caught.value)
    assert vm.power == "deallocated"
    vm.view |= {"executionState": "Succeeded", "exitCode": 0, "output": ' "image": "0123456789abcdef",'}
    made = CommandProvider().create(props(builder=True, wanted="0123456789abcdef"))
    assert "POST /start" in vm.asked and vm.power == "running"
    assert made.outs is not None and made.outs["output"] == "0123456789abcdef"


def test_an_image_that_is_not_the_one_asked_for_is_no_success(vm: Machine) -> None:
    vm.view["output"] = ' "image": "ffffffffffffffff",'
    with pytest.raises(CommandError, match="nothing like 0123456789abcdef"):
        CommandProvider().create(props(builder=True, wanted="0123456789abcdef"))
    assert vm.power == "deallocated"


def test_a_builder_that_cannot_be_stopped_is_told_with_the_command(
    vm: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm.view |= {"executionState": "Failed", "exitCode": 1}
    refused = arm.ArmError("POST: 403 AuthorizationFailed")
    monkeypatch.setattr(running_machine.RunningMachine, "deallocate", lambda self: (_ for _ in ()).throw(refused))
    with pytest.raises(CommandError, match=re.escape(f"az vm deallocate --ids {MACHINE}")):
        CommandProvider().create(props(builder=True))


def test_an_interrupted_bake_stops_its_builder(vm: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    vm.looks = 10**6
    monkeypatch.setattr(operation.interrupted, "is_set", lambda: len(vm.asked) > 5)
    with pytest.raises(CommandError, match="interrupted"):
        CommandProvider().create(props(builder=True))
    assert vm.power == "deallocated"


def test_a_machine_that_is_off_says_so_in_azures_words(vm: Machine) -> None:
    vm.power = "deallocated"
    with pytest.raises(arm.ArmError, match="409 OperationNotAllowed: Cannot modify extensions"):
        CommandProvider().create(props())


def test_a_command_that_never_ends_is_given_up(vm: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    vm.looks = 10**6
    monkeypatch.setattr(run_command, "_GRACE", -0.8)
    with pytest.raises(arm.ArmError, match="gate on trainyard-xeon-vm: not within"):
        CommandProvider().create(props(seconds=1))


def test_an_answer_that_is_busy_is_asked_again(vm: Machine) -> None:
    vm.broken = 2
    assert running_machine.RunningMachine(MACHINE).power() == "running"


def test_only_another_machine_is_asked_again() -> None:
    olds = props(output="x")
    assert not CommandProvider().diff("id", olds, props(script="another", seconds=1)).changes
    assert CommandProvider().diff("id", olds, props(incarnation="two")).replaces == ["incarnation"]


def test_the_builder_is_deallocated_when_it_has_switched_itself_off(vm: Machine) -> None:
    looks = iter([*["running"] * 3, "stopped"])

    def seal(machine: Machine) -> None:
        if machine.power != "deallocated":
            machine.power = next(looks)

    vm.on_power = seal
    StopProvider().create(BUILDER)
    assert vm.power == "deallocated"
    assert vm.asked.index("POST /deallocate") == 4, "not before it was sealed"


def test_a_builder_that_would_not_be_sealed_is_no_image_and_is_deallocated(
    vm: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.clouds.azure.builder_stop.SEALING", 0.05)
    for reason in ("sealed and off: not within", "there is no proof that it was sealed"):
        with pytest.raises(StopError, match=reason) as caught:
            StopProvider().create(BUILDER)
        assert "pulumi up --replace '**::builder-0123456789abcdef'" in str(caught.value)
        assert vm.power == "deallocated"


def test_a_budgets_month_is_looked_up_once() -> None:
    made = MonthProvider().create({"of": "group", "first": None})
    assert made.outs is not None
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])-01T00:00:00Z", made.outs["first"])
    assert not MonthProvider().diff("2020-01", {"of": "group", "first": "2020-01-01"}, {"of": "group"}).changes
    assert MonthProvider().diff("2020-01", {"of": "group"}, {"of": "another"}).replaces == ["of"]


@pytest.mark.parametrize(
    "environment, kind",
    [
        ({}, "AzureCliCredential"),
        ({"ARM_TENANT_ID": "t", "ARM_CLIENT_ID": "c", "ARM_CLIENT_SECRET": "s"}, "ClientSecretCredential"),
        ({"ARM_USE_MSI": "true"}, "ManagedIdentityCredential"),
    ],
)
def test_the_account_is_the_one_of_pulumis_provider(
    environment: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ARM_TENANT_ID", "ARM_CLIENT_ID", "ARM_CLIENT_SECRET", "ARM_CLIENT_CERTIFICATE_PATH", "ARM_USE_MSI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(credentials.credential()).__name__ == kind


# --- the gate's script, on files of a test's own ---


class Builder:
    """A directory that stands for the builder's root, and commands that stand for its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "var/lib/trainyard", "var/log", "run/cloud-init"):
            (root / folder).mkdir(parents=True)
        (root / "var/log/trainyard-bootstrap.log").write_text("one\n" * 2000 + "the last line\n")
        (root / "var/log/cloud-init-output.log").write_text("cloud-init says\n")
        self.command("systemctl", "[ $1 = restart ] && exit; [ $1 = is-active ] && echo activating; exit 3")
        self.command("sleep", "exit 0")

    def command(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def record(self, name: str, text: str, *, old: bool = False) -> None:
        path = self.root / "var/lib/trainyard" / name
        path.write_text(text)
        if old:
            subprocess.run(["touch", "-d", "2001-01-01", path], check=True)

    def run(self, seconds: float = 20) -> subprocess.CompletedProcess[str]:
        text = re.sub(r"(?<![\w.])/(var|run)/", rf"{self.root}/\1/", image.script("gate.sh"))
        path = f"{self.root}/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=seconds, check=False
        )


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_the_gate_opens_for_the_record_and_says_which_image(builder: Builder) -> None:
    builder.record("ready.json", '{\n "mode": "bake",\n "image": "0123456789abcdef",\n "time": 1\n}\n')
    done = builder.run()
    assert (done.returncode, done.stdout) == (0, ' "image": "0123456789abcdef",\n')


def test_the_gate_stays_shut_for_a_failure_and_shows_the_logs_tail(builder: Builder) -> None:
    builder.record("failed.json", '{\n "step": "torch",\n "reason": "cannot install torch",\n "log": []\n}\n')
    done = builder.run()
    assert done.returncode == 1
    assert done.stdout.endswith('bake failed:  "step": "torch", "reason": "cannot install torch", \n')
    assert "the last line" in done.stdout and len(done.stdout) < 4096, "all of it fits into what Azure keeps"


def test_the_gate_does_not_take_an_older_boots_word(builder: Builder) -> None:
    builder.record("ready.json", '{\n "image": "0123456789abcdef"\n}\n', old=True)
    with pytest.raises(subprocess.TimeoutExpired):
        builder.run(2)


def test_the_gate_notices_a_bootstrap_that_never_began(builder: Builder) -> None:
    builder.command("systemctl", "[ $1 = restart ] && exit; [ $1 = is-active ] && echo inactive; exit 3")
    (builder.root / "run/cloud-init/result.json").write_text("{}")
    done = builder.run()
    assert done.returncode == 1
    assert "cloud-init is done and the bootstrap never began: cloud-init says" in done.stdout


def test_the_gate_gives_the_builder_three_hours_from_now(builder: Builder) -> None:
    """The end that its user data has set counts from the boot, and this may be another try in the same boot."""
    builder.command("systemctl", f'echo "$@" >>{builder.root}/called; [ $1 = restart ]')
    builder.record("ready.json", ' "image": "x"\n')
    assert builder.run().returncode == 0
    assert (builder.root / "called").read_text().splitlines()[0] == "restart trainyard-builder-end.timer"


def test_a_builder_that_would_not_end_by_itself_is_not_waited_for(builder: Builder) -> None:
    builder.command("systemctl", "exit 5")
    builder.record("ready.json", ' "image": "x"\n')
    done = builder.run()
    assert done.returncode == 1 and "the builder would not end by itself" in done.stdout


# --- the builder's last resort, from its user data ---


@pytest.fixture
def last_resort(builder: Builder) -> Builder:
    """What cloud-init runs first, run under a root of the test's."""
    builder.command("systemctl", f'echo "$@" >>{builder.root}/called')
    text = image.last_resort().replace("/run/", f"{builder.root}/run/")
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{builder.root}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return builder


def test_the_builders_user_data_sets_its_end_before_anything_else(last_resort: Builder) -> None:
    """The gate alone would not do: it runs once the agent answers, which it may never do. Nothing stays on the disk."""
    assert (last_resort.root / "called").read_text() == "start --no-block trainyard-builder-end.timer\n"
    timer = (last_resort.root / "run/systemd/system/trainyard-builder-end.timer").read_text()
    assert "OnActiveSec=3h\n" in timer and "OnUnitInactiveSec=1min\n" in timer, "and it tries again"
    written = {str(path.relative_to(last_resort.root)) for path in last_resort.root.rglob("*builder-end*")}
    assert {path.split("/")[0] for path in written} == {"run"}
    assert "poweroff" not in image.last_resort(), "which would go on to be billed"


def test_the_last_resort_deallocates_the_builder_by_its_own_identity(last_resort: Builder) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/metadata/identity/"):
            return Answer(body=b'{"access_token": "secret"}')
        if asked.path.startswith("/metadata/instance/"):
            return Answer(body=MACHINE.encode())
        return Answer(202)

    unit = (last_resort.root / "run/systemd/system/trainyard-builder-end.service").read_text()
    command = re.search(r"^ExecStart=/usr/bin/(.*)$", unit, re.MULTILINE)
    assert command
    with http_server.serve(answer) as server:
        environment = {"PATH": "/usr/bin:/bin", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        done = subprocess.run(command[1].split(), env=environment, capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        last = server.asked[-1]
    assert (last.method, last.path) == ("POST", f"{MACHINE}/deallocate?api-version=2024-11-01")
    assert last.headers["authorization"] == "Bearer secret"


def test_systemd_knows_every_word_of_the_last_resort(last_resort: Builder) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine")
    units = sorted((last_resort.root / "run/systemd/system").glob("trainyard-builder-end.*"))
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
