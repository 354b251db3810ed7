"""What all Azure resources of a stack share: provider, resource group, names and tags."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_azure_native as azure
from pulumi_azure_native import authorization, resources

from infra.clouds import naming
from infra.config.settings import Settings

DEFAULT_REGION = "eastus"
USER = "trainyard"
"""The user in bootstrap/cloud-config.yaml, and the administrator that Azure requires on a machine."""
AZURE_CLI = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"
"""Application id of `az`: whoever signed in through it is a person."""


def region(settings: Settings) -> str:
    """The region of the stack, or the default one."""
    return settings.cloud.region or DEFAULT_REGION


def name(stack: str, logical: str) -> str:
    """A resource's name in the stack's group: the same on each `up`, so that leftovers of an interrupted one are found.

    A stack's name has at most 32 characters, so this has at most 64: Azure's limit for a Linux machine.
    """
    return f"trainyard-{stack}-{logical}"


def group_name(unique: str) -> str:
    """The name of the stack's resource group. `unique`: the stack's name with its id (naming.unique)."""
    return f"trainyard-{unique}"


def gallery_name(unique: str) -> str:
    """The gallery's name, unique in a subscription: letters, digits, dots and underscores only."""
    return f"trainyard_{unique.replace('-', '_')}"


def account_name(subscription: str, unique: str) -> str:
    """The storage account's name: 3-24 of a-z and 0-9. A hash makes it unique in all of Azure."""
    own = hashlib.sha256(f"{subscription}/{unique}".encode()).hexdigest()[:12]
    return f"ty{re.sub('[^a-z0-9]', '', unique)[:10]}{own}"


def guid(*parts: str) -> str:
    """A GUID computed from `parts`, for resources that Azure names by GUID."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(("trainyard", *parts))))


@dataclass(frozen=True)
class Base:
    """What every part of the cluster needs."""

    settings: Settings
    provider: azure.Provider
    subscription: pulumi.Output[str]
    """The subscription's id. Known at preview, as it is only read."""
    group: resources.ResourceGroup
    operator: pulumi.Output[str]
    """Directory (object) id of the user who runs the program."""
    operator_type: pulumi.Output[str]
    """User or ServicePrincipal, for role assignments."""

    @property
    def location(self) -> str:
        """The region of the stack."""
        return region(self.settings)

    @property
    def unique(self) -> str:
        """The stack's name with its id: for names that must be unique in the subscription or in all of Azure."""
        return naming.unique(self.settings.stack, self.settings.stack_id)

    @property
    def kept(self) -> bool:
        """Whether the data, and the group with it, outlive the cluster."""
        return self.settings.cloud.keep_data

    def name(self, logical: str) -> str:
        """A resource's name in the stack's group, as the function `name`."""
        return name(self.settings.stack, logical)

    def opts(self, **options: Any) -> pulumi.ResourceOptions:
        """Options for an Azure resource: the stack's provider, and `options`."""
        return pulumi.ResourceOptions(provider=self.provider, **options)

    def common(self, **options: Any) -> dict[str, Any]:
        """Arguments that nearly every resource takes: group, location, tags, and `options` as resource options."""
        return {
            "resource_group_name": self.group.name,
            "location": self.location,
            "tags": naming.tags(self.settings),
            "opts": self.opts(**options),
        }


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> Base:
    """Declare the provider, with these options, and the resource group for everything else."""
    location = region(settings)
    provider = azure.Provider("azure", location=location, disable_pulumi_partner_id=True, opts=opts)
    client = authorization.get_client_config_output(opts=pulumi.InvokeOptions(provider=provider))
    group = resources.ResourceGroup(
        "group",
        resource_group_name=group_name(naming.unique(settings.stack, settings.stack_id)),
        location=location,
        tags=naming.tags(settings),
        opts=pulumi.ResourceOptions(provider=provider, retain_on_delete=settings.cloud.keep_data),
    )
    return Base(settings, provider, client.subscription_id, group, client.object_id, client.client_id.apply(_type))


def _type(client: str) -> str:
    """The caller's type, from the application it signed in with: `az` means a user. A service principal (also one that
    signed in through `az`) and a managed identity have themselves as the application. Azure refuses a wrong type
    (UnmatchedPrincipalType), and pulumi-azure-native takes a missing one for User.
    """
    return "User" if client == AZURE_CLI else "ServicePrincipal"
