"""Two people, one AWS account, two stacks of one name: no verb of one touches what the other made.

The cloud is moto's AWS; the state is what the test says. `fab` and the audit are real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import boto3
import moto_cloud
import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from moto_cloud import Stack
from operators import ADA, BOB, VERBS, Become, Operator, own

from fabfile.stacks import pulumi_cli
from fabfile.verbs.destroy import destroy
from fabfile.verbs.recover import recover
from infra.clouds import audit, sdk
from infra.clouds.aws import removal
from infra.state import stack_record
from infra.state.ownership import Location

pytest_plugins = ("operators",)
# Each look at an account is some hundred requests. make test has the same verbs on Azure, which has few.
pytestmark = pytest.mark.acceptance


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty AWS account. Two kinds are not in moto, and would be kinds that nobody has seen."""
    monkeypatch.setattr(removal, "POLL_S", 0.05)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for kind in ("placement group", "capacity reservation"):
        monkeypatch.delitem(sdk.load("infra.clouds.aws.kinds").KINDS, kind)
    with moto_cloud.aws(monkeypatch) as endpoint:
        yield endpoint


@pytest.mark.parametrize("same_owner", [False, True], ids=["two owners", "one owner with two homes"])
def test_on_aws_the_second_ones_verbs_leave_the_firsts_cluster_alone(
    same_owner: bool,
    account: str,
    become: Become,
    ada: Operator,
    bob: Operator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = moto_cloud.make_stack(ADA)
    moto_cloud.fill(first["bucket"])
    ada.up(first, ADA)
    bob.owner = "ada" if same_owner else "bob"
    second = replace(BOB, owner=bob.owner)
    made = moto_cloud.make_stack(second)
    bob.up(made, second)
    become(ada)
    before = own(ada)
    become(bob)
    theirs = len(own(bob))
    assert before and theirs
    for verb in ("audit", "recover", "destroy"):
        become(bob)
        with pytest.raises(
            Exit, match=r"named after stack yard \(listed above\) belong to ada, stack id aaaa1111"
        ) as no:
            VERBS[verb]()
        assert no.value.code == 1
        assert "[of ada, stack id aaaa1111]" in capsys.readouterr().out
        assert len(own(bob)) == (0 if verb == "destroy" else theirs)
        become(ada)
        assert own(ada) == before


def test_an_operator_without_a_cluster_is_told_whose_it_is_and_destroys_nothing(
    account: str, become: Become, ada: Operator, bob: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.up(moto_cloud.make_stack(ADA), ADA)
    become(ada)
    before = own(ada)
    become(bob)
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(pulumi_cli, "follow", lambda argv, **_more: ran.append(argv) or 0)
    with pytest.raises(Exit, match=r"belong to ada, stack id aaaa1111: not touched; nothing was changed") as no:
        VERBS["destroy"]()
    assert no.value.code == 1 and ran == []
    become(ada)
    assert own(ada) == before


def test_a_stack_without_an_id_is_destroyed_by_its_own_owner_alone(
    account: str, become: Become, ada: Operator, bob: Operator
) -> None:
    """It was made by a version that had no ids: its owner says whose it is."""
    old = Stack("yard", "ada")
    ada.up(moto_cloud.make_stack(old), old)
    become(bob)
    for verb in VERBS.values():
        with pytest.raises(Exit, match="belong to ada: not touched"):
            verb()
    become(ada)
    assert own(ada)
    VERBS["destroy"]()
    assert own(ada) == []


def test_what_a_killed_first_up_has_left_is_found_by_the_users_own_record(
    account: str, become: Become, bob: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    """No state was ever written: the id stands in the home, from before anything was made."""
    become(bob)
    reserved = stack_record.reserve("yard")
    moto_cloud.make_stack(Stack("yard", "bob", reserved))
    assert own(bob)
    VERBS["recover"]()
    assert own(bob) == []
    listed, _, after = capsys.readouterr().out.partition("removed ")
    assert "not in the state of stack yard, and will be removed" in listed and "resources that are in no state" in after


def test_all_that_goes_is_listed_before_the_question(
    account: str, become: Become, bob: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = moto_cloud.make_stack(BOB)
    bob.up(made, BOB)
    become(bob)
    lines: list[str] = []

    def no(question: str) -> str:
        lines.append(capsys.readouterr().out)
        return "n"

    monkeypatch.setattr("builtins.input", no)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for verb in (destroy, recover):
        bob.state = bob.state if verb is destroy else bob.state[:1]
        with pytest.raises(Exit, match="nothing was changed"):
            verb(Context(), stack="yard")
    for listed in lines:
        assert all(made[name] in listed for name in ("node1", "node2", "disk", "vpc", "nat"))
    assert made["bucket"] in lines[0] and own(bob)


def test_a_region_that_the_stack_has_left_is_looked_at_as_well(account: str, become: Become, bob: Operator) -> None:
    """By the state and by the user's record; two regions' key pairs of one name are two."""
    elsewhere = replace(BOB, region="eu-central-1")
    old, new = moto_cloud.make_stack(elsewhere), moto_cloud.make_stack(replace(BOB, stack_id="cccc3333"))
    here, there = (Location("aws", region, moto_cloud.ACCOUNT) for region in (moto_cloud.REGION, "eu-central-1"))
    assert old and new
    become(bob)
    bob.up({}, BOB, there, here)
    found = {resource.owner for resource in own(bob)}
    assert {old["vpc"], old["node1"], old["nat"]} <= found, "by the state"
    bob.up({}, BOB)
    assert not {old["vpc"]} & {resource.owner for resource in own(bob)}
    stack_record.remember("yard", BOB.stack_id, [there])
    assert old["vpc"] in {resource.owner for resource in own(bob)}, "by the record"
    with pytest.raises(Exit, match="cccc3333"):
        VERBS["destroy"]()
    assert own(bob) == []
    assert boto3.client("ec2", region_name="eu-central-1").describe_key_pairs()["KeyPairs"] == []


def test_a_name_that_two_regions_have_is_known_by_its_arn(account: str, become: Become, bob: Operator) -> None:
    here, there = moto_cloud.make_stack(BOB), {}
    there["key"] = here["key"]
    boto3.client("ec2", region_name="eu-central-1").create_key_pair(
        KeyName=there["key"], TagSpecifications=BOB.tagged("key-pair")
    )
    become(bob)
    bob.up(here, BOB, Location("aws", "eu-central-1", moto_cloud.ACCOUNT))
    arn = f"arn:aws:ec2:{moto_cloud.REGION}:{moto_cloud.ACCOUNT}:key-pair/{here['key']}"
    (key,) = [entry for entry in bob.state if entry["urn"] == "urn::key"]
    key["outputs"] = {"arn": arn}
    with pytest.raises(Exit, match="1 resource of stack yard remains"):  # what AWS itself puts into a network
        VERBS["recover"]()
    regions = (moto_cloud.REGION, "eu-central-1")
    keys = [len(boto3.client("ec2", region_name=region).describe_key_pairs()["KeyPairs"]) for region in regions]
    assert keys == [1, 0]


def test_another_account_that_cannot_be_looked_at_is_not_called_clean(
    account: str, become: Become, bob: Operator
) -> None:
    become(bob)
    bob.up({}, BOB, Location("aws", "us-east-1", "999999999999", "old"))
    with pytest.raises(Exit, match="remain"):
        VERBS["destroy"]()
    (blind,) = [resource for resource in audit.find("yard", pulumi_cli.identity("yard")) if resource.unseen]
    assert "account 999999999999 (profile old then)" in blind.what and "AWS_PROFILE" in blind.what
