"""infra.config.settings: what may be used is used as written; what may not is one line that says so."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from bad_settings import BAD, OBVIOUS, TEXT, as_text, assert_names
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sample_inputs import public_key

from infra.config.keys import KEYS
from infra.config.settings import ROOT, load
from infra.config.values import SettingsError

PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\n-----END OPENSSH PRIVATE KEY-----\n"


def refusal(raw: dict[str, str], stack: str = "local") -> str:
    with pytest.raises(SettingsError) as caught:
        load(stack, raw)
    return str(caught.value)


# --- refused ---


def test_every_key_has_bad_values() -> None:
    assert set(BAD) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=30)  # for each key
@given(data=st.data())
def test_a_bad_value_is_one_line_about_its_key(key: str, data: st.DataObject, good: dict[str, str]) -> None:
    value = as_text(data.draw(BAD[key]))
    line = refusal({**good, key: value})
    assert_names(line, key)
    if key != "publicKey":  # that one shows where the path leads
        assert repr(value)[:57] in line


@pytest.mark.parametrize("keys, named", OBVIOUS.values(), ids=OBVIOUS.keys())
def test_an_obvious_mistake_names_its_key(keys: dict[str, object], named: str, good: dict[str, str]) -> None:
    assert_names(refusal({**good, **{key: as_text(value) for key, value in keys.items()}}), named)


@given(TEXT)
def test_an_unknown_key_is_refused(key: str) -> None:
    assume(key not in KEYS)
    line = refusal({key: "1"})
    assert len(line.splitlines()) == 1 and "publicKey, image, maxHours" in line
    assert key in line or repr(key)[:57] in line


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_refused(key: str, good: dict[str, str]) -> None:
    assert_names(refusal({name: value for name, value in good.items() if name != key}), key)


@given(TEXT | st.sampled_from(["a-", "-a", "a" * 33, "Local", "../..", "/etc", "a/b", ".", "a.b", "a_b", "é", "a\n"]))
def test_a_stack_whose_name_cannot_name_machines_is_refused(stack: str) -> None:
    allowed = "abcdefghijklmnopqrstuvwxyz0123456789-"
    assume(not stack or len(stack) > 32 or set(stack) - set(allowed) or stack.strip("-") != stack)
    assert_names(refusal({}, stack), "stack")


def test_a_network_says_how_many_nodes_it_has_room_for(good: dict[str, str]) -> None:
    assert "room for 64 nodes; a /27 has room for 21" in refusal({**good, "cidr": "10.0.0.0/27", "nodes": "64"})
    load("local", {**good, "cidr": "10.0.0.0/27", "nodes": "21"})
    assert "room for 22" in refusal({**good, "cidr": "10.0.0.0/27", "nodes": "22"})


@pytest.mark.parametrize("key", ["adminCidr", "owner", "alertEmail"])
@pytest.mark.parametrize("value", ["", "*" * 80])
def test_what_a_cloud_needs_is_refused_with_the_command_that_sets_it(
    key: str, value: str, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The longest name of a stack."""
    stack = "a" * 32
    needed = {"maxHours": "24", "adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org"}
    line = refusal({**good, "cluster": "aws-xeon", **needed, key: value}, stack)
    assert_names(line, key)
    command = line.partition("; set it: ")[2]
    for name in ("fab", "curl"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\n[ {name} = curl ] && echo 198.51.100.4 || echo "$@" >> {tmp_path}/said\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    subprocess.run(["sh", "-c", command], check=True, timeout=20)
    *words, given, flag, named = (tmp_path / "said").read_text().split()
    assert (words, flag, named) == (["config", "set", key], "--stack", stack)
    load(stack, {**good, "cluster": "aws-xeon", **needed, key: given})


def test_all_keys_that_a_cloud_needs_and_does_not_have_are_named_at_once(good: dict[str, str]) -> None:
    line = refusal({**good, "cluster": "aws-xeon", "maxHours": "24"})
    assert line.startswith("adminCidr = ''") and " (also empty: owner, alertEmail); set it: " in line
    line = refusal({**good, "cluster": "aws-xeon", "maxHours": "24", "adminCidr": "203.0.113.7/32", "owner": "ada"})
    assert line.startswith("alertEmail = ''") and "also empty" not in line


# --- the public key's file ---

KEY_FILES = {
    "empty": b"",
    "blank": b"\n\n",
    "a private key": PRIVATE_KEY.encode(),
    "two keys": f"{public_key()}\n{public_key()}\n".encode(),
    "two keys on old Mac lines": f"{public_key()}\r{public_key()}".encode(),
    "no body": b"ssh-ed25519\n",
    "no type": public_key().split()[1].encode(),
    "an unknown type": public_key(kind="ssh-dss").encode(),
    "another type inside": public_key().replace("ssh-ed25519", "ssh-rsa", 1).encode(),
    "options before it": b'command="reboot" ' + public_key().encode(),
    "not base64": b"ssh-ed25519 AAAA*** me\n",
    "letters outside ASCII": "ssh-ed25519 ÄÄÄÄ me\n".encode(),
    "a type alone inside": public_key(body=b"")[:-40].encode(),
    "UTF-16": public_key().encode("utf-16"),
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("content", KEY_FILES.values(), ids=KEY_FILES.keys())
def test_a_file_that_is_no_public_key_is_refused(content: bytes, tmp_path: Path, good: dict[str, str]) -> None:
    path = tmp_path / "key.pub"
    path.write_bytes(content)
    assert_names(refusal({**good, "publicKey": str(path)}), "publicKey")


def test_a_private_key_is_told_from_a_public_one(key_file: Path, good: dict[str, str]) -> None:
    assert "the file that ends in .pub" in refusal({**good, "publicKey": str(key_file.with_suffix(""))})


def test_what_is_not_a_plain_file_is_not_read(tmp_path: Path, good: dict[str, str]) -> None:
    os.mkfifo(tmp_path / "pipe.pub")
    for path in (
        tmp_path / "pipe.pub",
        tmp_path,
        Path("/dev/zero"),
        tmp_path / ("a" * 300),
        tmp_path / "pipe.pub" / "x",
    ):
        assert_names(refusal({**good, "publicKey": str(path)}), "publicKey")


@given(data=st.data())
def test_a_cut_off_key_is_refused(data: st.DataObject, good: dict[str, str], key_file: Path) -> None:
    line = public_key(comment="")
    path = key_file.parent / "cut.pub"
    path.write_text(line[: data.draw(st.integers(0, len(line) - 3))])  # two less are the padding, or nothing
    assert_names(refusal({**good, "publicKey": str(path)}), "publicKey")


@given(content=st.binary(max_size=200))
def test_any_key_file_is_used_or_refused(content: bytes, good: dict[str, str], key_file: Path) -> None:
    path = key_file.parent / "any.pub"
    path.write_bytes(content)
    assert_names(refusal({**good, "publicKey": str(path)}), "publicKey")


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"])
@pytest.mark.parametrize("comment", ["", "me@laptop", "Ünï cödé, with spaces"])
def test_a_public_key_is_taken_as_it_is(kind: str, comment: str, tmp_path: Path, good: dict[str, str]) -> None:
    (tmp_path / "key.pub").write_text(public_key(kind, comment=comment) + "\r\n")
    found = load("local", {**good, "publicKey": str(tmp_path / "key.pub")})
    assert found.public_key == public_key(kind, comment=comment)
    assert found.identity_file is None, "its private half is not on this machine"


def test_the_private_half_is_found_beside_the_public_one(good: dict[str, str], key_file: Path) -> None:
    assert load("local", good).identity_file == key_file.with_suffix("")
    shutil.copy(key_file, key_file.parent / "alone")
    assert load("local", {**good, "publicKey": str(key_file.parent / "alone")}).identity_file is None


def test_a_path_starts_at_home_or_at_the_checkout(
    good: dict[str, str], key_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(key_file.parent))
    assert load("local", {**good, "publicKey": "~/id_ed25519.pub"}).public_key_file == key_file
    # Pulumi runs the program in infra/, fab runs the pre-flight in the checkout: both mean the same file.
    relative = os.path.relpath(key_file, ROOT)
    for directory in (ROOT, ROOT / "infra", tmp_path):
        monkeypatch.chdir(directory)
        assert load("local", {**good, "publicKey": relative}).public_key_file.samefile(key_file)


# --- accepted ---

NETWORKS = st.sampled_from(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]).map(ipaddress.IPv4Network)


@given(data=st.data(), nodes=st.integers(1, 64), cpus=st.integers(1, 1024), memory=st.integers(256, 1 << 24))
def test_good_settings_come_back_as_written(
    data: st.DataObject, nodes: int, cpus: int, memory: int, good: dict[str, str]
) -> None:
    private = data.draw(NETWORKS)
    length = data.draw(st.integers(private.prefixlen, 32 - (nodes + 10).bit_length()))
    first = data.draw(st.integers(int(private[0]), int(private[-1]))) >> (32 - length) << (32 - length)
    network = ipaddress.IPv4Network((first, length))
    software = data.draw(st.sampled_from([("native", "gloo"), ("ipex", "gloo"), ("ipex", "ccl")]))
    image = data.draw(st.just("bake") | st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
    numbers = {"nodes": nodes, "cpus": cpus, "memoryMb": memory}
    written = {key: data.draw(st.sampled_from(["{}", "+{}", " {} ", "00{}"])).format(n) for key, n in numbers.items()}
    words = {"cidr": str(network), "profile": software[0], "collectives": software[1], "image": image}
    found = load("a-stack-2", {**good, **written, **words})
    assert (found.stack, found.nodes, found.image) == ("a-stack-2", nodes, image)
    assert (found.profile, found.collectives) == software
    assert (found.cidr, found.local.cpus, found.local.memory_mb) == (network, cpus, memory)
    addresses = [ipaddress.IPv4Address(found.address(index)) for index in range(nodes)]
    assert len({*addresses, network[0], network[1], network[-1]}) == nodes + 3, "none is the bridge's or everybody's"
    assert all(address in network for address in addresses)
