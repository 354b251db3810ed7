"""What the pages of the clouds tell people to type: verbs and options that there are, on the page's own stack."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fabfile import program
from fabfile.job_file import resolve
from fabfile.token_sets import token_set
from infra.clouds.aws import pcluster_config, pcluster_image

STACKS = Path(__file__).resolve().parents[2] / "stacks"
PAGES = ("aws-xeon", "aws-gpu", "aws-slurm", "aws-eks", "azure-xeon")


def text(page: str) -> str:
    return (STACKS / f"{page}.md").read_text()


def commands(page: str) -> list[str]:
    """The lines of all blocks, without their comments, and what stands as code in a sentence."""
    blocks = [line.partition(" #")[0].strip() for line in text(page).splitlines() if line.startswith("    ")]
    return [line for line in blocks if line] + re.findall(r"`(fab [^`]+)`", text(page))


def options() -> dict[str, set[str]]:
    """What each verb takes."""
    return {name: set(verb.options) for name, verb in program.verbs().items()}


@pytest.mark.parametrize("page", [*PAGES, "../README"])
def test_every_verb_and_option_is_there(page: str) -> None:
    known = options()
    typed = [command.split() for command in commands(page) if re.match(r"fab [a-z]", command)]
    assert {"up", "kubeconfig" if page == "aws-eks" else "train", "destroy"} <= {words[1] for words in typed}
    for _, verb, *rest in typed:
        assert verb in known, f"fab {verb}"
        own = rest[: rest.index("--")] if "--" in rest else rest  # after it comes a program of the user's
        given = {word.partition("=")[0] for word in own if word.startswith("-")}
        assert given <= {*known[verb], "--help"}, f"fab {verb} {given - known[verb]}"


@pytest.mark.parametrize("page", PAGES)
def test_the_verbs_of_a_page_go_to_its_stack(page: str) -> None:
    """Without it `fab destroy` would be the local stack's."""
    assert commands(page)[0] == f"export TRAINYARD_STACK={page}"
    first = commands(page)
    assert first.index(f"pulumi stack select {page} --create") < min(
        place for place, command in enumerate(first) if command.startswith("pulumi config set")
    )


def test_the_jobs_of_the_page_of_slurm_have_their_data_where_all_machines_see_them() -> None:
    typed = [command.split() for command in commands("aws-slurm") if command.startswith(("fab train", "fab prepare"))]
    assert len(typed) >= 2
    for _, _, job, *overrides in typed:
        path = tomllib.loads(resolve(job, overrides, 16).text)["data"]["path"]
        assert token_set.is_shared(path, pcluster_config.SHARED_DIR), path


def test_the_regions_that_aws_page_names_are_those_that_have_prices() -> None:
    prices = (STACKS.parent / "infra/prices/prices.toml").read_text()
    priced = set(re.findall(r'cloud = "aws", region = "([a-z0-9-]+)"', prices))
    (row,) = [line for line in text("aws-xeon").splitlines() if line.startswith("| `region`")]
    sentence = row.partition(": those that")[0].rpartition("|")[2]
    assert set(re.findall(r"[a-z]{2}-[a-z]+-[0-9]", sentence)) == priced


def test_the_image_file_asks_for_nvidias_closed_kernel_module() -> None:
    """With the open one, which ParallelCluster takes by itself, the V100 of a p3dn are not seen."""
    assert f"--image-configuration {pcluster_image.CONFIGURATION} " in text("aws-slurm")
    image = yaml.safe_load((STACKS.parent / pcluster_image.CONFIGURATION).read_text())
    attributes = json.loads(image["DevSettings"]["Cookbook"]["ExtraChefAttributes"])
    assert attributes == {"cluster": {"nvidia": {"kernel_open": "false"}}}, "a text, as ParallelCluster's own"
    assert image["Build"]["Installation"]["NvidiaSoftware"] == {"Enabled": True}
