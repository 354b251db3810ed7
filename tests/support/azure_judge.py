"""Says what Azure would refuse of what is sent to it, by the table azure_judge.tsv. No account is needed.

refused("azure-native:network:NatGateway", inputs)      # lines, each with a path, a value and what is allowed
refused_request("PUT", path, query, body)               # the same for a request of our own to ARM
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LEARN = "https://learn.microsoft.com/azure"
SOURCES = {
    "types": "Azure/bicep-types-az on GitHub: generated/*/<provider>/<version>/types.json, as of 2026-08-20",
    "specs": "Azure/azure-rest-api-specs on GitHub: the property's description in the version of the type",
    "names": f"{LEARN}/azure-resource-manager/management/resource-name-rules",
    "reserved": f"{LEARN}/azure-resource-manager/troubleshooting/error-reserved-resource-name",
    "tags": f"{LEARN}/azure-resource-manager/management/tag-resources#limitations",
    "ids": f"{LEARN}/azure-resource-manager/templates/template-functions-resource#resourceid",
    "regions": f"{LEARN}/reliability/regions-list",
    "firewall": f"{LEARN}/storage/common/storage-network-security-limitations",
    "lifecycle": f"{LEARN}/storage/blobs/lifecycle-management-policy-structure",
    "roles": f"{LEARN}/role-based-access-control/custom-roles",
    "gallery": f"{LEARN}/virtual-machines/shared-image-galleries",
    "keys": f"{LEARN}/virtual-machines/linux/mac-create-ssh-keys#supported-ssh-key-formats",
    "sizes": f"{LEARN}/virtual-machines/sizes/general-purpose/d-family",
    "runs": f"{LEARN}/virtual-machines/linux/run-command-managed",
}
"""Where a row of the table is from."""
TYPES = {
    "resources:ResourceGroup": "Microsoft.Resources/resourceGroups@2024-03-01",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks@2024-05-01",
    "network:Subnet": "Microsoft.Network/virtualNetworks/subnets@2024-05-01",
    "network:NetworkSecurityGroup": "Microsoft.Network/networkSecurityGroups@2024-05-01",
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses@2024-05-01",
    "network:NatGateway": "Microsoft.Network/natGateways@2024-05-01",
    "network:NetworkInterface": "Microsoft.Network/networkInterfaces@2024-05-01",
    "network:FlowLog": "Microsoft.Network/networkWatchers/flowLogs@2024-05-01",
    "managedidentity:UserAssignedIdentity": "Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31",
    "authorization:RoleDefinition": "Microsoft.Authorization/roleDefinitions@2022-05-01-preview",
    "authorization:RoleAssignment": "Microsoft.Authorization/roleAssignments@2022-04-01",
    "consumption:Budget": "Microsoft.Consumption/budgets@2024-08-01",
    "storage:StorageAccount": "Microsoft.Storage/storageAccounts@2024-01-01",
    "storage:BlobContainer": "Microsoft.Storage/storageAccounts/blobServices/containers@2024-01-01",
    "storage:BlobServiceProperties": "Microsoft.Storage/storageAccounts/blobServices@2024-01-01",
    "storage:ManagementPolicy": "Microsoft.Storage/storageAccounts/managementPolicies@2024-01-01",
    "compute:VirtualMachine": "Microsoft.Compute/virtualMachines@2024-11-01",
    "compute:ProximityPlacementGroup": "Microsoft.Compute/proximityPlacementGroups@2024-11-01",
    "compute:Snapshot": "Microsoft.Compute/snapshots@2024-03-02",
    "compute:Gallery": "Microsoft.Compute/galleries@2024-03-03",
    "compute:GalleryImage": "Microsoft.Compute/galleries/images@2024-03-03",
    "compute:GalleryImageVersion": "Microsoft.Compute/galleries/images/versions@2024-03-03",
}
"""The type and version that pulumi-azure-native 3.29 sends a resource as."""
RUN_COMMAND = "Microsoft.Compute/virtualMachines/runCommands@2024-11-01"
_TABLE = Path(__file__).with_name("azure_judge.tsv")
_KINDS: dict[str, Any] = {"text": str, "number": (int, float), "bool": bool, "list": list, "object": dict}
_TAG = re.compile(r"(?!azure|windows|microsoft)[^<>%&\\?/\x00-\x1f]{1,128}", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """A row of the table: what Azure takes for one value."""

    path: str
    kind: str
    required: bool
    least: float | None
    most: float | None
    allowed: str
    source: str

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value; None where nothing is."""
        kind = _KINDS[self.kind]
        if not isinstance(value, kind) or (isinstance(value, bool) and self.kind != "bool"):
            return f"must be a {self.kind}"
        size = value if self.kind == "number" else len(value) if self.kind in ("text", "list") else 0
        if (self.least is not None and size < self.least) or (self.most is not None and size > self.most):
            return f"must be from {self.least} to {self.most}"
        if self.allowed.startswith("/"):
            fits = re.fullmatch(self.allowed[1:-1], value) is not None
        else:
            fits = not self.allowed or value in self.allowed.split("|")
        return None if fits else f"must be {self.allowed}"


