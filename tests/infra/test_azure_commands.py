"""What runs inside a machine on Azure during `up`: over HTTP, against a stand-in of the documented interface."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure_arm import MACHINE, Machine, serve

from infra.clouds.azure import arm, run_command, running_machine
from infra.clouds.azure.budget import MonthProvider
from infra.clouds.azure.builder_stop import StopError, StopProvider
from infra.clouds.azure.run_command import CommandProvider, RunCommandError
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
    with pytest.raises(RunCommandError) as caught:
        CommandProvider().create(props(name="host-key"))
    assert str(caught.value) == "host-key: Failed, exit code 3\nthe log's tail\nno such thing"
    assert vm.power == "running"


def test_a_bake_that_failed_leaves_no_builder_running_and_can_be_tried_again(vm: Machine) -> None:
    vm.view |= {"executionState": "Failed", "exitCode": 1, "output": "bake failed: no torch"}
    with pytest.raises(RunCommandError) as caught:
        CommandProvider().create(props(builder=True))
    assert "bake failed: no torch" in str(caught.value) and "was stopped (deallocated)" in str(caught.value)
    assert vm.power == "deallocated"
    vm.view |= {"executionState": "Succeeded", "exitCode": 0, "output": ' "image": "0123456789abcdef",'}
    made = CommandProvider().create(props(builder=True, wanted="0123456789abcdef"))
    assert "POST /start" in vm.asked and vm.power == "running"
    assert made.outs is not None and made.outs["output"] == "0123456789abcdef"


def test_an_image_that_is_not_the_one_asked_for_is_no_success(vm: Machine) -> None:
    vm.view["output"] = ' "image": "ffffffffffffffff",'
    with pytest.raises(RunCommandError, match="gate: no 0123456789abcdef in its output"):
        CommandProvider().create(props(builder=True, wanted="0123456789abcdef"))
    assert vm.power == "deallocated"


def test_a_builder_that_cannot_be_stopped_is_told_with_the_command(
    vm: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm.view |= {"executionState": "Failed", "exitCode": 1}
    refused = arm.ArmError("POST: 403 AuthorizationFailed")
    monkeypatch.setattr(running_machine.RunningMachine, "deallocate", lambda self: (_ for _ in ()).throw(refused))
    with pytest.raises(RunCommandError, match=re.escape(f"az vm deallocate --ids {MACHINE}")):
        CommandProvider().create(props(builder=True))


def test_an_interrupted_bake_stops_its_builder(vm: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    vm.looks = 10**6
    monkeypatch.setattr(operation.interrupted, "is_set", lambda: len(vm.asked) > 5)
    with pytest.raises(RunCommandError, match="interrupted"):
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
