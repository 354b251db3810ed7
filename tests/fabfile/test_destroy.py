"""`fab destroy`, `recover` and `audit` of a stack in a cloud: what is asked, what is kept, and when it is not over.

Pulumi and the cloud are played here; what the audit sees is shown in test_orphans_aws and test_orphans_azure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.stacks import orphans, pulumi_cli
from fabfile.verbs import destroy as destroying
from fabfile.verbs import recover as recovering
from fabfile.verbs.up import refresh

ROOT = Path(__file__).resolve().parents[2]
DATA = "urn:pulumi:yard::trainyard::aws:s3/bucket:Bucket::data"
NODE = "urn:pulumi:yard::trainyard::aws:ec2/instance:Instance::node1"


def thing(kind: str, identifier: str, usd: float | None = 0.0, holds: str = "", unseen: bool = False) -> dict[str, Any]:
    return {
        **{"kind": kind, "what": identifier, "owner": identifier, "id": "", "usd_per_hour": usd},
        **{"holds": holds, "ours": True, "whose": "", "unseen": unseen},
    }


GROUP = "/subscriptions/S/resourceGroups/trainyard-yard"
AZURE = {
    name: (
        f"urn:pulumi:yard::trainyard::azure-native:{kind}::{name}",
        f"{GROUP}{path and '/providers/Microsoft.'}{path}",
    )
    for name, kind, path in (
        ("group", "resources:ResourceGroup", ""),
        ("nat-address", "network:PublicIPAddress", "Network/publicIPAddresses/nat"),
        ("nat", "network:NatGateway", "Network/natGateways/nat"),
        ("network", "network:VirtualNetwork", "Network/virtualNetworks/net"),
        ("subnet", "network:Subnet", "Network/virtualNetworks/net/subnets/net"),
        ("node1", "compute:VirtualMachine", "Compute/virtualMachines/node1"),
        ("data", "storage:StorageAccount", "Storage/storageAccounts/tyyard"),
        ("container", "storage:BlobContainer", "Storage/storageAccounts/tyyard/blobServices/default/containers/data"),
    )
}
"""Name -> urn and id, as the program declares them and Pulumi's state has them."""

BUCKET = thing("bucket", "trainyard-yard", 0.01, "5 objects (older versions counted), 2.0 GB")


class Played:
    """Pulumi and one stack on AWS: a node, and a bucket with something in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = {NODE: "i-1", DATA: "trainyard-yard"}
        self.there = [thing("instance", "i-1", 1.6), dict(BUCKET)]
        self.needs: dict[str, list[str]] = {}
        """What each depends on, all the way: it stays in the state with what is excluded."""
        self.refuses: set[str] = set()
        """The kinds that a sweep cannot remove."""
        self.retains = False
        """Whether Pulumi lets go of the bucket instead of deleting it."""
        self.stays: list[dict[str, Any]] = []
        self.told = {"cluster": "aws-xeon", "cloud": "aws", "keep_data": False}
        self.ran: list[list[str]] = []
        self.forgot = False
        """Whether the user's record of the stack was removed."""
        fake_backend.play(
            monkeypatch,
            about=lambda _stack: self.told,
            ask=self.ask,
            follow=self.follow,
            exported=self.exported,
        )

    def move_to_azure(self) -> None:
        """A node and an account whose firewall names the subnet, which is behind a NAT gateway."""
        self.told = {"cluster": "azure-xeon", "cloud": "azure", "keep_data": False}
        self.state = dict(AZURE.values())
        self.needs = {
            AZURE[name][0]: [AZURE[other][0] for other in ("group", "nat-address", "nat", "network", "subnet")]
            for name in ("data", "container")
        }
        ids = {name: identifier.lower() for name, (_, identifier) in AZURE.items()}
        self.there = [
            *(thing("machine", ids["node1"], 1.6), thing("network", ids["network"])),
            *(thing("NAT gateway", ids["nat"], 0.045), thing("address", ids["nat-address"], 0.005)),
            *(thing("storage account", ids["data"], 0.01, "3 blobs"), thing("resource group", ids["group"])),
        ]

    def exported(self, _stack: str) -> list[dict[str, Any]]:
        return [{"urn": urn, "type": urn.split("::")[2], "id": identifier} for urn, identifier in self.state.items()]

    def follow(self, argv: Sequence[str], **_more: str) -> int:
        self.ran.append(list(argv))
        if "destroy" in argv:
            kept = {entry.removeprefix("--exclude=") for entry in argv if entry.startswith("--exclude=")}
            kept |= {needed for urn in kept for needed in self.needs.get(urn, [])}
            gone = {identifier.lower() for urn, identifier in self.state.items() if urn not in kept}
            self.state = {urn: identifier for urn, identifier in self.state.items() if urn in kept}
            self.there = [
                entry
                for entry in self.there
                if entry["owner"] not in gone or (self.retains and entry["kind"] in ("bucket", "resource group"))
            ]
            self.there += self.stays
        return 0

    def ask(self, argv: Sequence[str]) -> str:
        if "--forget" in argv:
            self.forgot = True
            return "[]"
        known = [entry.lower() for entry in json.loads(argv[argv.index("--known") + 1])]
        found = [entry for entry in self.there if entry["owner"] not in known]
        if "--sweep" in argv:
            found = [e for e in found if not e["unseen"] and ("--delete-data" in argv or not e["holds"])]
            self.there = [entry for entry in self.there if entry not in found or entry["kind"] in self.refuses]
            if any(entry["kind"] in self.refuses for entry in found):
                raise Exit("could not be removed:\nthe reason", code=1)
        return json.dumps(found)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def destroy(**options: bool) -> None:
    destroying.destroy(Context(), stack="yard", yes=True, **options)


