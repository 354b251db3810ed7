"""Azure storage accounts, and the containers in them."""

from __future__ import annotations

from infra.policy.rule import Props, Rule, block, is_off, is_on, same, whole

ACCOUNT = "azure-native:storage:StorageAccount"
CONTAINER = "azure-native:storage:BlobContainer"
TLS = ("TLS1_2", "TLS1_3")


def _https(account: Props) -> str | None:
    return None if is_on(account.get("enableHttpsTrafficOnly")) else "enableHttpsTrafficOnly must be true"


def _tls(account: Props) -> str | None:
    return (
        None
        if any(same(account.get("minimumTlsVersion"), version) for version in TLS)
        else ("minimumTlsVersion must be TLS1_2 or newer")
    )


def _no_public_blobs(account: Props) -> str | None:
    return None if is_off(account.get("allowBlobPublicAccess")) else "allowBlobPublicAccess must be false"


def _private(container: Props) -> str | None:
    # Left out, it is None: private.
    access = container.get("publicAccess")
    return None if access is None or same(access, "None") else "publicAccess must be None"


def _no_shared_key(account: Props) -> str | None:
    return None if is_off(account.get("allowSharedKeyAccess")) else "allowSharedKeyAccess must be false"


def _closed(account: Props) -> str | None:
    if same(block(account, "networkRuleSet").get("defaultAction"), "Deny"):
        return None
    return "networkRuleSet.defaultAction must be Deny: who comes in is named by network as well"


RULES = (
    Rule(
        name="storage-https-only",
        description="A storage account answers over TLS only.",
        numbers=("CKV_AZURE_3", "CIS Azure 3.0 4.1"),
        parts={ACCOUNT: whole},
        problem=_https,
    ),
    Rule(
        name="storage-tls-1.2",
        description="A storage account speaks TLS 1.2 or newer.",
        numbers=("CKV_AZURE_44", "CIS Azure 3.0 4.15"),
        parts={ACCOUNT: whole},
        problem=_tls,
    ),
    Rule(
        name="storage-no-public-blobs",
        description="No blob of a storage account can be made public.",
        numbers=("CKV_AZURE_190", "CKV2_AZURE_47", "CIS Azure 3.0 4.17"),
        parts={ACCOUNT: whole},
        problem=_no_public_blobs,
    ),
    Rule(
        name="containers-private",
        description="No container is public.",
        numbers=("CKV_AZURE_34",),
        parts={CONTAINER: whole},
        problem=_private,
    ),
    Rule(
        name="storage-no-shared-key",
        description="A storage account knows identities only, no key that whoever has it may use.",
        numbers=("CKV2_AZURE_40", "CIS Azure 4.0 10.3.1.3"),
        parts={ACCOUNT: whole},
        problem=_no_shared_key,
    ),
    Rule(
        name="storage-closed-by-default",
        description="A storage account lets in only the networks that it names.",
        numbers=("CKV_AZURE_35",),
        parts={ACCOUNT: whole},
        problem=_closed,
    ),
)
