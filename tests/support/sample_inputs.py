"""What several tests are fed with: a public key, an environment."""

from __future__ import annotations

import base64
import os


def public_key(kind: str = "ssh-ed25519", body: bytes = bytes(range(32)), comment: str = "me@laptop") -> str:
    """A line as in a .pub file: fields of a length and as many bytes, the first of them the type."""
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()} {comment}".strip()


def without_stack(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without what the tester's own shell says about stacks."""
    return {
        name: value
        for name, value in (environment or dict(os.environ)).items()
        if not name.startswith(("TRAINYARD_", "PULUMI_"))
    }
