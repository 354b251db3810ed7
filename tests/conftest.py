"""What all tests share: good settings to spoil, and how long an example may take."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import hypothesis
import pytest

from infra import stack_file

# No deadline for one example: a test machine may be busy, and times are measured in bench/.
hypothesis.settings.register_profile("trainyard", deadline=None)
hypothesis.settings.load_profile("trainyard")


def public_key(kind: str = "ssh-ed25519", body: bytes = bytes(range(32)), comment: str = "me@laptop") -> str:
    """A line as in a .pub file: fields of a length and as many bytes, the first of them the type."""
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()} {comment}".strip()


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public key with its private half beside it."""
    directory = tmp_path_factory.mktemp("ssh")
    (directory / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnot for you\n")
    (directory / "id_ed25519.pub").write_text(public_key() + "\n")
    return directory / "id_ed25519.pub"


@pytest.fixture(scope="session")
def good(key_file: Path) -> dict[str, str]:
    """Every key as the local stack has it, with a public key that is there."""
    return {**stack_file.read("local"), "publicKey": str(key_file)}


def without_stack(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without what the tester's own shell says about stacks."""
    return {
        name: value
        for name, value in (environment or dict(os.environ)).items()
        if not name.startswith(("TRAINYARD_", "PULUMI_"))
    }
