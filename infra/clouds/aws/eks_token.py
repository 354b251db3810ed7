"""A token for the API of an EKS cluster, by your AWS credentials: `python -m infra.clouds.aws.eks_token NAME REGION`.

Prints an ExecCredential, as kubectl wants it of a program that a kubeconfig names. The token is a signed request to
STS, which EKS makes to learn who signed it: https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
"""

from __future__ import annotations

import argparse
import base64
import datetime
import sys
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError

from infra.clouds.aws import api
from infra.errors import UsageError, prints_json

SIGNED_FOR = 60
"""Seconds in the signature; EKS takes the token for 15 minutes whatever they are."""
VALID = datetime.timedelta(minutes=14)
_HEADER = "x-k8s-aws-id"


def token(cluster: str, region: str, profile: str = "") -> str:
    """`k8s-aws-v1...`. Makes no request. Raises UsageError without credentials."""
    try:
        session = boto3.Session(profile_name=profile or None, region_name=region)
        china = session.get_partition_for_region(region) == "aws-cn"
        sts = session.client("sts", endpoint_url=f"https://sts.{region}.amazonaws.com{'.cn' if china else ''}")
        sts.meta.events.register("provide-client-params.sts.GetCallerIdentity", _take_name)
        sts.meta.events.register("before-sign.sts.GetCallerIdentity", _put_name)
        url = sts.generate_presigned_url("get_caller_identity", {_HEADER: cluster}, SIGNED_FOR, "GET")
    except BotoCoreError as error:
        raise UsageError(f"{api.one_line(error)}; {api.SIGN_IN}") from None
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _take_name(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """The cluster's name is no parameter of the call: keep it for the header."""
    context[_HEADER] = params.pop(_HEADER)


def _put_name(request: Any, **_: Any) -> None:
    request.headers[_HEADER] = request.context[_HEADER]


@prints_json
def main() -> dict[str, Any]:
    """The credential, for JSON."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m infra.clouds.aws.eks_token", description=about)
    parser.add_argument("cluster")
    parser.add_argument("region")
    parser.add_argument("--profile", default="", help="AWS profile; default: the environment's credentials")
    args = parser.parse_args()
    until = datetime.datetime.now(datetime.UTC) + VALID
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {
            "expirationTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "token": token(args.cluster, args.region, args.profile),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
