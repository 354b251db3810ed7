"""A stack in a cloud whose machines and bucket are played; what `--exclude` keeps in its state, Pulumi itself says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli

DATA = "urn:pulumi:yard::trainyard::aws:s3/bucket:Bucket::data"


NODE = "urn:pulumi:yard::trainyard::aws:ec2/instance:Instance::node1"


def live_resource(
    kind: str, identifier: str, usd: float | None = 0.0, holds: str = "", unseen: bool = False
) -> dict[str, Any]:
    """As infra.clouds.audit lists it."""
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


BUCKET = live_resource("bucket", "trainyard-yard", 0.01, "5 objects (older versions counted), 2.0 GB")


def destroyed_by_pulumi(urns: Iterable[str], needs: Mapping[str, list[str]], options: list[str]) -> set[str]:
    """The URNs that stay in the state when Pulumi's command destroys a stack of components with these dependencies.

    Components have no provider, so nothing else is needed. Skips the test, with the reason, without `pulumi`.
    """
    if shutil.which("pulumi") is None:
        pytest.skip("no pulumi on this machine")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Pulumi.yaml").write_text("name: trainyard\nruntime: yaml\n")
        resources = [{"urn": urn, "type": urn.split("::")[2], "dependencies": needs.get(urn, [])} for urn in urns]
        ordered = sorted(resources, key=lambda each: len(each["dependencies"]))  # what is needed comes first
        (folder / "state.json").write_text(json.dumps({"version": 3, "deployment": {"resources": ordered}}))
        env = {**os.environ, "PULUMI_HOME": name, "PULUMI_BACKEND_URL": f"file://{name}"}
        env |= {"PULUMI_CONFIG_PASSPHRASE": "", "PULUMI_SKIP_UPDATE_CHECK": "true"}
        for words in (
            ["stack", "init", "yard"],
            ["stack", "import", "--stack", "yard", "--file", "state.json"],
            ["destroy", "--stack", "yard", *options, *pulumi_cli.YES],
            ["stack", "export", "--stack", "yard"],
        ):
            argv = ["pulumi", *words, "--non-interactive"]
            done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        return {entry["urn"] for entry in json.loads(done.stdout)["deployment"].get("resources", [])}


class Played:
    """Pulumi and one stack on AWS: a node, and a bucket with something in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = {NODE: "i-1", DATA: "trainyard-yard"}
        self.there = [live_resource("instance", "i-1", 1.6), dict(BUCKET)]
        self.needs: dict[str, list[str]] = {}
        """What each depends on, all the way: it stays in the state with what is excluded."""
        self.refuses: set[str] = set()
        """The kinds that a sweep cannot remove."""
        self.retains = False
        """Whether Pulumi lets go of the bucket instead of deleting it."""
        self.stays: list[dict[str, Any]] = []
        self.facts = {"cluster": "aws-xeon", "cloud": "aws", "keep_data": False}
        self.ran: list[list[str]] = []
        self.forgot = False
        """Whether the user's record of the stack was removed."""
        fake_backend.play(
            monkeypatch,
            facts_of=lambda _stack: self.facts,
            ask=self.ask,
            follow=self.follow,
            exported=self.exported,
        )

    def move_to_azure(self) -> None:
        """A node and an account whose firewall names the subnet, which is behind a NAT gateway."""
        self.facts = {"cluster": "azure-xeon", "cloud": "azure", "keep_data": False}
        self.state = dict(AZURE.values())
        self.needs = {
            AZURE[name][0]: [AZURE[other][0] for other in ("group", "nat-address", "nat", "network", "subnet")]
            for name in ("data", "container")
        }
        ids = {name: identifier.lower() for name, (_, identifier) in AZURE.items()}
        self.there = [
            *(live_resource("machine", ids["node1"], 1.6), live_resource("network", ids["network"])),
            *(live_resource("NAT gateway", ids["nat"], 0.045), live_resource("address", ids["nat-address"], 0.005)),
            *(
                live_resource("storage account", ids["data"], 0.01, "3 blobs"),
                live_resource("resource group", ids["group"]),
            ),
        ]

    def exported(self, _stack: str) -> list[dict[str, Any]]:
        return [{"urn": urn, "type": urn.split("::")[2], "id": identifier} for urn, identifier in self.state.items()]

    def follow(self, argv: Sequence[str], **_more: str) -> int:
        self.ran.append(list(argv))
        if "destroy" in argv:
            excluded = [entry for entry in argv if entry.startswith("--exclude=")]
            kept = destroyed_by_pulumi(self.state, self.needs, excluded) if excluded else set()
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
