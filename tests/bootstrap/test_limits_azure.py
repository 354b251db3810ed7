"""bootstrap/limits.py on Azure: the node asks to be deallocated."""

from __future__ import annotations

import time

import http_server
import pytest
from http_server import Answer, Asked
from limited_node import HOUR, MACHINE, MINUTE, SSH, Node, azure, cloud


def test_a_node_of_azure_deallocates_itself(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud() as (server, environment):
        assert not node.ends(**environment), "switched off it would be paid for"
        assert (server.asked[-1].method, server.asked[-1].path) == (
            "POST",
            f"{MACHINE}/deallocate?api-version=2024-11-01",
        )
        assert server.asked[-1].headers["content-length"] == "0"
        node.tick(**environment)
        assert sum(asked.method == "POST" for asked in server.asked) == 2, "as long as it is there, it asks again"


def test_a_proxy_is_not_asked_for_the_token(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud() as (server, environment):
        node.tick(**environment, http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
        assert server.asked[-1].method == "POST"


def test_a_node_of_azure_that_cannot_be_deallocated_is_never_switched_off_and_tries_for_ever(node: Node) -> None:
    """Switched off it would be billed as before, with nobody left on it to ask again."""
    node.booted(ago=2 * HOUR)
    waits = []
    with cloud(allowed=False) as (server, environment):
        for number in range(1, 9):
            called = node.tick(**environment)
            record = node.record()
            assert not any("poweroff" in line for line in called)
            assert any("wall this node is STILL PAID FOR" in line and f"try {number}," in line for line in called)
            assert "HTTP Error 403" in record["failed"] and "AuthorizationFailed" in record["failed"]
            waits.append(round(record["next_try"] - record["time"]))
            asked = len(server.asked)
            assert node.tick(**environment) == [] and len(server.asked) == asked, "not before its time"
            node.change(next_try=time.time() - 1)
    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]
    with cloud() as (server, environment):  # a day later Azure answers again
        node.tick(**environment)
        assert server.asked[-1].path.startswith(f"{MACHINE}/deallocate")
    assert node.record()["failed"] == "" and "next_try" not in node.record()


def test_a_clock_that_jumped_back_does_not_stop_the_tries(node: Node) -> None:
    node.booted(ago=2 * HOUR)
    with cloud(allowed=False) as (server, environment):
        node.tick(**environment)
        node.change(next_try=time.time() + 1000 * HOUR)
        before = len(server.asked)
        node.tick(**environment)
        assert len(server.asked) > before


@pytest.mark.parametrize("answer", [b"[]", b"null", b"{", b'"x"', b'{"access_token": null}', b"{}"])
def test_a_metadata_service_that_answers_nonsense_is_a_failed_try(node: Node, answer: bytes) -> None:
    node.booted(ago=2 * HOUR)

    def nonsense(asked: Asked) -> Answer:
        return Answer(body=answer) if "/oauth2/token" in asked.path else azure(asked)

    with http_server.serve(nonsense) as server:
        both = {"TRAINYARD_CLUSTER": "azure-xeon", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        called = node.tick(**both, TRAINYARD_MAX_HOURS="1")
    assert "cannot deallocate this machine" in node.record()["failed"]
    assert not any("poweroff" in line for line in called)


def test_a_node_that_is_used_again_begins_anew(node: Node) -> None:
    with cloud(allowed=False) as (_, environment):
        environment = {**environment, "TRAINYARD_MAX_HOURS": "0", "TRAINYARD_IDLE_MINUTES": "60"}
        node.was(idle_since=100 * MINUTE)
        assert not node.ends(**environment) and "next_try" in node.record()
        node.process(100, "-bash", SSH)
        assert not node.ends(**environment)
        assert not {"next_try", "tries", "failed"} & set(node.record())


def test_a_node_of_azure_whose_settings_are_lost_is_not_powered_off_either(node: Node) -> None:
    (node.root / "opt/trainyard").mkdir(parents=True)
    (node.root / "opt/trainyard/image.env").write_text("TRAINYARD_CLUSTER=azure-xeon\n")
    node.booted(ago=30 * HOUR)
    with cloud() as (server, environment):
        hosts = [f"{key}={value}\n" for key, value in environment.items() if key.endswith(("IMDS", "ARM"))]
        (node.root / "etc/trainyard.env").write_text("".join(hosts))
        assert not any("poweroff" in line for line in node.run())
        assert server.asked[-1].method == "POST"
