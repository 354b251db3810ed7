"""What a repository of ECR has, and the way to push to it: `python -m infra.clouds.aws.ecr list|login REPOSITORY`.

Both print JSON, by your AWS credentials. REPOSITORY is what an inventory names, which has its account and region:
ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import Any

from infra.clouds.aws import api
from infra.errors import UsageError, prints_json

_FORM = re.compile(r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(.+)")


@dataclass(frozen=True)
class Repository:
    """A repository, by the parts of its address."""

    account: str
    region: str
    name: str
    profile: str = ""
    """Of AWS's configuration; empty: the environment's credentials."""

    @classmethod
    def at(cls, address: str, profile: str = "") -> Repository:
        """Raises UsageError for an address that is not ECR's."""
        found = _FORM.fullmatch(address)
        if not found:
            raise UsageError(f"{address}: not a repository of ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME")
        return cls(found[1], found[2], found[3], profile)

    def images(self) -> list[dict[str, Any]]:
        """{tag, digest, bytes, pushed} of its tagged images, the newest first; `pushed` in seconds since 1970, `bytes`
        as stored, packed. Raises OperationError, UsageError without credentials."""
        client = self._client()
        with self._explain():
            ours = {"registryId": self.account, "repositoryName": self.name}
            found = api.pages(client, "describe_images", "imageDetails", **ours, filter={"tagStatus": "TAGGED"})
        rows = [
            {
                **{"tag": tag, "digest": item["imageDigest"], "bytes": int(item.get("imageSizeInBytes", 0))},
                "pushed": item["imagePushedAt"].timestamp(),
            }
            for item in found
            for tag in item["imageTags"]
        ]
        return sorted(rows, key=lambda row: (row["pushed"], row["tag"]), reverse=True)

    def login(self) -> dict[str, str]:
        """{auth}: what docker, podman and buildah have in their file of logins; the registry takes it for 12 hours."""
        client = self._client()
        with self._explain():
            given = client.get_authorization_token()["authorizationData"][0]
        return {"auth": str(given["authorizationToken"])}

    def _client(self) -> Any:
        api.identity(self.region, self.profile)  # tells bad credentials from a repository that is not there
        return api.client("ecr", self.region, self.profile)

    def _explain(self) -> Any:
        return api.explain(f"the repository {self.name} in {self.region}, account {self.account}")


@prints_json
def main() -> object:
    """The images, or the login, for JSON."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m infra.clouds.aws.ecr", description=about)
    parser.add_argument("what", choices=("list", "login"))
    parser.add_argument("repository")
    parser.add_argument("--profile", default="", help="AWS profile; default: the environment's credentials")
    args = parser.parse_args()
    repository = Repository.at(args.repository, args.profile)
    return repository.images() if args.what == "list" else repository.login()


if __name__ == "__main__":
    sys.exit(main())
