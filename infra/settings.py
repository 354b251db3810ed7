"""The user's configuration, validated once into frozen dataclasses.

The keys, their types, defaults and descriptions stand in Pulumi.yaml; what they may be stands here. A bad
value is a SettingsError that names the key, the value and what is allowed. Only the standard library is
imported: the pre-flight, the Pulumi program and the tests all read settings the same way.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS = ("local", "aws-xeon", "azure-xeon")
PROFILES = ("native", "ipex")
COLLECTIVES = ("gloo", "ccl")
MAX_NODES = 64
FIRST_HOST = 10
"""The head has the tenth address of the network: clouds keep the first ones, we keep the first for the bridge."""

PRIVATE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
MIN_ADMIN_PREFIX = 16
"""The largest network that SSH is opened to: a university's, not a provider's."""
_STACK = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_IMAGES = {
    "local": (re.compile(r"[0-9a-f]{16}"), "16 hexadecimal digits; fab images"),
    "aws-xeon": (re.compile(r"ami-[0-9a-f]{8,17}"), "ami-..."),
    "azure-xeon": (
        re.compile(r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/[A-Za-z0-9._/-]+/versions/[0-9]+\.[0-9]+\.[0-9]+"),
        "/subscriptions/.../versions/1.0.0",
    ),
}
_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9]*([._-][A-Za-z0-9]+){1,3}")
_BASE = re.compile(r"ami-[0-9a-f]{8,17}|[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+){3}")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}")
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)


class SettingsError(UsageError):
    """A key of the configuration that cannot be used."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        name = key if key.isprintable() and len(key) <= 60 else _shown(key)
        super().__init__(f"{name} = {_shown(value)}: must be {allowed}")


def _shown(value: object) -> str:
    """A value as it is shown in an error: on one line, and not endless."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Local:
    """What only the `local` cluster has."""

    cpus: int
    """CPUs that a node may use."""
    memory_mb: int
    """Memory that a node may use, in MiB."""


@dataclass(frozen=True)
class Cloud:
    """What the clusters of the clouds have in common. Empty text: the cluster's own default."""

    region: str
    zone: str
    """One availability zone: on AWS its id (use1-az4, the same place in every account), on Azure its number."""
    instance_type: str
    spot: bool
    disk_gb: int
    base_image: str
    """The image that the golden one is baked from."""
    public_nodes: str
    """`head`: the others are behind a NAT gateway; `all`: each has a public address."""
    admin_cidr: ipaddress.IPv4Network | None
    """From where SSH is let in; None only where the cluster is no cloud's."""
    owner: str
    alert_email: str
    budget_usd: int
    """A month; an alarm, not a switch."""
    keep_data: bool
    """Whether the bucket outlives the cluster."""
    flow_logs: bool
    replace_nodes: bool
    """Whether nodes of an older image are replaced; they are left alone otherwise."""


@dataclass(frozen=True)
class Settings:
    """One stack's configuration."""

    stack: str
    cluster: str
    nodes: int
    cidr: ipaddress.IPv4Network
    """The network that the nodes' private addresses are in."""
    profile: str
    collectives: str
    public_key: str
    """The operator's public SSH key, `TYPE BASE64 [COMMENT]`."""
    public_key_file: Path
    image: str
    """`bake`, or the id of an image that was baked before."""
    max_hours: int
    """After so many hours a node ends by itself; 0: never."""
    idle_minutes: int
    """After so many minutes without a job or a login, too; 0: never."""
    local: Local
    cloud: Cloud

    def address(self, index: int) -> str:
        """The fixed private address of node `index` (0 is the head)."""
        return str(self.cidr[FIRST_HOST + index])

    @property
    def identity_file(self) -> Path | None:
        """The private key beside the public one; None where it lives elsewhere (an agent, a token)."""
        private = self.public_key_file.with_suffix("")
        return private if self.public_key_file.suffix == ".pub" and private.is_file() else None


KEYS = (
    *("cluster", "nodes", "cpus", "memoryMb", "cidr", "profile", "collectives", "publicKey", "image"),
    *("maxHours", "idleMinutes", "region", "zone", "instanceType", "spot", "diskGb", "baseImage", "publicNodes"),
    *("adminCidr", "owner", "alertEmail", "budgetUsd", "keepData", "flowLogs", "replaceNodes"),
)
"""Every key that Pulumi.yaml declares, in its order."""


