"""The policy pack without an engine: what passes, what does not, and what is not known yet."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_cases import (
    CASES,
    GOOD,
    INSTANCE,
    NSG,
    TAGS,
    Case,
    changed,
    declared,
    found,
    violated,
)

from infra.policy import pack, tags
from infra.policy import resource_types as types
from infra.policy.rule import DeclaredResource, Stack
from infra.policy.unknown import UNKNOWN, UndecidedError

ALL = {rule.name: rule for rule in (*pack.RULES, *pack.STACK_RULES)}


def test_every_rule_has_a_case_and_says_where_it_comes_from() -> None:
    assert set(CASES) == set(ALL)
    assert len(ALL) == len(pack.RULES) + len(pack.STACK_RULES)
    for rule in ALL.values():
        described = re.fullmatch(r"[A-Z].+ \((.+)\)\.", rule.description)
        assert described, rule.name
        for source in described[1].split(", "):
            assert re.fullmatch(
                r"CKV2?_(AWS|AZURE|SECRET)_[0-9]+|CIS AWS 5\.0 [0-9.]+|CIS Azure [34]\.0 [0-9.]+|no CKV or CIS number.*"
                r"|AWS Config [a-z0-9-]+|Azure Policy [0-9a-f-]{36}",
                source,
            ), source


def test_a_good_stack_passes_every_rule() -> None:
    assert found(GOOD) == {}


@pytest.mark.parametrize("name", CASES)
def test_a_violation_is_found_by_its_rule_and_no_other(name: str) -> None:
    findings = found(CASES[name].stack(CASES[name].value))
    assert set(findings) == {name}
    assert all(finding.decided and finding.what for finding in findings[name])


PRESENCE = {"disks-managed", "own-launch-template"}
"""They ask whether something is given, which is known where its value is not."""


@pytest.mark.parametrize("name", sorted(set(CASES) - PRESENCE))
def test_a_value_that_is_not_known_is_no_pass(name: str) -> None:
    findings = found(CASES[name].stack(UNKNOWN))
    assert [finding.decided for finding in findings[name]] == [False]


@pytest.mark.parametrize("name", sorted(PRESENCE))
def test_that_a_value_is_given_is_known(name: str) -> None:
    case = CASES[name]
    assert found(GOOD if case.path.startswith("@") else case.stack(UNKNOWN)) == {}


def test_what_is_not_known_hides_no_violation_beside_it() -> None:
    rules = [UNKNOWN, {**NSG.props["securityRules"][0], "sourceAddressPrefix": "*"}]
    findings = list(pack.of_resource(changed(NSG, "securityRules", rules)))
    assert [(f.rule, f.decided) for f in findings if f.rule == "no-ssh-from-anywhere"] == [
        ("no-ssh-from-anywhere", False),
        ("no-ssh-from-anywhere", True),
    ]


@pytest.mark.parametrize("use", [bool, str, list, len, lambda value: value == 1, lambda value: value.get("a")])
def test_nothing_can_be_done_with_what_is_not_known(use: Any) -> None:
    with pytest.raises(UndecidedError):
        use(UNKNOWN)


def test_tags_are_the_providers_under_the_resources_own() -> None:
    assert violated(declared(types.VPC, "x")) == set()
    assert violated(replace(declared(types.VPC, "x"), provider={})) == {"tagged"}
    assert violated(replace(declared(types.VPC, "x", tags=TAGS), provider={})) == set()
    assert violated(replace(declared(types.VPC, "x"), provider={"defaultTags": {"tags": TAGS}})) == set()
    assert violated(declared(types.VPC, "x", tags={"trainyard-owner": " "})) == {"tagged"}
    assert violated(declared(types.VPC, "x", tags={"trainyard-max-hours": "soon"})) == {"tagged"}


def test_what_the_provider_has_merged_decides() -> None:
    assert violated(declared(types.VPC, "x", tagsAll={"Name": "x"})) == {"tagged"}
    assert violated(replace(declared(types.VPC, "x", tagsAll=TAGS), provider={})) == set()
    assert violated(declared(types.VPC, "x", tagsAll=UNKNOWN)) == set()


def test_a_type_that_nobody_has_thought_of_has_to_have_tags() -> None:
    assert violated(replace(declared("aws:new/thing:Thing", "x"), provider={})) == {"tagged"}
    assert violated(DeclaredResource("azure-native:new:Thing", "x", {})) == {"tagged"}
    assert violated(DeclaredResource("command:local:Command", "x", {})) == set()


@pytest.mark.parametrize("type_", sorted(tags.AWS_WITHOUT | tags.AZURE_WITHOUT))
def test_types_without_tags_take_none(type_: str) -> None:
    assert "tags" not in arguments(type_)


NAMED = sorted(
    {
        *(key for rule in pack.RULES for key in rule.parts if key != "*"),
        *(types.VPC, types.DEFAULT_GROUP, types.FLOW_LOG, types.VNET_FLOW_LOG),
        *(types.BLOBS, types.ACCOUNT_LIFECYCLE),
        *(types.BUCKET, types.PUBLIC_ACCESS_BLOCK, types.ENCRYPTION, types.VERSIONING, types.BUCKET_POLICY),
    }
)


@pytest.mark.parametrize("type_", NAMED)
def test_types_that_rules_name_are_the_sdks(type_: str) -> None:
    takes = "tags" in arguments(type_)
    assert takes == (type_ not in tags.AWS_WITHOUT | tags.AZURE_WITHOUT)


def arguments(type_: str) -> set[str]:
    """What the SDK's class for a type takes, read from its source: importing an SDK takes its time."""
    provider, module, name = type_.split(":")
    package = pytest.importorskip(provider.replace("azure-native", "pulumi_azure_native").replace("aws", "pulumi_aws"))
    path = Path(package.__file__).parent / module.split("/")[0]
    for file in (path / f"{snake(name)}.py", path / f"{snake(name)}_.py"):
        if file.exists():
            text = file.read_text()
            if provider == "aws":
                assert f"'{type_}'" in text, f"{type_} is no type of pulumi_aws"
            init = re.search(rf"class {name}(?:Init)?Args:.*?def __init__\(__self__, \*,(.*?)\):", text, re.DOTALL)
            assert init
            return set(re.findall(r"^\s+(\w+): ", init[1], re.MULTILINE))
    raise AssertionError(f"no class {name} in {path}")


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_volumes_say_so_themselves() -> None:
    node = declared(types.INSTANCE, "x", launchTemplate={"id": "lt-1"})
    assert violated(node) == {"volumes-tagged"}  # default tags do not reach what a launch template makes
    assert violated(replace(node, props={**node.props, "volumeTags": UNKNOWN})) == set()
    assert violated(replace(INSTANCE, provider={}, props={**INSTANCE.props, "tags": TAGS})) == {"volumes-tagged"}


