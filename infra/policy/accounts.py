"""Azure storage accounts, and the containers in them."""

from __future__ import annotations

from collections.abc import Sequence

from infra.policy.rule import Props, Resource, Rule, StackRule, beside, block, is_off, is_on, items, same, whole

ACCOUNT = "azure-native:storage:StorageAccount"
CONTAINER = "azure-native:storage:BlobContainer"
BLOBS = "azure-native:storage:BlobServiceProperties"
LIFECYCLE = "azure-native:storage:ManagementPolicy"
TLS = ("TLS1_2", "TLS1_3")
KEPT_DAYS = 7


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


def _keeps_deleted(services: Sequence[Resource]) -> str | None:
    if not services:
        return "the storage account must have BlobServiceProperties, which say how long it keeps what is deleted"
    for service in services:
        if not is_on(service.props.get("isVersioningEnabled")):
            return "the account's blob service must have isVersioningEnabled"
        for key in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
            policy = block(service.props, key)
            days = policy.get("days")
            if not is_on(policy.get("enabled")) or days is None or int(days) < KEPT_DAYS:
                return f"the account's blob service must have a {key} of {KEPT_DAYS} days or more"
    return None


def _removes_old_versions(policies: Sequence[Resource]) -> str | None:
    for policy in policies:
        for rule in items(block(policy.props, "policy"), "rules"):
            version = block(block(block(rule, "definition"), "actions"), "version")
            # Azure takes a rule that says nothing of it as enabled.
            if (
                not is_off(rule.get("enabled"))
                and block(version, "delete").get("daysAfterCreationGreaterThan") is not None
            ):
                return None
    return (
        "the storage account must have a ManagementPolicy that deletes old versions of blobs: they are billed for ever"
    )


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
STACK_RULES = (
    StackRule(
        name="blobs-can-be-had-back",
        description="What is overwritten or deleted in a storage account can be had back for a week.",
        numbers=("CIS Azure 4.0 10.2.1", "CIS Azure 4.0 10.2.2"),
        parts=beside(ACCOUNT, BLOBS, "accountName"),
        problem=_keeps_deleted,
    ),
    StackRule(
        name="old-versions-deleted",
        description="An old version of a blob is not kept, and billed, for ever.",
        numbers=("no CKV or CIS number: both want versions kept, neither says how long",),
        parts=beside(ACCOUNT, LIFECYCLE, "accountName"),
        problem=_removes_old_versions,
    ),
)