def load(stack: str, raw: Mapping[str, str]) -> Settings:
    """Validate `raw`, the keys of Pulumi.yaml and the stack's file as text, into Settings.

    Raises SettingsError for the first key that cannot be used. Reads the public key's file; changes nothing.
    """
    check_stack(stack)
    for key in raw:
        if key not in KEYS:
            raise SettingsError(key, raw[key], f"one of the known keys: {', '.join(KEYS)}")
    missing = [key for key in KEYS if key not in raw]
    if missing:
        raise SettingsError(missing[0], "", "set: it has no default in Pulumi.yaml")
    cluster = _choice(raw, "cluster", CLUSTERS)
    nodes = _integer(raw, "nodes", 1, MAX_NODES)
    local = Local(
        cpus=_integer(raw, "cpus", 1, 1024),
        memory_mb=_integer(raw, "memoryMb", 256, 16 * 1024 * 1024),
    )
    key_file = _path(raw["publicKey"])
    return Settings(
        stack=stack,
        cluster=cluster,
        nodes=nodes,
        cidr=_network(raw["cidr"], nodes),
        profile=_choice(raw, "profile", PROFILES),
        collectives=_collectives(raw),
        public_key=_public_key(key_file),
        public_key_file=key_file,
        image=_image(raw["image"], cluster),
        max_hours=_limit(raw, "maxHours", 24 * 31, cluster),
        idle_minutes=_integer(raw, "idleMinutes", 0, 24 * 60),
        local=local,
        cloud=_cloud(raw, cluster),
    )


def check_stack(stack: str) -> None:
    """Raise SettingsError for a stack's name that cannot name files and machines."""
    if not _STACK.fullmatch(stack):
        raise SettingsError("stack", stack, "1-32 of a-z, 0-9 and '-' (not first or last), as it names machines")


def _integer(raw: Mapping[str, str], key: str, least: int, most: int) -> int:
    text = raw[key].strip()
    if not (_INTEGER.fullmatch(text) and text.isascii() and least <= int(text) <= most):
        raise SettingsError(key, raw[key], f"a whole number from {least} to {most}")
    return int(text)


def _choice(raw: Mapping[str, str], key: str, allowed: tuple[str, ...]) -> str:
    if raw[key] not in allowed:
        raise SettingsError(key, raw[key], f"one of {', '.join(allowed)}")
    return raw[key]


def _collectives(raw: Mapping[str, str]) -> str:
    chosen = _choice(raw, "collectives", COLLECTIVES)
    if chosen == "ccl" and raw["profile"] == "native":
        raise SettingsError(
            "collectives", chosen, "gloo with profile native: oneCCL's binding is built for ipex's torch"
        )
    return chosen


def _network(text: str, nodes: int) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        raise SettingsError("cidr", text, "an IPv4 network such as 10.77.0.0/24, without host bits") from None
    if not any(network.subnet_of(private) for private in PRIVATE):
        raise SettingsError("cidr", text, f"a private network (in {', '.join(map(str, PRIVATE))})")
    if network.num_addresses < FIRST_HOST + nodes + 1:
        most = max(network.num_addresses - FIRST_HOST - 1, 0)
        raise SettingsError(
            "cidr", text, f"a network with room for {nodes} nodes; a /{network.prefixlen} has room for {most}"
        )
    return network


def _path(text: str) -> Path:
    """The file; a relative path is the checkout's, as Pulumi and `fab` run the program in different directories."""
    try:
        return ROOT / Path(text).expanduser()
    except (RuntimeError, ValueError):
        raise SettingsError("publicKey", text, "the path of a public key file") from None


