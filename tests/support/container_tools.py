"""Stand-ins for podman, buildah and docker: programs of a test's own that note how they were called.

`build` keeps the image's name with an id; `push` puts a manifest into the moto server's ECR, if it was given the login
that ECR has handed out. Run as a program, this is one of them: container_tools.py FOLDER NAME WORD...
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

SEEN = ("DOCKER_CONFIG", "DOCKER_HOST", "DOCKER_BUILDKIT")


class Tools:
    """A folder for the PATH with stand-ins."""

    def __init__(self, home: Path, *names: str) -> None:
        self.home, self.bin = home, home / "bin"
        self.bin.mkdir(parents=True)
        self.next_id("1" * 64)
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        program = self.bin / name
        words = shlex.join([sys.executable, "-I", "-S", __file__, str(self.home), name])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)

    def next_id(self, identifier: str) -> None:
        """The id that the next build gets."""
        (self.home / "id").write_text(identifier)

    def fail(self, name: str, command: str, says: str) -> None:
        """From now on this command of the tool fails."""
        (self.home / f"{name}.{command}").write_text(says)

    def images(self, name: str) -> dict[str, str]:
        """What the tool has: name -> id."""
        return images(self.home, name)

    def called(self, command: str = "") -> list[dict[str, Any]]:
        """The notes of the calls, of one command if it is named."""
        path = self.home / "called"
        notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [note for note in notes if not command or note["argv"][0] == command]


def images(home: Path, name: str) -> dict[str, str]:
    path = home / f"{name}.images"
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def note(home: Path, name: str, argv: list[str]) -> None:
    """How the stand-in was called, and what it was given to read."""
    secrets = dict(
        word.removeprefix("id=").split(",src=") for at, word in enumerate(argv) if argv[at - 1] == "--secret"
    )
    found: dict[str, Any] = {
        **{"tool": name, "argv": argv, "environment": {key: os.environ.get(key, "") for key in SEEN}},
        "secrets": {key: Path(path).read_text() for key, path in secrets.items()},
    }
    if argv[0] == "build":
        context = Path(argv[-1])
        found["context"] = [str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()]
    with (home / "called").open("a") as file:
        file.write(json.dumps(found) + "\n")


def push(name: str, argv: list[str], identifier: str) -> None:
    """Put a manifest into ECR, with the login from the file that the tool was told to read it from."""
    docker = name == "docker"
    logins = Path(os.environ["DOCKER_CONFIG"], "config.json") if docker else Path(argv[argv.index("--authfile") + 1])
    assert logins.stat().st_mode & 0o777 == 0o600
    host, _, rest = argv[-1].removeprefix("docker://").partition("/")
    login = base64.b64decode(json.loads(logins.read_text())["auths"][host]["auth"]).decode()
    assert login.startswith("AWS:")
    repository, _, tag = rest.partition(":")
    kind = "application/vnd.oci.image"
    config = {"digest": f"sha256:{identifier}", "size": 9, "mediaType": f"{kind}.config.v1+json"}
    manifest = {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "layers": [], "config": config}
    import urllib.request  # only here; and not boto3, whose import takes half a second

    # Moto reads of the signature which service is meant.
    credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/20260101/{host.split('.')[3]}/ecr/aws4_request"
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0",
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "AmazonEC2ContainerRegistry_V20150921.PutImage",
    }
    image = {"repositoryName": repository, "imageManifest": json.dumps(manifest), "imageTag": tag}
    request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"], json.dumps(image).encode(), headers)
    urllib.request.urlopen(request).close()


def main(home: Path, name: str, argv: list[str]) -> int:
    """Behave as the tool does, as far as `fab image` sees. Returns the exit code."""
    note(home, name, argv)
    known = images(home, name)
    failure = home / f"{name}.{argv[0]}"
    if failure.exists():
        print(failure.read_text(), file=sys.stderr)
        return 1
    if argv[0] == "build":
        print("STEP 1/9: FROM ubuntu", flush=True)
        time.sleep(60 if (home / "slow").exists() else 0)
        known[argv[argv.index("--tag") + 1]] = (home / "id").read_text()
    elif argv[:2] == ["image", "inspect"] or argv[0] == "inspect":
        if argv[-1] not in known:
            print("no such image", file=sys.stderr)
            return 1
        print(("sha256:" if name == "docker" else "") + known[argv[-1]])
    elif argv[0] == "tag":
        known[argv[2]] = known[argv[1]]
    elif argv[:2] == ["image", "rm"]:
        del known[argv[2]]
    elif argv[:2] == ["context", "inspect"]:
        print("unix:///run/user/1000/docker.sock")
    elif argv[0] == "push":
        push(name, argv, known[argv[-1] if name == "docker" else argv[-2]])
    (home / f"{name}.images").write_text(json.dumps(known))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
