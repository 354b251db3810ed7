"""Rules against secrets in user data, which everybody on the machine can read, and in other inputs."""

from __future__ import annotations

import base64
import email
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from infra.policy.rule import DeclaredResource, PolicyRule
from infra.policy.unknown import UndecidedError, Unknown

LARGEST = 8 * 1024 * 1024
"""Limit in bytes for unpacking: far above any cloud's user data, and little memory."""
DEPTH = 6
"""How many nested packings are opened."""
SKIPPED = ("__provider",)
"""Pulumi's own input: the pickled code of a dynamic provider."""
PATTERNS = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-[0-9]",
    "an AWS access key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "an AWS secret key": r"(?i)aws_?secret_?(?:access_?)?key[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9/+]{40}\b",
    "an Azure storage key": r"(?i)AccountKey=[A-Za-z0-9+/]{80,}={0,2}",
    "a shared access signature": r"(?i)[?&]sig=[A-Za-z0-9%+/]{40,}",
    "a token of GitHub": r"\b(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})",
    "a token of GitLab": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "a token of Slack": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "a token of Pulumi": r"\bpul-[0-9a-f]{40}\b",
    "a key of Google": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "a key of OpenAI or Anthropic": r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}",
    "a token of npm or PyPI": r"\b(?:npm_[A-Za-z0-9]{36}\b|pypi-[A-Za-z0-9_-]{50,})",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a password in a URL": r"\b[a-z][a-z0-9+.-]*://[^\s/:@$]+:[^\s/:@$]{3,}@[^\s/]",
    "a secret in a variable": (
        r"\b[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY)[A-Z0-9_]*="
        r"[\"']?(?!https?://|/)[^\s\"'$<{(]{8,}"  # not a URL or a path: those only tell where the secret is
    ),
}
_PASSWORD = re.compile(r"(^|\.)(passwd|password|plain_text_passwd|hashed_passwd)$|(^|\.)chpasswd\.list")
"""Paths in a cloud-config that hold a password."""
GZIP = b"\x1f\x8b"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""User data is about 60 KB of YAML, which libyaml reads twenty times as fast."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")


class PackedError(Exception):
    """Packed data cannot be opened."""


def strings(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of every text and every unknown value in the inputs."""
    if isinstance(value, str | bytes | Unknown):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in SKIPPED:
                yield from strings(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from strings(item, f"{path}[{number}]")


def _inputs(resource: DeclaredResource) -> Iterator[tuple[str, Any]]:
    """Every known text; unknown values only in user data and commands, as an unknown id cannot be a secret."""
    for path, value in strings(resource.props, ""):
        if not isinstance(value, Unknown) or re.search(r"(?i)user_?data|custom_?data|script|command", path):
            yield path, value


def _secret(part: tuple[str, Any]) -> str | None:
    path, value = part
    if isinstance(value, Unknown):
        raise UndecidedError
    try:
        what = find(value)
    except PackedError as error:
        return f"{path}: {error}, so it cannot be checked for secrets"
    return f"{path} holds {what}, which anybody on the machine and in the state can read" if what else None


def find(text: str | bytes, depth: int = 0) -> str | None:
    """The kind of secret in the text or in data packed in it; None without one. Raises PackedError."""
    if isinstance(text, bytes):
        text = _opened(text)
    for what, pattern in PATTERNS.items():
        if re.search(pattern, text):
            return what
    config = list(strings(_cloud_config(text), ""))
    if any(_PASSWORD.search(path) and value for path, value in config):
        return "a password"
    if depth == DEPTH:
        return None
    inside = (*_packed(text), *(value for _, value in config if value != text))
    return next(filter(None, (find(inner, depth + 1) for inner in inside)), None)


def _opened(data: bytes) -> str:
    if data.startswith(GZIP):
        try:
            opener = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            data = opener.decompress(data, LARGEST)
        except zlib.error as error:
            raise PackedError(f"is gzip that cannot be opened ({error})") from None
        if opener.unconsumed_tail:
            raise PackedError(f"unpacks to more than {LARGEST} bytes")
    return data.decode("utf-8", errors="replace")


def _packed(text: str) -> Iterator[bytes]:
    """Data packed in a text: base64 (a part or all of it), or the parts of a MIME message."""
    for candidate in {"".join(text.split()), *_BASE64.findall(text)}:
        data = _decoded(candidate)
        if data is not None:
            yield data
    if re.match(r"(?i)\s*(content-type|mime-version):", text):
        payloads = (part.get_payload(decode=True) for part in email.message_from_string(text).walk())
        yield from (payload for payload in payloads if isinstance(payload, bytes))


def _decoded(text: str) -> bytes | None:
    """The decoded bytes if the text is base64 of readable text or of gzip; None for a hash or a public key."""
    if len(text) < 24 or not _BASE64.fullmatch(text):
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4))
        readable = data.startswith(GZIP) or data.decode().isprintable() or b"\n" in data
    except ValueError:  # also of decode()
        return None
    return data if readable else None


def _cloud_config(text: str) -> Any:
    if not text.lstrip().startswith("#cloud-config"):
        return None
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError:
        return None  # not YAML; the text itself was searched already


RULES = (
    PolicyRule(
        "no-secret-in-user-data",
        "No secret is in user data, a script or any other plain input, however it is packed "
        "(CKV_AWS_46, CKV_AZURE_45, CKV_SECRET_2, CKV_SECRET_3, CKV_SECRET_9, CKV_SECRET_13).",
        {"*": _inputs},
        _secret,
    ),
)
