"""`fab image`: the container image of a Kubernetes cluster's jobs. The golden images of nodes are `fab images`."""

from __future__ import annotations

import json as json_text
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.command_line import ArgumentForm
from fabfile.container import pip_settings, repository
from fabfile.container.tool import find
from fabfile.output import next_command, say, table
from fabfile.stacks import pulumi_cli
from fabfile.targets import load_any
from infra.inventory import KubeCluster

_MODULE = "container_image"
_WORDS = ("build", "push", "list")


@task(
    positional=["words"],
    help={
        "words": "build it here, push it to the stack's repository, or list what that has",
        "profile": "cuda or native (default: the stack's)",
        "base": "an image in place of Ubuntu's, pinned by its digest",
        "fresh": "build every layer anew, with the distribution's packages of today",
        "tool": "podman, buildah or docker (default: the first of these that works)",
    },
)
def image(
    _c: Context,
    words: Annotated[Sequence[str], ArgumentForm("build|push|list")] = (),
    stack: str = "",
    inventory: str = "",
    profile: str = "",
    base: str = "",
    fresh: bool = False,
    tool: str = "",
    json: bool = False,
) -> None:
    """Build the container image of a Kubernetes cluster's jobs, push it to the stack, or list what was pushed."""
    if len(words) != 1 or words[0] not in _WORDS:
        wrong = f"{' '.join(words)!r}: allowed: {', '.join(_WORDS)}" if words else "build, push or list is missing"
        raise Exit(f"{wrong} (the golden images of nodes: fab images)", code=2)
    (word,) = words
    if word == "list":
        _list(_cluster(stack, inventory), as_json=json)
        return
    if inventory:
        raise Exit(f"--inventory: fab image {word} takes a stack, whose settings say what is in the image", code=2)
    if json:
        raise Exit("--json: goes with list alone", code=2)
    options = [option for pair in (("--profile", profile), ("--base", base)) if pair[1] for option in pair]
    if word == "build":
        _build(stack, options, base, tool, fresh=fresh)
    else:
        _push(_cluster(stack, ""), stack, options, tool)


def _cluster(stack: str, inventory: str) -> KubeCluster:
    cluster = load_any(stack, inventory)
    if not isinstance(cluster, KubeCluster):
        raise Exit(f"{cluster.name}: its jobs run on its nodes, in no container; their images: fab images", code=2)
    return cluster


def _build(stack: str, options: list[str], base: str, wanted: str, *, fresh: bool) -> None:
    facts = pulumi_cli.answer(_MODULE, stack, *options)  # first: what is wrong with it shall not wait for a tool
    tool, began = find(wanted), time.monotonic()
    built = f"for {facts['gpu_architecture']}, " if facts["gpu_architecture"] else ""
    say(f"image {facts['name']}: {built}built by {tool.name}; some 10 minutes, Ctrl-C ends it")
    with tempfile.TemporaryDirectory(prefix="trainyard-image-") as folder:
        context, secrets = Path(folder, "context"), Path(folder, "secrets")
        context.mkdir()
        secrets.mkdir()
        pulumi_cli.answer(_MODULE, stack, *options, "--folder", str(context))
        tool.build(context, _local(facts), base, _secrets(secrets), fresh=fresh)
    say(f"image {facts['name']}: built in {time.monotonic() - began:.0f} s, as {_local(facts)}")
    say(next_command("fab image push"))


def _local(facts: dict[str, Any]) -> str:
    """The name of a built image on this machine."""
    return f"localhost/trainyard:{facts['name']}"


def _secrets(folder: Path) -> dict[str, Path]:
    """Files that a build step reads, and no image has: pip's settings here, and the certificates that are trusted."""
    found, settings = {}, pip_settings.read(sys.executable)
    of_pip = settings.pop("cert", "")  # a file of this machine's
    if certificates := os.environ.get("SSL_CERT_FILE") or of_pip:
        found["ca"] = Path(certificates)
        if not found["ca"].is_file():
            raise Exit(f"{certificates}: the certificates of SSL_CERT_FILE, or of pip's settings: no such file", code=2)
    if settings:
        found["pip"] = folder / "pip"
        found["pip"].touch(mode=0o600)
        found["pip"].write_text(pip_settings.text(settings))
    return found


def _push(cluster: KubeCluster, stack: str, options: list[str], wanted: str) -> None:
    facts = pulumi_cli.answer(_MODULE, stack, *options)
    tool = find(wanted)
    identifier = tool.image_id(_local(facts))
    if not identifier:
        why = f"{tool.name} has no image {_local(facts)}, which this checkout and the stack's settings make"
        raise Exit(f"{why}; build it: fab image build", code=2)
    tag = f"{facts['name']}-{identifier[:8]}"
    images = repository.pushed(cluster)
    if tag not in [each.tag for each in images]:
        say(f"image {tag}: pushed by {tool.name} to {cluster.image}")
        with tempfile.TemporaryDirectory(prefix="trainyard-push-") as folder:
            tool.push(_local(facts), f"{cluster.image}:{tag}", repository.login(cluster), Path(folder))
        images = repository.pushed(cluster)
    digest = next((each.digest for each in images if each.tag == tag), "")
    if not digest:
        raise Exit(f"{cluster.image} does not list {tag} after the push: look with fab image list", code=1)
    say(f"image {tag}: in the repository as {digest}")
    _say_taken(repository.choose(images, cluster), cluster)


def _say_taken(taken: repository.Pushed | None, cluster: KubeCluster) -> None:
    if taken is None:
        say(f"no image of profile {repository.profile(cluster)}: jobs cannot start")
        say(next_command("fab image build"))
    else:
        say(f"jobs that start from now on take {taken.tag}, the newest of profile {repository.profile(cluster)}")


def _list(cluster: KubeCluster, *, as_json: bool) -> None:
    images = repository.pushed(cluster)
    taken = repository.choose(images, cluster)
    if as_json:
        say(json_text.dumps([{**vars(each), "taken": each is taken} for each in images]))
        return
    rows = [("TAG", "DIGEST", "SIZE", "PUSHED", "JOBS TAKE IT")]
    for each in images:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.pushed))
        size = f"{each.bytes / 1e9:.1f} GB"
        rows.append((each.tag, each.digest[:19], size, when, "yes" if each is taken else "-"))
    say(f"{cluster.image}: {sum(each.bytes for each in images) / 1e9:.1f} GB in {len(images)} images")
    if images:
        say(table(rows))
    _say_taken(taken, cluster)
