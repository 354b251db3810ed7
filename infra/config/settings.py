"""The user's configuration, validated once into frozen dataclasses.

The keys are declared in infra.config.keys. A bad value raises a SettingsError that names the key, the value and what is
allowed. Settings of clusters in a cloud are in infra.config.cloud_settings.
"""

from __future__ import annotations

import base64
import difflib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.config import cloud_settings
from infra.config.keys import KEYS, value
from infra.config.kinds import CLUSTERS, WITH_GPUS, CloudFacts
from infra.config.values import SettingsError

ROOT = Path(__file__).resolve().parents[2]
FIRST_HOST = 10
"""Offset of the head's address in the network: clouds reserve the first addresses, and the bridge takes one."""

PRIVATE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_STACK = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_KEY_TYPES = (
    *("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
)


@dataclass(frozen=True)
class LocalSettings:
    """Settings that only the `local` cluster has."""

    cpus: int
    """CPUs per node."""
    memory_mb: int
    """Memory per node in MiB."""
    scheduler: str = "none"
    """`none`, or `slurm`."""


@dataclass(frozen=True)
class Settings:
    """A stack's configuration."""

    stack: str
    cluster: str
    nodes: int
    cidr: ipaddress.IPv4Network
    """The network of the nodes' private addresses."""
    profile: str
    collectives: str
    public_key: str
    """The operator's public SSH key, `TYPE BASE64 [COMMENT]`."""
    public_key_file: Path
    image: str
    """`bake`, or the id of an existing golden image."""
    max_hours: int
    """A node ends itself after so many hours; 0: never."""
    idle_minutes: int
    """A node ends itself after so many minutes without a job or a login; 0: never."""
    local: LocalSettings
    cloud: cloud_settings.Cloud
    stack_id: str = ""
    """Distinguishes stacks of the same name (infra.state.stack_id). Not a key: the program fills it in."""

    def address(self, index: int) -> str:
        """The fixed private address of node `index` (0 is the head)."""
        return str(self.cidr[FIRST_HOST + index])

    @property
    def facts(self) -> CloudFacts:
        """Facts about the cloud; without a name for the local machine."""
        return CLUSTERS[self.cluster]

    @property
    def identity_file(self) -> Path | None:
        """The private key file beside the public one; None if there is none (an agent or a token has it)."""
        private = self.public_key_file.with_suffix("")
        return private if self.public_key_file.suffix == ".pub" and private.is_file() else None


def load(stack: str, raw: Mapping[str, str], *, reads_key: bool = True, is_complete: bool = True) -> Settings:
    """Validate `raw`, the keys of Pulumi.yaml and the stack's file as text.

    Raises SettingsError for the first bad key. Reads the public key's file; changes nothing. Without `reads_key` the
    file need not exist, and `public_key` is empty; without `is_complete` keys that a cloud's cluster needs and that
    have no default may be empty.
    """
    check_stack(stack)
    for key in raw:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SettingsError(key, raw[key], f"one of the known keys{hint}: {', '.join(KEYS)}")
    missing = [key for key in KEYS if key not in raw]
    if missing:
        raise SettingsError(missing[0], "", "set: it has no default in Pulumi.yaml")
    cluster: str = value(raw, "cluster")
    facts = CLUSTERS[cluster]
    in_cloud = bool(facts.name)
    nodes: int = value(raw, "nodes")
    key_file = _path(raw["publicKey"]) if reads_key else Path(raw["publicKey"])
    if raw["image"] != "bake" and not facts.image.fullmatch(raw["image"]):
        raise SettingsError("image", raw["image"], f"'bake', or the id of a baked image ({facts.image_form})")
    return Settings(
        stack=stack,
        cluster=cluster,
        nodes=nodes,
        cidr=_network(raw["cidr"], nodes),
        profile=_profile(raw, cluster),
        collectives=_collectives(raw),
        public_key=_public_key(key_file) if reads_key else "",
        public_key_file=key_file,
        image=raw["image"],
        max_hours=value(raw, "maxHours", in_cloud=in_cloud),
        idle_minutes=value(raw, "idleMinutes"),
        local=LocalSettings(value(raw, "cpus"), value(raw, "memoryMb"), _scheduler(raw, cluster)),
        cloud=cloud_settings.read(raw, stack, is_complete=in_cloud and is_complete),
    )


def check_stack(stack: str) -> None:
    """Raise SettingsError for a stack name that cannot be part of file and machine names."""
    if not _STACK.fullmatch(stack):
        raise SettingsError("stack", stack, "1-32 of a-z, 0-9 and '-' (not first or last), as it names machines")


def _scheduler(raw: Mapping[str, str], cluster: str) -> str:
    chosen: str = value(raw, "scheduler")
    if chosen != "none" and CLUSTERS[cluster].name:
        raise SettingsError("scheduler", chosen, f"none on {cluster}: it is for clusters on this machine")
    return chosen


def _profile(raw: Mapping[str, str], cluster: str) -> str:
    """GPUs need profile cuda, and profile cuda needs GPUs."""
    chosen: str = value(raw, "profile")
    if cluster in WITH_GPUS and chosen != "cuda":
        raise SettingsError("profile", chosen, f"cuda on cluster {cluster}, whose nodes have GPUs")
    if cluster not in WITH_GPUS and chosen == "cuda":
        raise SettingsError("profile", chosen, f"native or ipex: cuda is for nodes with GPUs ({', '.join(WITH_GPUS)})")
    return chosen


def _collectives(raw: Mapping[str, str]) -> str:
    chosen: str = value(raw, "collectives")
    if chosen == "ccl" and raw["profile"] == "cuda":
        raise SettingsError("collectives", chosen, "gloo with profile cuda: GPUs talk through NCCL")
    if chosen == "ccl" and raw["profile"] == "native":
        allowed = "gloo with profile native: oneCCL's binding is built for ipex's torch"
        raise SettingsError("collectives", chosen, allowed)
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
        allowed = f"a network with room for {nodes} nodes; a /{network.prefixlen} has room for {most}"
        raise SettingsError("cidr", text, allowed)
    return network


def _path(text: str) -> Path:
    """The file. A relative path starts at the checkout, as Pulumi and `fab` run in different directories."""
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
        allowed = "an existing file; make a key with: ssh-keygen -t ed25519"
        raise SettingsError("publicKey", str(path), allowed) from None
    except (OSError, ValueError):
        raise SettingsError("publicKey", str(path), "a readable public key file") from None
    if "PRIVATE KEY" in text:
        raise SettingsError("publicKey", str(path), "the public half of the key (the file that ends in .pub)")
    if not _is_key_line(text):
        allowed = "a file with one line 'TYPE BASE64 [COMMENT]', as ssh-keygen writes it"
        raise SettingsError("publicKey", str(path), allowed)
    return text


def _is_key_line(text: str) -> bool:
    fields = text.split(maxsplit=2)
    return len(text.splitlines()) == 1 and len(fields) > 1 and fields[0] in _KEY_TYPES and _is_key_body(*fields[:2])


def _is_key_body(kind: str, body: str) -> bool:
    """Whether the base64 text is a complete key: length-prefixed fields, the first its type (RFC 4253, section 6.6)."""
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
