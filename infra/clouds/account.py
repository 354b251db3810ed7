"""Is the cloud's account fit for this stack? `python -m infra.clouds.account STACK [--offers]`, before any node exists.

Prints a JSON list of {check, state: ok|failed|undecided, detail, mend}; with --offers the zones (on Azure: the regions)
that offer the stack's machine type. Changes nothing. Exit code 2 and one line for what the stack's file has wrong.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
import urllib.request
from dataclasses import replace
from types import ModuleType

from infra.clouds import sdk
from infra.clouds.finding import Finding
from infra.config import stack_file
from infra.config.settings import Settings
from infra.config.values import ADDRESS_ECHO, set_key
from infra.errors import OperationError, UsageError, prints_json
from infra.state import stack_record

ECHO_S = 10.0


def of(settings: Settings) -> ModuleType:
    """The account module of the stack's cloud: check(settings), offers(settings), cheap(settings)."""
    if not settings.facts.name:
        raise UsageError(f"stack {settings.stack} is of kind local: that needs no account")
    return sdk.load(f"infra.clouds.{settings.facts.name}.account")


def check(settings: Settings) -> list[Finding]:
    """All checks. The operator's own address comes first, as it needs no credentials."""
    account = of(settings)
    return [address(settings), *account.check(settings)]


def address(settings: Settings) -> Finding:
    """Whether SSH is allowed from the operator's public address."""
    echo = os.environ.get("TRAINYARD_ADDRESS_ECHO", ADDRESS_ECHO)
    allowed = settings.cloud.admin_cidr
    look = f"curl -s {ADDRESS_ECHO}, and compare with adminCidr = {allowed}"
    try:
        with urllib.request.urlopen(echo, timeout=ECHO_S) as answer:
            mine = ipaddress.IPv4Address(answer.read(100).decode().strip())
    except OSError as error:
        return Finding("ssh", "undecided", f"{echo} cannot be reached: {getattr(error, 'reason', error)}", look)
    except ValueError:
        return Finding("ssh", "undecided", f"{echo} does not answer with an IPv4 address", look)
    if allowed is None or mine not in allowed:
        mend = set_key("adminCidr", f"{mine}/32", settings.stack)
        return Finding("ssh", "failed", f"your address is {mine}, SSH is open to {allowed}", mend)
    return Finding("ssh", "ok", f"your address is {mine}, which is in {allowed}")


def cheap(settings: Settings) -> None:
    """The checks at the start of every `up`. Raises UsageError without credentials that work, and for a machine type or
    zone that does not exist.

    Without an answer it does nothing, as `up` itself then reports a better error.
    """
    if not settings.facts.name:
        return
    try:
        wrong = [finding for finding in of(settings).cheap(settings) if finding.state == "failed"]
    except OperationError:
        return
    if wrong:
        raise UsageError(f"{wrong[0].check}: {wrong[0].detail}; mend: {wrong[0].mend}")


@prints_json
def main() -> object:
    """The checks of the stack named on the command line, or its offers, for JSON."""
    parser = argparse.ArgumentParser(prog="python -m infra.clouds.account", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--offers", action="store_true", help="where the stack's machine type can be had")
    args = parser.parse_args()
    settings, record = stack_file.settings(args.stack), stack_record.read(args.stack)
    settings = replace(settings, stack_id=record.id if record else "")
    return of(settings).offers(settings) if args.offers else [vars(finding) for finding in check(settings)]


if __name__ == "__main__":
    sys.exit(main())
