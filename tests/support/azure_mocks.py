"""What Azure answers to the program under the recorder, and prices for a test's own sums."""

from __future__ import annotations

import base64
import gzip
import re
import uuid
from collections.abc import Callable
from typing import Any

from program_recorder import HOST_KEY, STACK_ID, Kind, Ran
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/trainyard-xeon-{STACK_ID}"
OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
BAKED = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/trainyard-old/providers/Microsoft.Compute/galleries/trainyard_old"
    "/images/trainyard-0123456789abcdef/versions/1.0.0"
)
Program = Callable[..., Ran]
OWN_NAMES = {
    "ResourceGroup": "resourceGroupName",
    "VirtualNetwork": "virtualNetworkName",
    "Subnet": "subnetName",
    "NetworkSecurityGroup": "networkSecurityGroupName",
    "PublicIPAddress": "publicIpAddressName",
    "NatGateway": "natGatewayName",
    "NetworkInterface": "networkInterfaceName",
    "FlowLog": "flowLogName",
    "VirtualMachine": "vmName",
    "ProximityPlacementGroup": "proximityPlacementGroupName",
    "Snapshot": "snapshotName",
    "Gallery": "galleryName",
    "GalleryImage": "galleryImageName",
    "GalleryImageVersion": "galleryImageVersionName",
    "StorageAccount": "accountName",
    "BlobContainer": "containerName",
    "BlobServiceProperties": "blobServicesName",
    "ManagementPolicy": "managementPolicyName",
    "UserAssignedIdentity": "resourceName",
    "Budget": "budgetName",
    "RoleDefinition": "roleDefinitionId",
    "RoleAssignment": "roleAssignmentName",
}
"""The input that a resource's own name is in."""


def vm_id(logical: str) -> str:
    """What only one machine of a name has; a replacement has another."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, logical))


def principal(logical: str) -> str:
    """The directory's id of an identity, or of the operator."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{logical}-principal"))


class Azure(Kind):
    """Answers as Azure's provider does, and our dynamic ones."""

    def outputs(self, args: MockResourceArgs) -> dict[str, Any]:
        kind = args.typ.rsplit(":", 1)[-1]
        made: dict[str, Any] = {"id": GROUP if kind == "ResourceGroup" else f"{GROUP}/providers/{kind}/{args.name}"}
        if kind in OWN_NAMES:
            made["name"] = args.inputs[OWN_NAMES[kind]]
        if kind == "VirtualMachine":
            disk = {"managedDisk": {"id": f"{GROUP}/disks/{args.name}"}}
            made |= {"vmId": vm_id(args.name), "storageProfile": {"osDisk": disk}}
        if "identity" in args.inputs:
            # A list as an input, a mapping as an output.
            made["identity"] = {**args.inputs["identity"], "userAssignedIdentities": {}}
        made |= {
            "PublicIPAddress": {"ipAddress": f"198.51.100.{sum(args.name.encode()) % 250}"},
            "UserAssignedIdentity": {"principalId": principal(args.name)},
            "Command": {"output": HOST_KEY},
            "Month": {"first": "2026-11-01T00:00:00Z"},
        }.get(kind, {})
        return made

    def invoked(self, args: MockCallArgs) -> dict[str, Any]:
        assert args.token == "azure-native:authorization:getClientConfig", args.token
        return {
            "clientId": "04b07795-8ddb-461a-bbee-02f9e1bf7b46",
            "objectId": principal("operator"),
            "subscriptionId": SUBSCRIPTION,
            "tenantId": "t",
        }


def only(ran: Ran, kind: str) -> dict[str, Any]:
    (found,) = ran.of(f":{kind}")
    return found.inputs


def named(ran: Ran, start: str) -> str:
    """The logical name that starts so; images have their key behind it."""
    (found,) = [name for name in ran.declared if re.fullmatch(f"{start}-[0-9a-f]{{12}}", name)]
    return found


def nodes(ran: Ran) -> dict[str, dict[str, Any]]:
    """The nodes by name. Sorted: the order of registration differs from run to run."""
    return {name: ran[name].inputs for name in sorted(ran.declared) if re.fullmatch(r"node\d+", name)}


def unpacked(machine: dict[str, Any]) -> str:
    return gzip.decompress(base64.b64decode(machine["osProfile"]["customData"])).decode()
