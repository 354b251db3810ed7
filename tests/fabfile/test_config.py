"""`fab config`: a key of a stack's file shown and set, with nothing else in the file changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fabfile.program import verbs
from infra.clouds import sdk
from infra.config import configure, stack_file
from infra.config.kinds import WITH_GPUS
from infra.config.values import SettingsError
from infra.errors import UsageError

FILE = """\
# A cluster of mine.
config:
  trainyard:cluster: local   # on this machine
  trainyard:nodes: "3"  # head included
  # and a word at the end
encryptionsalt: v1:abc=
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_file: Path) -> Path:
    path = tmp_path / "Pulumi.yard.yaml"
    path.write_text(FILE)
    monkeypatch.setattr(stack_file, "path_of", lambda _stack, _root=None: path)
    configure.set_value("yard", "publicKey", str(key_file))
    return path


def test_a_key_is_changed_in_its_line_and_comments_stay(file: Path) -> None:
    configure.set_value("yard", "nodes", "4")
    text = file.read_text()
    assert "  trainyard:nodes: 4  # head included\n" in text
    for line in FILE.splitlines():
        assert line in text or "nodes" in line
    assert stack_file.read("yard")["nodes"] == "4"


@pytest.mark.parametrize(("key", "value"), [("cidr", "10.9.0.0/24"), ("owner", ""), ("image", "0123456789abcdef")])
def test_a_new_key_is_put_after_the_last(file: Path, key: str, value: str) -> None:
    configure.set_value("yard", key, value)
    assert stack_file.read("yard")[key] == value
    assert yaml.safe_load(file.read_text())["encryptionsalt"] == "v1:abc="


@pytest.mark.parametrize(("key", "value"), [("nodes", "0"), ("nodes", "many"), ("nodez", "4"), ("cidr", "8.8.8.0/24")])
def test_what_the_settings_refuse_is_not_written(file: Path, key: str, value: str) -> None:
    before = file.read_text()
    with pytest.raises(SettingsError, match=f"^{key} = "):
        configure.set_value("yard", key, value)
    assert file.read_text() == before


def test_a_cloud_stack_takes_one_key_after_the_other(file: Path) -> None:
    """The first of three that have no default must not wait for the others."""
    for key, value in (("cluster", "aws-xeon"), ("maxHours", "24")):
        file.write_text(configure.edited(file.read_text(), key, value))
    configure.set_value("yard", "owner", "ada")
    assert stack_file.read("yard")["owner"] == "ada" and stack_file.read("yard")["adminCidr"] == ""


CLOUD = {"adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org", "maxHours": "24"}


def in_cloud(file: Path, **keys: str) -> str:
    """The stack's file with these keys; its text."""
    for key, value in {**CLOUD, **keys}.items():
        file.write_text(configure.edited(file.read_text(), key, value))
    return file.read_text()


@pytest.mark.parametrize(
    ("cluster", "key", "value"),
    [
        ("aws-xeon", "region", "mars-1"),
        ("aws-xeon", "instanceType", "m9z.large"),
        ("aws-xeon", "zone", "euw1-az1"),
        ("aws-slurm", "publicNodes", "all"),
        ("aws-slurm", "nodes", "1"),
        ("aws-eks", "idleMinutes", "30"),
        ("aws-eks", "diskGb", "40"),
        ("azure-xeon", "instanceType", "Standard_D1_v2"),
        ("azure-xeon", "capacityReservation", "cr-0123456789abcdef0"),
    ],
)
def test_what_this_kind_of_cluster_refuses_is_not_written(file: Path, cluster: str, key: str, value: str) -> None:
    """`up` would refuse it, maybe days later."""
    before = in_cloud(file, cluster=cluster, **({"profile": "cuda"} if cluster in WITH_GPUS else {}))
    with pytest.raises(SettingsError, match=f"^{key} = "):
        configure.set_value("yard", key, value)
    assert file.read_text() == before


