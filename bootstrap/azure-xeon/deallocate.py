"""Deallocate this machine: Azure still bills a machine that is only switched off.

Uses the machine's managed identity, which needs Microsoft.Compute/virtualMachines/deallocate/action. Exit code 1 and
the reason on stderr if the request fails. TRAINYARD_IMDS and TRAINYARD_ARM replace the hosts, for tests.
"""

import json
import os
import sys
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

METADATA = os.environ.get("TRAINYARD_IMDS", "http://169.254.169.254") + "/metadata"
MANAGER = "https://management.azure.com"
TIMEOUT = 20.0


def ask(url: str, headers: dict[str, str], data: bytes | None = None) -> str:
    """The answer; no proxy, as the metadata service requires. With data it is a POST."""
    request = Request(url, data, headers)
    with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT) as response:
        return str(response.read().decode())


def main() -> int:
    """The exit code, once Azure has taken the request: it then switches the machine off."""
    own = {"Metadata": "true"}
    try:
        token = ask(f"{METADATA}/identity/oauth2/token?api-version=2018-02-01&resource={MANAGER}/", own)
        machine = ask(f"{METADATA}/instance/compute/resourceId?api-version=2021-02-01&format=text", own)
        url = f"{os.environ.get('TRAINYARD_ARM', MANAGER)}{machine.strip()}/deallocate?api-version=2024-11-01"
        ask(url, {"Authorization": f"Bearer {json.loads(token)['access_token']}"}, b"")
    except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
        body = error.read(400).decode(errors="replace") if isinstance(error, HTTPError) else ""
        print(f"cannot deallocate this machine: {type(error).__name__} {error} {body}".strip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