@cache
def forms() -> dict[str, dict[str, Form]]:
    """Type -> path -> what is allowed there."""
    found: dict[str, dict[str, Form]] = {}
    section: dict[str, Form] = {}
    for line in _TABLE.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            path, kind, required, least, most, allowed, source = line.split("\t")
            bounds = (float(least) if least else None, float(most) if most else None)
            section[path] = Form(path, kind, required == "yes", *bounds, allowed, source)
    return found


@cache
def versions() -> dict[str, list[str]]:
    """Type in small letters -> the versions that its interface has."""
    rows = (line.split("\t") for line in _TABLE.read_text().splitlines() if "\tversions\t" in line)
    return {row[0]: row[5].split("|") for row in rows}


def refused(token: str, inputs: Mapping[str, Any]) -> list[str]:
    """What Azure would refuse of a resource as Pulumi sends it."""
    kind = TYPES.get(token.removeprefix("azure-native:"))
    return [f"{token}: no such type in the table"] if kind is None else list(_refused(kind, inputs))


def refused_request(method: str, path: str, query: Mapping[str, list[str]], body: Any) -> list[str]:
    """What Azure would refuse of a request to ARM: an unknown version, or a run command's body."""
    parts = path.rpartition("/providers/")[2].strip("/").split("/")
    kind = "/".join([parts[0], *parts[1::2]]).lower()
    known = versions().get(kind)
    version = query.get("api-version", [""])[0]
    found = [f"{kind}: api-version {version!r}, known are {known}"] if known and version not in known else []
    if method == "PUT" and kind == "microsoft.compute/virtualmachines/runcommands":
        if set(body) != {"location", "properties"}:
            found.append(f"{kind}: a body of {sorted(body)}")
        inputs = {"runCommandName": parts[-1], "location": body.get("location"), **body.get("properties", {})}
        found += _refused(RUN_COMMAND, inputs)
    return found


def _refused(kind: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    known = forms()[kind]
    for path, value in _values(inputs):
        if path == "tags":
            yield from (f"{kind} tags: {problem}" for problem in _tags(value))
        elif path in known:
            if problem := known[path].problem(value):
                yield f"{kind} {path} = {value!r}: {problem} ({known[path].source})"
        elif not isinstance(value, dict | list):
            yield f"{kind} {path} = {value!r}: nobody has looked up what Azure takes there"
    for form in known.values():
        yield from (f"{kind} {form.path}: must be there" for _ in _lacking(form, inputs))


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; items of a list have `[]` for their number, alarms of a budget `*` for their name."""
    if path:
        yield path, value
    if isinstance(value, Mapping) and path != "tags":
        for key, inner in value.items():
            name = "*" if path == "notifications" else key
            yield from _values(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, f"{path}[]")


def _lacking(form: Form, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Once for each place where a required value is not, and what it is part of is."""
    if not form.required:
        return
    parent, _, name = form.path.rpartition(".")
    places = [value for path, value in _values(inputs) if path == parent] if parent else [inputs]
    for place in places:
        if name not in ("*",) and isinstance(place, Mapping) and place.get(name.removesuffix("[]")) is None:
            yield None


def _tags(tags: Mapping[str, str]) -> Iterator[str]:
    """128 characters are a storage account's limit of a tag's name; others have 512."""
    if len(tags) > 50:
        yield f"{len(tags)} tags, 50 are allowed"
    for key, value in tags.items():
        if not _TAG.fullmatch(key):
            yield f"{key!r}: must be {_TAG.pattern}"
        if len(value) > 256 or not value.isascii():
            yield f"{key} = {value!r}: must be ASCII, and of 256 characters at most"