def _public_key(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise SettingsError("publicKey", str(path), "a file")  # reading a pipe or a device might never end
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise SettingsError(
            "publicKey", str(path), "an existing file; make a key with: ssh-keygen -t ed25519"
        ) from None
    except (OSError, ValueError):
        raise SettingsError("publicKey", str(path), "a readable public key file") from None
    if "PRIVATE KEY" in text:
        raise SettingsError("publicKey", str(path), "the public half of the key (the file that ends in .pub)")
    if not _is_key_line(text):
        raise SettingsError(
            "publicKey", str(path), "a file with one line 'TYPE BASE64 [COMMENT]', as ssh-keygen writes it"
        )
    return text


def _is_key_line(text: str) -> bool:
    fields = text.split(maxsplit=2)
    return len(text.splitlines()) == 1 and len(fields) > 1 and fields[0] in _KEY_TYPES and _is_key_body(*fields[:2])


def _is_key_body(kind: str, body: str) -> bool:
    """Whether the base64 half is a whole key of the type that the line names.

    It is fields of a length and as many bytes, the first of them the type (RFC 4253, section 6.6).
    """
    try:
        blob = base64.b64decode(body, validate=True)
    except ValueError:
        return False
    fields, at = [], 0
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4], "big")
        fields.append(blob[at + 4 : end])
        at = end
    return at == len(blob) and len(fields) > 1 and fields[0] == kind.encode()


def _image(text: str, cluster: str) -> str:
    form, allowed = _IMAGES[cluster]
    if text != "bake" and not form.fullmatch(text):
        raise SettingsError("image", text, f"'bake', or the id of a baked image ({allowed})")
    return text


def _limit(raw: Mapping[str, str], key: str, most: int, cluster: str) -> int:
    return _integer(raw, key, 0 if cluster == "local" else 1, most)


def _cloud(raw: Mapping[str, str], cluster: str) -> Cloud:
    return Cloud(
        region=_word(raw, "region", _WORD, "a region's name in small letters, such as us-east-1 or eastus"),
        zone=_word(raw, "zone", _WORD, "an AWS zone's id such as use1-az4, or an Azure zone's number"),
        instance_type=_word(raw, "instanceType", _TYPE, "an instance type such as m7i.8xlarge or Standard_D32s_v6"),
        spot=_boolean(raw, "spot"),
        disk_gb=_integer(raw, "diskGb", 30, 16 * 1024),
        base_image=_word(raw, "baseImage", _BASE, "an image: ami-... on AWS, publisher:offer:sku:version on Azure"),
        public_nodes=_choice(raw, "publicNodes", ("head", "all")),
        admin_cidr=_admin(raw["adminCidr"], cluster),
        owner=_needed(
            raw, "owner", _OWNER, "your name, as the tag of all that is made: letters, digits and .@_-", cluster
        ),
        alert_email=_needed(raw, "alertEmail", _EMAIL, "the address that the budget's alarm goes to", cluster),
        budget_usd=_integer(raw, "budgetUsd", 1, 10_000_000),
        keep_data=_boolean(raw, "keepData"),
        flow_logs=_boolean(raw, "flowLogs"),
        replace_nodes=_boolean(raw, "replaceNodes"),
    )


def _word(raw: Mapping[str, str], key: str, form: re.Pattern[str], allowed: str) -> str:
    if raw[key] and not form.fullmatch(raw[key]):
        raise SettingsError(key, raw[key], f"{allowed}; or empty, for the cluster's default")
    return raw[key]


def _needed(raw: Mapping[str, str], key: str, form: re.Pattern[str], allowed: str, cluster: str) -> str:
    if not (form.fullmatch(raw[key]) or (raw[key] == "" and cluster == "local")):
        raise SettingsError(key, raw[key], allowed)
    return raw[key]


def _boolean(raw: Mapping[str, str], key: str) -> bool:
    return _choice(raw, key, ("true", "false")) == "true"


def _admin(text: str, cluster: str) -> ipaddress.IPv4Network | None:
    """Where SSH may come from. The whole world is refused, in every way it can be written."""
    if not text and cluster == "local":
        return None
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        raise SettingsError(
            "adminCidr", text, "your own public address as an IPv4 network, 203.0.113.7/32 say; never everybody's"
        ) from None
    if network.prefixlen < MIN_ADMIN_PREFIX:
        raise SettingsError("adminCidr", text, f"a network of /{MIN_ADMIN_PREFIX} or smaller: SSH is for you alone")
    return network