@pytest.mark.parametrize(
    "beside", ["private", "encryption", "versions", "tls", "tidy", "closed", "log", "vnet-log", "blobs", "old-versions"]
)
def test_what_must_stand_beside_it_is_missed(beside: str) -> None:
    without = replace(GOOD, resources=[resource for resource in GOOD.resources if resource.name != beside])
    elsewhere = replace(GOOD, resources=[replace(r, links={}) if r.name == beside else r for r in GOOD.resources])
    assert len(found(without)) == 1 and found(without).keys() == found(elsewhere).keys()


def test_a_bucket_may_be_meant_by_its_name() -> None:
    named = [
        replace(r, links={}, props={**r.props, "bucket": "trainyard-lab"}) if "bucket" in r.links else r
        for r in GOOD.resources
    ]
    assert found(replace(GOOD, resources=named)) == {}


def test_flow_logs_only_where_the_settings_ask_for_them() -> None:
    without = [resource for resource in GOOD.resources if not resource.name.endswith("log")]
    assert set(found(replace(GOOD, resources=without))) == {"flow-logs-as-configured"}
    assert found(pack.stack(without, {"flowLogs": "false", "baseImage": GOOD.images[0], "image": "bake"})) == {}
    assert set(found(pack.stack(without, {"flowLogs": "true", "baseImage": GOOD.images[0]}))) == {
        "flow-logs-as-configured"
    }


def test_an_image_that_was_looked_up_is_kept() -> None:
    looked_up = changed(INSTANCE, "ami", "ami-99999999")
    for machine, rules in ((looked_up, {"ami-does-not-drift"}), (replace(looked_up, ignores=("ami",)), set())):
        assert set(found(Stack([machine]))) == rules


def test_a_case_is_an_edit() -> None:
    for name, case in CASES.items():
        assert isinstance(case, Case) and case.stack(case.value).resources != GOOD.resources, name
