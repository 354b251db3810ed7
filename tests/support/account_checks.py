"""What the tests of the account checks share: a stack's settings, and a look at the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from http_server import Answer, serve

from infra.clouds.finding import Finding
from infra.config.settings import Settings

Make = Callable[..., Settings]


@contextmanager
def answering(body: bytes, kind: str = "text/plain") -> Iterator[str]:
    """A server that says the same to everybody; its URL."""
    with serve(lambda _: Answer(body=body, headers={"Content-Type": kind})) as server:
        yield server.url


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in findings}


def finding(findings: list[Finding], check: str) -> Finding:
    (found,) = [entry for entry in findings if entry.check == check]
    return found
