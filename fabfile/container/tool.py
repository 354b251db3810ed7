"""The program that builds and pushes container images: podman, buildah or docker, whichever is here and works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli

TOOLS = {
    "podman": (("info",),),
    "buildah": (("info",),),
    "docker": (("version", "--format", "{{.Server.Version}}"), ("buildx", "version")),
}
"""Name -> commands of it that all succeed where it can build: docker's builder is a part that may be missing. Those
that need no daemon come first."""
PLATFORM = "linux/amd64"
"""That of the nodes: a mac may have another."""
_WAIT_S = 60.0


@dataclass(frozen=True)
class Tool:
    """One of TOOLS."""

    name: str

    def build(self, folder: Path, image: str, base: str, secrets: Mapping[str, Path], *, fresh: bool) -> None:
        """Build the image of a context, with its output shown. Exit if it fails, 130 if it is interrupted.

        `base`: empty for the Dockerfile's. `fresh`: no layer of an earlier build is taken.
        """
        argv = [self.name, "build", "--platform", PLATFORM, "--file", str(folder / "Dockerfile"), "--tag", image]
        argv += ["--layers"] if self.name == "buildah" else []  # the others keep them unasked: a failed build goes on
        argv += ["--no-cache"] if fresh else []
        argv += ["--build-arg", f"BASE={base}"] if base else []
        # Without a value: the tool takes that of its environment, and it is in no image.
        proxies = [f"{kind}_proxy" for kind in ("http", "https", "no")]
        proxies += [name.upper() for name in proxies]
        argv += [word for name in proxies if name in os.environ for word in ("--build-arg", name)]
        argv += [word for name, path in secrets.items() for word in ("--secret", f"id={name},src={path}")]
        # docker: secrets need BuildKit, and a record of the build would make the image an index of two.
        code = pulumi_cli.follow([*argv, str(folder)], DOCKER_BUILDKIT="1", BUILDX_NO_DEFAULT_ATTESTATIONS="1")
        self._end(code, f"the image was not built: {self.name} build ended with exit code {code}, see above")

    def image_id(self, image: str) -> str:
        """The id of a built image, which every build has another of; empty if there is no such image."""
        argv = [self.name, "image", "inspect", "--format", "{{.Id}}", image]
        if self.name == "buildah":
            argv = [self.name, "inspect", "--type", "image", "--format", "{{.FromImageID}}", image]
        code, out = _ask(argv)
        return out.removeprefix("sha256:") if code == 0 else ""

    def push(self, image: str, target: str, auth: str, folder: Path) -> None:
        """Push a built image as `target`, registry and tag included, with its output shown. Exit if it fails.

        `auth`: the registry's login. It is for the time of the push in a file of its own in `folder`, a private one:
        nobody is logged in afterwards who was not before.
        """
        logins = folder / "config.json"  # the name that docker looks for
        logins.touch(mode=0o600)
        logins.write_text(json.dumps({"auths": {target.partition("/")[0]: {"auth": auth}}}))
        if self.name == "docker":
            code = self._push_by_docker(image, target, folder)
        else:
            code = pulumi_cli.follow([self.name, "push", "--authfile", str(logins), image, f"docker://{target}"])
        self._end(code, f"the image was not pushed: {self.name} push ended with exit code {code}, see above")

    def _push_by_docker(self, image: str, target: str, folder: Path) -> int:
        # With a configuration of its own docker forgets where its daemon is, unless it is told.
        code, host = _ask(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
        self._end(code, f"docker does not say where its daemon is: {host}")
        code, said = _ask(["docker", "tag", image, target])
        self._end(code, f"docker tag: {said}")
        try:
            return pulumi_cli.follow(["docker", "push", target], DOCKER_CONFIG=str(folder), DOCKER_HOST=host)
        finally:
            _ask(["docker", "image", "rm", target])  # the name; the image keeps its own

    def _end(self, code: int, why: str) -> None:
        if code == pulumi_cli.INTERRUPTED:
            raise Exit(code=code)
        if code != 0:
            raise Exit(why, code=1)


def find(wanted: str = "") -> Tool:
    """The first tool that is here and works, or the one that is wanted. Exit 2, and why not, if there is none."""
    if wanted and wanted not in TOOLS:
        raise Exit(f"--tool {wanted}: allowed: {', '.join(TOOLS)}", code=2)
    reasons = []
    for name in [wanted] if wanted else TOOLS:
        if not shutil.which(name):
            reasons.append(f"{name} is not installed")
            continue
        failed = [said or f"exit code {code}" for code, said in (_ask([name, *words]) for words in TOOLS[name]) if code]
        if not failed:
            return Tool(name)
        reasons.append(f"{name} does not work: {failed[0]}")
    raise Exit(f"nothing here builds container images: {'; '.join(reasons)}", code=2)


def _ask(argv: list[str]) -> tuple[int, str]:
    """(exit code, output in one line, or the last line of what went wrong)."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_WAIT_S, errors="replace", check=False)
    except subprocess.TimeoutExpired:
        return 1, f"{' '.join(argv[:2])} did not end in {_WAIT_S:.0f} s"
    if done.returncode == 0:
        return 0, done.stdout.strip()
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return done.returncode, lines[-1].strip() if lines else ""
