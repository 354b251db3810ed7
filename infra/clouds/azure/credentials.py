"""Credentials and subscription, chosen by the same rules as in Pulumi's own provider."""

from __future__ import annotations

import os
import shutil
import subprocess

from azure.core.credentials import TokenCredential
from azure.identity import AzureCliCredential, CertificateCredential, ClientSecretCredential, ManagedIdentityCredential

from infra.errors import UsageError
from infra.state.ownership import Location

SIGN_IN = "az login, then: az account set --subscription ...; or ARM_SUBSCRIPTION_ID and a service principal's ARM_*"
AZ_S = 60
"""Timeout of an `az` command in seconds."""


def credential() -> TokenCredential:
    """The credential that the ARM_* variables name, or `az login`'s without them. UsageError for ARM_USE_OIDC."""
    tenant, client = os.environ.get("ARM_TENANT_ID", ""), os.environ.get("ARM_CLIENT_ID", "")
    if tenant and client and (secret := os.environ.get("ARM_CLIENT_SECRET")):
        return ClientSecretCredential(tenant, client, secret)
    if tenant and client and (path := os.environ.get("ARM_CLIENT_CERTIFICATE_PATH")):
        password = os.environ.get("ARM_CLIENT_CERTIFICATE_PASSWORD")
        return CertificateCredential(tenant, client, path, password=password)
    if os.environ.get("ARM_USE_MSI", "").lower() == "true":
        return ManagedIdentityCredential(client_id=client or None)
    if os.environ.get("ARM_USE_OIDC", "").lower() == "true":
        raise UsageError("ARM_USE_OIDC: not supported here; use a client secret, a certificate or az login")
    return AzureCliCredential(process_timeout=AZ_S)


def subscription() -> str:
    """The subscription's id. Raises UsageError if none is chosen."""
    chosen = os.environ.get("ARM_SUBSCRIPTION_ID") or os.environ.get("AZURE_SUBSCRIPTION_ID") or ""
    if not chosen and shutil.which("az"):
        argv = ["az", "account", "show", "--query", "id", "--output", "tsv"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=AZ_S)
        except subprocess.TimeoutExpired:
            raise UsageError(f"No Azure subscription: az does not answer within {AZ_S} s; {SIGN_IN}") from None
        chosen = done.stdout.strip() if done.returncode == 0 else ""
    if not chosen:
        raise UsageError(f"No Azure subscription: {SIGN_IN}")
    return chosen


def location(region: str) -> Location:
    """Where the stack is made. Raises UsageError if no subscription is chosen."""
    return Location("azure", region, subscription())