def test_yes_is_for_the_machines_and_not_for_the_data(played: Played) -> None:
    with pytest.raises(
        Exit, match=r"bucket trainyard-yard, with 5 objects .*: add --delete-data, or --keep-data"
    ) as no:
        destroy()
    assert no.value.code == 2 and played.ran == []


def test_data_that_is_given_up_goes_with_the_rest(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    destroy(delete_data=True)
    assert played.there == [] and "nothing of stack yard is left\n" in capsys.readouterr().out


def test_data_that_is_kept_stays_in_the_state_and_is_said(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    destroy(keep_data=True)
    assert f"--exclude={DATA}" in played.ran[0] and [*played.state] == [DATA]
    out = capsys.readouterr().out
    assert "kept: bucket trainyard-yard, with 5 objects" in out and "0.0100 USD per hour" in out
    assert "nothing of stack yard is left but the data that you keep" in out


def test_the_settings_keep_data_unless_told_otherwise(played: Played) -> None:
    """What the last `up` retained, Pulumi only lets go of: --delete-data still means it."""
    played.told["keep_data"] = True
    destroy()
    assert [entry["kind"] for entry in played.there] == ["bucket"]
    played.retains = True
    destroy(delete_data=True)
    assert played.there == []


def test_data_that_is_kept_on_azure_keeps_nothing_else(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """Pulumi keeps all that the account depends on; a NAT gateway costs while nobody uses it."""
    played.move_to_azure()
    destroy(keep_data=True)
    assert AZURE["nat"][0] in played.state, "Pulumi has kept it"
    assert [entry["kind"] for entry in played.there] == ["storage account", "resource group"]
    out = capsys.readouterr().out
    assert "kept: storage account" in out and "nothing of stack yard is left but the data that you keep" in out
    recovering.audit(Context(), stack="yard")


def test_what_the_kept_data_holds_on_to_is_told_with_its_price(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.move_to_azure()
    played.refuses = {"network", "NAT gateway"}
    with pytest.raises(
        Exit, match=r"2 resources of stack yard remain \(listed above\), cost: 0\.0450 USD per hour; .*fab recover"
    ) as no:
        destroy(keep_data=True)
    assert no.value.code == 1
    out = capsys.readouterr().out
    assert "the reason" in out and "kept: storage account" in out and "nothing of stack" not in out


def test_an_account_that_no_state_knows_is_kept_with_its_group(played: Played) -> None:
    played.move_to_azure()
    played.there[4]["holds"] = ""
    played.state = {AZURE["node1"][0]: AZURE["node1"][1]}
    destroy(keep_data=True)
    assert [entry["kind"] for entry in played.there] == ["storage account", "resource group"]


@pytest.mark.parametrize("holds", ["", "5 objects"])
def test_data_that_the_last_up_retained_goes_when_it_is_given_up(holds: str, played: Played) -> None:
    """Pulumi lets go of an empty bucket as of a full one."""
    played.told["keep_data"], played.retains, played.there[1]["holds"] = True, True, holds
    destroy(delete_data=True)
    assert played.there == []


def test_an_empty_bucket_is_not_asked_about(played: Played) -> None:
    played.there[1]["holds"] = ""
    destroy()
    assert played.there == []


def test_a_bucket_that_cannot_be_looked_into_is_taken_for_full(played: Played) -> None:
    played.there = [thing("bucket", "cannot be listed: AccessDenied", None, unseen=True)]
    with pytest.raises(Exit, match="add --delete-data, or --keep-data"):
        destroy()


def test_it_is_not_over_while_something_still_costs(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.stays = [thing("volume", "vol-1", 0.02), thing("image", "ami-1", None)]
    with pytest.raises(
        Exit,
        match=r"2 resources of stack yard remain \(listed above\), cost: at least 0\.0200 USD per hour; .*fab recover",
    ) as no:
        destroy(delete_data=True)
    assert no.value.code == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["vol-1", "volume", "vol-1", "0.0200"] in rows and ["ami-1", "image", "ami-1", "?"] in rows


def test_what_could_not_be_looked_at_is_not_called_clean(played: Played) -> None:
    played.stays = [thing("placement group", "cannot be listed: UnauthorizedOperation", None, unseen=True)]
    with pytest.raises(Exit, match=r"1 resource of stack yard remains \(listed above\)"):
        destroy(delete_data=True)


def test_a_refresh_asks_what_is_really_there(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    refresh(Context(), stack="yard")
    assert played.ran == [["pulumi", "refresh", "--stack", "yard", "--yes", "--skip-preview"]]
    assert "next: fab up" in capsys.readouterr().out


def test_an_audit_compares_ids(played: Played) -> None:
    """Two machines of one name: the one whose id the state does not have is nobody's."""
    recovering.audit(Context(), stack="yard")
    played.there.append(thing("instance", "i-2", 1.6))
    with pytest.raises(Exit, match=r"1 resource of stack yard is outside its state \(listed above\)"):
        recovering.audit(Context(), stack="yard")


def test_a_recovery_sweeps_what_is_nobodys_and_never_data(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.there.append(thing("instance", "i-2", 1.6))
    recovering.recover(Context(), stack="yard", yes=True)
    assert [entry["owner"] for entry in played.there] == ["i-1", "trainyard-yard"]
    del played.state[DATA]
    with pytest.raises(Exit, match=r"1 resource of stack yard remains \(listed above\)"):
        recovering.recover(Context(), stack="yard", yes=True)
    assert "data is never swept; remove it: fab destroy --delete-data" in capsys.readouterr().out


def test_a_recovery_waits_for_what_a_cloud_still_lists(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    going = thing("volume", "vol-1", 0.02)
    answers = iter([[going], [going], []])
    monkeypatch.setattr(orphans, "SETTLE_S", 60.0)
    monkeypatch.setattr(orphans, "SETTLE_POLL_S", 0.0)
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: json.dumps(next(answers)))
    recovering.recover(Context(), stack="yard", yes=True)
    assert next(answers, None) is None, "one sweep, and two looks"


def test_both_ways_at_once_is_no_way(played: Played) -> None:
    with pytest.raises(Exit, match="only one of them") as no:
        destroy(keep_data=True, delete_data=True)
    assert no.value.code == 2 and played.ran == []


def test_a_cloud_stack_whose_file_is_gone_is_not_audited_as_a_local_one(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_stack: str) -> dict[str, Any]:
        raise Exit("stack = 'yard': must be one with a file", code=2)

    monkeypatch.setattr(pulumi_cli, "about", broken)
    with pytest.raises(Exit, match="the stack is in a cloud, and its file says where") as no:
        destroy(delete_data=True)
    assert no.value.code == 2 and played.ran == []
    played.state = {"urn:pulumi:yard::trainyard::pulumi-python:dynamic:Resource::node1": "x"}
    assert orphans.about("yard")["cloud"] == ""
    for provider in ("pulumi-python", "pulumi"):  # as Pulumi's command writes them for a local stack
        played.state[f"urn:pulumi:yard::trainyard::pulumi:providers:{provider}::default"] = "x"
    assert orphans.about("yard")["cloud"] == ""
    played.state = {"urn:pulumi:yard::trainyard::pulumi:providers:aws::aws": "x"}  # an `up` that came no further
    with pytest.raises(Exit, match="the stack is in a cloud"):
        orphans.about("yard")


@pytest.mark.parametrize("verb", [destroying.destroy, recovering.recover, recovering.audit])
@pytest.mark.parametrize("pulumi", [True, False])
def test_a_broken_file_of_a_stack_that_is_nowhere_to_be_seen_ends_the_verb(
    verb: Any, pulumi: bool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_argv: Any) -> Any:
        raise Exit("Pulumi.yard.yaml: not YAML", code=2)

    played.state = {"urn:pulumi:yard::trainyard::pulumi:pulumi:Stack::yard": ""} if pulumi else {}
    playing = {"about": broken, "ask": broken, "has_pulumi": lambda: pulumi, "resources": lambda _stack: []}
    for name, value in playing.items():
        monkeypatch.setattr(pulumi_cli, name, value)
    with pytest.raises(Exit, match="not YAML") as no:
        verb(Context(), stack="yard", **({} if verb is recovering.audit else {"yes": True}))
    assert no.value.code == 2 and played.ran == []


@pytest.mark.parametrize("verb", [destroying.destroy, recovering.recover, recovering.audit])
def test_without_pulumi_a_cloud_is_refused_in_a_line(
    verb: Any, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulumi_cli, "has_pulumi", lambda: False)
    options = {} if verb is recovering.audit else {"yes": True}
    with pytest.raises(Exit, match="stack yard is in a cloud: that needs the `pulumi` command") as no:
        verb(Context(), stack="yard", **options)
    assert no.value.code == 2 and "\n" not in no.value.message and played.ran == []


def test_without_a_clouds_packages_the_line_names_the_extra() -> None:
    """In a fresh interpreter that has none of them."""
    code = (
        "import sys; sys.modules['boto3'] = None; sys.modules['pulumi_aws'] = None\n"
        "from infra.clouds import sdk\n"
        "for name in ('infra.clusters.aws_xeon', 'infra.clouds.aws.orphans', 'infra.clouds.aws.account'):\n"
        "    try: sdk.load(name)\n"
        "    except sdk.UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.endswith("is not installed: pip install -e '.[aws]'") for line in lines), done
