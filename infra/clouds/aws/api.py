"""boto3 as this project uses it: one region, few retries, one-line errors.

AWS_ENDPOINT_URL and AWS_PROFILE work as for every AWS tool.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore import exceptions as errors
from botocore.config import Config
from botocore.parsers import ResponseParserError

from infra.errors import OperationError, UsageError

FAILURES = (errors.ClientError, errors.BotoCoreError, ResponseParserError)
"""Every exception that a call may raise."""
_NO_CREDENTIALS = (
    *(errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound),
    *(errors.SSOTokenLoadError, errors.TokenRetrievalError),
)
_BAD_CREDENTIALS = (
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "UnrecognizedClientException"),
    *("SignatureDoesNotMatch", "AuthFailure", "InvalidAccessKeyId", "InvalidToken"),
)
_BUSY = ("Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded", "TooManyRequestsException")
SIGN_IN = "aws sso login (or aws configure; export AWS_PROFILE=...), then: aws sts get-caller-identity"
_making = threading.RLock()
"""Pulumi creates resources in several threads, and boto3's default session is not thread-safe."""


@functools.cache
def client(service: str, where: str, profile: str = "") -> Any:
    """A client that gives up within a minute, cached, as making one is slow. `profile`: see Place.profile."""
    settings = Config(region_name=where, connect_timeout=5, read_timeout=30, retries={"mode": "standard"})
    try:
        with _making:
            session = boto3.Session(profile_name=profile) if profile else boto3
            return session.client(service, config=settings)
    except _NO_CREDENTIALS as error:
        raise UsageError(f"no AWS credentials: {one_line(error)}; {SIGN_IN}") from None


def pages(ours: Any, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
    """All items of a listing, whether or not the operation has pages."""
    if not ours.can_paginate(operation):
        return list(getattr(ours, operation)(**arguments).get(key, []))
    return [item for page in ours.get_paginator(operation).paginate(**arguments) for item in page.get(key, [])]


def names(ours: Any, operation: str, key: str, **arguments: Any) -> list[str]:
    """All entries of a listing whose entries are texts."""
    return [str(item) for page in ours.get_paginator(operation).paginate(**arguments) for item in page.get(key, [])]


def where(name: str, *values: str) -> list[dict[str, Any]]:
    """One of EC2's filters, as the argument `Filters` takes it."""
    return [{"Name": name, "Values": list(values)}]


RUNNING = where("instance-state-name", "pending", "running")


def instances(ec2: Any, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """EC2's instances, out of the reservations that it lists them in."""
    found = pages(ec2, "describe_instances", "Reservations", Filters=filters)
    return [item for reservation in found for item in reservation["Instances"]]


def tags(item: dict[str, Any]) -> dict[str, str]:
    """An item's tags; empty if it has none. AWS calls the list Tags or, of some kinds, TagSet."""
    return {entry["Key"]: entry["Value"] for entry in item.get("Tags") or item.get("TagSet") or []}


def code(error: Exception) -> str:
    """The service's error code; the exception's name if the request never reached the service."""
    if isinstance(error, errors.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def passes(error: Exception) -> bool:
    """Whether a retry may succeed: no response, a server error, or throttling."""
    if isinstance(error, errors.ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return status >= 500 or code(error) in _BUSY
    return isinstance(error, (errors.ConnectionError, errors.HTTPClientError, ResponseParserError))


def one_line(error: Exception) -> str:
    """The error as one line of at most 300 characters."""
    if isinstance(error, ResponseParserError):
        return "the answer is none of AWS's: is there such a call at this endpoint?"
    if isinstance(error, OperationError):
        return str(error)
    text = error.response.get("Error", {}).get("Message", "") if isinstance(error, errors.ClientError) else error
    return " ".join(f"{code(error)}: {text}".split())[:300]


@contextmanager
def explain(what: str) -> Iterator[None]:
    """Turn a failed call into an OperationError that begins with `what`."""
    try:
        yield
    except FAILURES as error:
        raise OperationError(f"{what}: {one_line(error)}") from None


def identity(where: str, profile: str = "") -> dict[str, str]:
    """{Account, Arn, UserId} of the caller. UsageError without credentials, OperationError if AWS does not answer."""
    try:
        found: dict[str, str] = client("sts", where, profile).get_caller_identity()
    except FAILURES as error:
        if isinstance(error, _NO_CREDENTIALS) or code(error) in _BAD_CREDENTIALS:
            raise UsageError(f"no AWS credentials that work: {one_line(error)}; {SIGN_IN}") from None
        raise OperationError(f"AWS does not answer: {one_line(error)}") from None
    return found
