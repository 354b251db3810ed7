"""What every resource of a stack on Azure has in common: the provider, the resource group, names and tags."""

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
"""The user of bootstrap/cloud-config.yaml, and the administrator that Azure wants a machine to have."""
AZURE_CLI = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"
"""Azure's command line as an application: whoever has signed in through it is a person."""


def region(settings: Settings) -> str:
    return settings.cloud.region or DEFAULT_REGION


def name(stack: str, logical: str) -> str:
    """A resource's name in the stack's own group: the same at each `up`, so that what a killed one has left is found.

    A stack's name has 32 characters at most, so these have 64 at most, which is what Azure allows a Linux machine.
    """
    return f"trainyard-{stack}-{logical}"


def group_name(unique: str) -> str:
    """Of the resource group that everything is in. `unique`: the stack's name with its id (naming.unique)."""
    return f"trainyard-{unique}"


def gallery_name(unique: str) -> str:
    """Of the gallery, which a subscription has once: letters, digits, dots and underscores."""
    return f"trainyard_{unique.replace('-', '_')}"


def account_name(subscription: str, unique: str) -> str:
    """Of the storage account: 3-24 of a-z and 0-9, and nobody else's in all of Azure.

    The start of the stack's name is for people; a hash of the subscription and the unique name makes it one's own.
    """
    own = hashlib.sha256(f"{subscription}/{unique}".encode()).hexdigest()[:12]
    return f"ty{re.sub('[^a-z0-9]', '', unique)[:10]}{own}"


def guid(*parts: str) -> str:
    """A GUID for what Azure names by one; the same parts give the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(("trainyard", *parts))))


@dataclass(frozen=True)
class Base:
    """Handed to every part of the cluster."""

    settings: Settings
    provider: azure.Provider
    subscription: pulumi.Output[str]
    """The subscription's id. Known at preview: asking for it makes nothing."""
    group: resources.ResourceGroup
    operator: pulumi.Output[str]
    """The directory's id of the user who runs the program."""
    operator_type: pulumi.Output[str]
    """User or ServicePrincipal, as a role assignment wants it."""

    @property
    def location(self) -> str:
        return region(self.settings)

    @property
    def tags(self) -> dict[str, str]:
        return naming.tags(self.settings)

    @property
    def unique(self) -> str:
        """The stack's name with its id: for what a subscription, or all of Azure, has once."""
        return naming.unique(self.settings.stack, self.settings.stack_id)

    def name(self, logical: str) -> str:
        return name(self.settings.stack, logical)

    def opts(self, **more: Any) -> pulumi.ResourceOptions:
        """Options of a resource of Azure's: the stack's one provider, and what it needs beside."""
        return pulumi.ResourceOptions(provider=self.provider, **more)

    @property
    def kept(self) -> bool:
        """Whether the data outlives the cluster, and with it the group that it is in."""
        return self.settings.cloud.keep_data


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> Base:
    """The provider, with these options, and the resource group that all the rest goes into."""
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
    """What a caller is by the application that it has signed in with. A service principal's, also one that has signed
    in through `az`, and a managed identity's application is itself. A wrong type is refused (UnmatchedPrincipalType),
    and pulumi-azure-native takes one that is left out for User.
    """
    return "User" if client == AZURE_CLI else "ServicePrincipal"
