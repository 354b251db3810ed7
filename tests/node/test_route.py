"""The interface on the route to an address, as the kernel has it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from node.route import interface


@pytest.mark.parametrize("address", ["127.0.0.3", "::1", "10.1.2.3", "2001:db8::1", "224.0.0.1", "0.0.0.0"])
def test_it_is_the_one_that_ip_names(address: str) -> None:
    if not shutil.which("ip"):
        pytest.skip("no ip(8) to compare with")
    argv = ["ip", "-j", "route", "get", address]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        assert interface(address) == json.loads(found.stdout)[0]["dev"]
    else:
        with pytest.raises(OSError, match=r"nreachable|nvalid"):
            interface(address)


@pytest.mark.parametrize("text", ["node1", "10.0.0", "", "1:2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(OSError):
        interface(text)
