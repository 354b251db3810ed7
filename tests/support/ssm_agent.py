"""Systems Manager with an agent: a moto server over HTTP, and before it a stand-in for what moto has not.

moto takes the instances and the commands, and checks both. It has no agents: it does not know
DescribeInstanceInformation, and each of its commands succeeds at once and says nothing. So the stand-in answers that
call, and in the answer to GetCommandInvocation replaces what became of the command, by running the script here where a
test has allowed it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
from http_server import listening
from moto.server import ThreadedMotoServer

REGION = "us-east-1"


@dataclass
class Agent:
    """The agent of every machine: what it does with a script."""

    root: Path
    """Stands before the paths that a script reads."""
    moto: str = ""
    """Where moto listens."""
    online: bool = True
    refuse: str = ""
    """Every other command fails with these words."""
    here: set[str] = field(default_factory=set)
    """Scripts that are run on this machine; any other is only noted, and succeeds."""
    ran: list[str] = field(default_factory=list)
    unknown: int = 0
    """So many times a command's result is not known yet, as AWS does right after it was sent."""
    slow: int = 0
    """So many times it is under way."""
    trouble: list[str] = field(default_factory=list)
    """What the next calls end with: the code of an error, or `nothing` for no answer at all."""
    sent: dict[str, str] = field(default_factory=dict)

    def run(self, script: str) -> dict[str, Any]:
        """What became of it, in the words of GetCommandInvocation."""
        self.ran.append(script)
        if script in self.here:
            environment = {"TRAINYARD_PREFIX": str(self.root), "PATH": "/usr/bin:/bin"}
            done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
            code, out, error = done.returncode, done.stdout, done.stderr
        else:
            code, out, error = (1, "", self.refuse) if self.refuse else (0, "", "")
        status = "Success" if code == 0 else "Failed"
        return {
            "Status": status,
            "StatusDetails": status,
            "ResponseCode": code,
            "StandardOutputContent": out[:24_000],
            "StandardErrorContent": error[:8_000],
        }


def _handler(agent: Agent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            call = self.headers["X-Amz-Target"].rpartition(".")[2]
            asked = json.loads(body)
            if agent.trouble:
                return self.fail(agent.trouble.pop(0))
            if call == "DescribeInstanceInformation":
                ids = asked["Filters"][0]["Values"] if agent.online else []
                known = [{"InstanceId": id_, "PingStatus": "Online"} for id_ in ids]
                return self.answer({"InstanceInformationList": known})
            if call == "GetCommandInvocation" and agent.unknown > 0:
                agent.unknown -= 1
                return self.answer({"__type": "InvocationDoesNotExist"}, status=400)
            answered = self.from_moto(body)
            if call == "SendCommand":
                agent.sent[answered["Command"]["CommandId"]] = "\n".join(asked["Parameters"]["commands"])
            elif call == "GetCommandInvocation" and agent.slow > 0:
                agent.slow -= 1
                answered["Status"] = "InProgress"
            elif call == "GetCommandInvocation":
                answered |= agent.run(agent.sent[asked["CommandId"]])
            return self.answer(answered)

        def fail(self, kind: str) -> None:
            if kind == "nothing":
                self.close_connection = True  # and not a word
            else:
                self.answer({"__type": kind, "message": "as asked"}, 500 if kind == "InternalServerError" else 400)

        def from_moto(self, body: bytes) -> dict[str, Any]:
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            with urlopen(Request(agent.moto, body, headers)) as response:
                loaded: dict[str, Any] = json.load(response)
                return loaded

        def answer(self, content: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what goes wrong."""

    return Handler


@contextmanager
def amazon() -> Iterator[str]:
    """A moto server on a free port of loopback; its address."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def answering(agent: Agent) -> Iterator[str]:
    """The stand-in on a free port of loopback; its address."""
    with listening(_handler(agent)) as url:
        yield url


def instance() -> str:
    """A machine that moto says is running; its id."""
    made = boto3.client("ec2", region_name=REGION).run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)
    id_: str = made["Instances"][0]["InstanceId"]
    return id_