def test_a_region_is_set_before_its_zone(file: Path, tmp_path: Path) -> None:
    """The old zone is not in the new region, and says so of itself only when it is set; no public key is needed."""
    in_cloud(file, cluster="aws-xeon", zone="use1-az4", publicKey=str(tmp_path / "none.pub"))
    configure.set_value("yard", "region", "eu-west-1")
    configure.set_value("yard", "zone", "euw1-az1")
    assert stack_file.read("yard")["zone"] == "euw1-az1"


@pytest.mark.parametrize(
    ("cluster", "machine", "region"),
    [("azure-xeon", "Standard_D32s_v6", "swedencentral"), ("aws-xeon", "m7i.8xlarge", "eu-north-1")],
)
def test_a_region_without_a_price_is_not_written(file: Path, cluster: str, machine: str, region: str) -> None:
    """`cost`, `preview` and `up` end with the same line."""
    before = in_cloud(file, cluster=cluster)
    with pytest.raises(UsageError, match=rf"^no price for {machine} in {region}: priced are: "):
        configure.set_value("yard", "region", region)
    assert file.read_text() == before


def test_a_region_without_this_type_is_set_before_another_type(file: Path) -> None:
    in_cloud(file, cluster="aws-gpu", profile="cuda", instanceType="p5.48xlarge")
    configure.set_value("yard", "region", "eu-west-1")
    configure.set_value("yard", "instanceType", "p4d.24xlarge")


def test_without_the_clouds_sdk_a_key_is_set_all_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_cloud(file, cluster="aws-xeon")

    def missing(_name: str) -> None:
        raise UsageError("pulumi_aws is not installed")

    monkeypatch.setattr(sdk, "load", missing)
    configure.set_value("yard", "instanceType", "m8i.8xlarge")
    with pytest.raises(SettingsError, match=r"^diskGb = "):
        configure.set_value("yard", "diskGb", "1")


def test_a_public_key_that_is_not_there_yet_blocks_no_other_key(file: Path, tmp_path: Path) -> None:
    file.write_text(configure.edited(file.read_text(), "publicKey", str(tmp_path / "none.pub")))
    configure.set_value("yard", "nodes", "5")
    assert stack_file.read("yard")["nodes"] == "5"
    with pytest.raises(SettingsError, match=r"^publicKey = "):
        configure.set_value("yard", "publicKey", str(tmp_path / "other.pub"))
    with pytest.raises(SettingsError, match=r"^maxHours = "):
        configure.set_value("yard", "maxHours", "many")


def test_the_help_says_what_the_arguments_are_and_which_stack_it_is() -> None:
    shown = verbs()["config"].help()
    assert "fab config [set KEY VALUE] [options]" in shown and "WORDS" not in shown
    assert "$TRAINYARD_STACK, or local" in " ".join(shown.split())


@pytest.mark.parametrize("text", ["", "config: {}\n", "encryptionsalt: v1:abc=\n"])
def test_a_file_without_keys_gets_its_first(text: str) -> None:
    assert yaml.safe_load(configure.edited(text, "nodes", "2"))["config"] == {"trainyard:nodes": 2}


def test_the_listing_says_where_a_value_is_from(file: Path) -> None:
    rows = {row["key"]: row for row in configure.listing("yard")}
    assert rows["nodes"] == {"key": "nodes", "value": "3", "default": "3", "set": True}
    assert rows["cpus"]["set"] is False


@pytest.mark.parametrize("words", [["set", "nodes"], ["get", "nodes"], ["set", "nodes", "4", "5"]])
def test_a_usage_error_is_one_line(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fabfile", "config", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "fab config set KEY VALUE" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_unknown_stack_is_said_to_be_and_the_others_are_listed() -> None:
    argv = [sys.executable, "-m", "fabfile", "config", "--stack", "loacl"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "loacl" in done.stderr and "local" in done.stderr
