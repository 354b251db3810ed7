"""The policy pack's rule against secrets in user data, however they are packed."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from dataclasses import replace
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
import yaml
from policy_cases import (
    INSTANCE,
    changed,
    declared,
    violated,
)

from infra import user_data
from infra.config.settings import load
from infra.policy import leaks

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
SECRETS = {
    "a private key": KEY,
    "an AWS access key": "aws configure set aws_access_key_id AKIA" + "IOSFODNN7EXAMPL2",
    "an AWS secret key": "aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "a token of GitHub": "git clone https://x/ # ghp_" + "a1" * 18,
    "a token of Hugging Face": "hf auth login --token hf_" + "Ab3" * 11,
    "a JSON web token": "curl -H 'Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl'",
    "a password in a URL": "pip install --index-url https://me:hunter22@packages.example.org/simple",
    "a secret in a variable": "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
    "an Azure storage key": "DefaultEndpointsProtocol=https;AccountKey=" + "Ab1/" * 21 + "Ab==",
}


@pytest.mark.parametrize("what", SECRETS)
def test_secrets_are_known_by_their_form(what: str) -> None:
    assert leaks.find(f"#!/bin/sh\n{SECRETS[what]}\n") == what


@pytest.mark.parametrize(
    "text",
    [
        "TOKEN=$(curl -s -X PUT $IMDS)",
        "TOKEN_URL=http://169.254.169.254/latest/api/token",
        "TOKEN_FILE=/run/token.json",
        "HF_TOKEN=${HF_TOKEN:-}",
        "https://packages.example.org/simple",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQ",
    ],
)
def test_where_a_secret_is_to_be_had_is_none(text: str) -> None:
    assert leaks.find(f"#!/bin/sh\n{text}\n") is None


def mime(text: str) -> str:
    message = MIMEMultipart()
    message.attach(MIMEText(text, "cloud-config", "utf-8"))
    return message.as_string()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def files(content: str | bytes, **more: str) -> str:
    return "#cloud-config\n" + yaml.safe_dump({"write_files": [{"path": "/etc/x", "content": content, **more}]})


PACKED: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": lambda text: b64(text.encode()),
    "gzip in base64": user_data.packed,
    "gzip in base64, on lines of 76": lambda text: base64.encodebytes(gzip.compress(text.encode())).decode(),
    "a file of cloud-config": files,
    "a file in gzip in base64": lambda text: files(b64(gzip.compress(text.encode())), encoding="gz+b64"),
    "a binary of YAML": lambda text: files(text.encode()),
    "a part of MIME": mime,
    "cloud-config with a packed file, packed": lambda text: user_data.packed(files(b64(text.encode()), encoding="b64")),
    "MIME, packed": lambda text: user_data.packed(mime(text)),
}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("key", ["userData", "userDataBase64"])
def test_a_secret_is_found_however_it_is_packed(packing: str, key: str) -> None:
    bad = replace(INSTANCE, props={**INSTANCE.props, key: PACKED[packing](KEY * 3)})
    assert violated(bad) == {"no-secret-in-user-data"}
    node = declared("pulumi-python:dynamic/local:Node", "node1", user_data=PACKED[packing](KEY * 3))
    assert violated(node) == {"no-secret-in-user-data"}


@pytest.mark.parametrize("key", ["passwd", "plain_text_passwd", "hashed_passwd"])
def test_a_password_of_cloud_config(key: str) -> None:
    users = "#cloud-config\n" + yaml.safe_dump({"users": [{"name": "me", key: "correct"}]})
    assert leaks.find(users) == leaks.find(user_data.packed(users)) == "a password"
    assert leaks.find("#cloud-config\nchpasswd:\n  list: |\n    me:horse\n") == "a password"


def test_what_cannot_be_opened_is_no_pass() -> None:
    packed = gzip.compress(KEY.encode())
    assert violated(changed(INSTANCE, "userDataBase64", b64(packed[:10] + b"spoilt" + packed[16:]))) == {
        "no-secret-in-user-data"
    }
    bomb = b64(gzip.compress(b"\0" * (leaks.LARGEST + 1)))
    assert violated(changed(INSTANCE, "userDataBase64", bomb)) == {"no-secret-in-user-data"}


@pytest.mark.parametrize("baked", [False, True])
def test_the_user_data_of_every_cluster_has_none(good: dict[str, str], baked: bool) -> None:
    settings = load("local", good)
    for text in (user_data.for_bake(settings, "i"), user_data.for_node(settings, "i", "node1", "head", baked=baked)):
        assert leaks.find(text) is None and leaks.find(user_data.packed(text)) is None
