"""bootstrap/cloud-config.yaml: what cannot be right is refused where it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import cloud_config
from infra.errors import UsageError

BOOTSTRAP = Path(__file__).resolve().parents[2] / "bootstrap"
GOOD = "users:\n- name: trainyard\n"


def refusal(folder: Path, content: bytes) -> str:
    (folder / cloud_config.NAME).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        cloud_config.read(folder)
    message = str(caught.value)
    assert message.startswith("bootstrap/cloud-config.yaml: ")
    assert "\n" not in message
    return message


def test_ours_is_accepted() -> None:
    assert cloud_config.read(BOOTSTRAP)["users"][0]["name"] == "trainyard"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"users: [", "not YAML"),
        (b"users: \xff", "not YAML"),
        (b"", "must be a mapping"),
        (b"- users", "must be a mapping"),
        (b"{}", "users: the first must be"),
        (b"users: []", "users: the first must be"),
        (b"users: [default]", "users: the first must be"),
        (GOOD.encode() + b"runcmds: []\n", "unknown key 'runcmds'; did you mean 'runcmd'?"),
        (GOOD.encode() + b"frobnicate: 1\n", "unknown key 'frobnicate'; known are: apt, "),
        (GOOD.encode() + b"1: 1\n", "unknown key 1"),
        (GOOD.encode() + b"write_files: {}\n", "write_files: must be a list"),
    ],
)
def test_bad_content_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content)
