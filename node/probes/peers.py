"""Checks from one node that it reaches the others: by name, by port, and by SSH with a verified host key.

Runs on every node at the same time. Reads one line of JSON from stdin,

    {"name": "node1", "token": "...", "ports": [40001, ...], "peers": [{"name": ..., "ip": ...}, ...]}

(all nodes, this one among them), and prints one line of JSON per fact.
"""

from __future__ import annotations

import concurrent.futures
import errno
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from node.probes import end_with_stdin, say
from node.scope import CONNECT_S, STRICT

AT_A_TIME = 4
"""SSH connections that a node opens at once. sshd's MaxStartups drops some once ten are unauthenticated."""
PORTS_S = 10
"""Seconds that the others have to open their ports; all nodes start this probe at about the same time."""
NAMES_S = 5
"""Seconds to look up all names and addresses; a resolver that hangs counts as a fault."""

Peer = dict[str, str]


def main(_argv: list[str]) -> None:
    """Check the other nodes, print what is wrong, and keep this node's port open until stdin ends."""
    spec = json.loads(sys.stdin.readline())
    operator = threading.Thread(target=end_with_stdin, daemon=True)
    operator.start()
    me = next(peer for peer in spec["peers"] if peer["name"] == spec["name"])
    here = spec["peers"].index(me)
    # Each node begins with the next one in the ring, so that the SSH connections spread evenly over the nodes.
    others = spec["peers"][here + 1 :] + spec["peers"][:here]
    try:
        port = listen(me["ip"], spec["ports"], spec["token"])
        own = {"port": port, "error": ""}
    except OSError as error:
        own = {"port": 0, "error": f"no port can be opened at {me['ip']}: {error.strerror}"}
    unknown = each(spec["peers"], resolve, len(spec["peers"]), NAMES_S)
    say(fact="names", value={"hostname": socket.gethostname(), "wrong": unknown})
    closed = each(others, lambda peer: reach(peer, spec["ports"], spec["token"]), len(others))
    say(fact="ports", value={**own, "wrong": closed})
    say(fact="ssh", value={"wrong": each(others, ssh, AT_A_TIME)})
    operator.join()  # the port stays open until the operator has heard from every node


def each(
    peers: list[Peer], test: Callable[[Peer], str], at_a_time: int, seconds: float | None = None
) -> dict[str, str]:
    """Test every peer; returns what is wrong by name, without those that passed. A test that has not ended after
    `seconds` in all (None: no limit) counts as a fault."""
    pool = concurrent.futures.ThreadPoolExecutor(max(1, at_a_time))
    tests = {peer["name"]: pool.submit(test, peer) for peer in peers}
    concurrent.futures.wait(tests.values(), seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    found = {name: done.result() if done.done() else f"no answer in {seconds} s" for name, done in tests.items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def resolve(peer: Peer) -> str:
    """What is wrong with a peer's name and address on this node; empty: nothing."""
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(peer["name"], None)})
    except OSError:
        return "the name is not known"
    if peer["ip"] not in addresses or any(address.startswith("127.") for address in addresses):
        return f"the name is {' and '.join(addresses)}, not {peer['ip']}"
    try:
        canonical, aliases, _ = socket.gethostbyaddr(peer["ip"])
    except OSError:
        return f"{peer['ip']} has no name"
    found = [canonical, *aliases]
    if peer["name"] not in {part for name in found for part in (name, name.partition(".")[0])}:
        return f"{peer['ip']} is called {canonical}"
    return ""


def listen(ip: str, ports: list[int], token: str) -> int:
    """Answer with `token` at the first of `ports` that is free here, as long as this program runs; returns the port.
    Raises OSError if none is free or the address is not this node's."""
    for port in ports:
        try:
            family = socket.AF_INET6 if ":" in ip else socket.AF_INET
            server = socket.create_server((ip, port), family=family, backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        threading.Thread(target=answer, args=(server, token), daemon=True).start()
        return port
    raise OSError(errno.EADDRINUSE, "none of the agreed ports is free")


def answer(server: socket.socket, token: str) -> None:
    """Send the token to everyone who connects."""
    while True:
        client, _ = server.accept()
        with client:
            client.sendall(token.encode())


def reach(peer: Peer, ports: list[int], token: str) -> str:
    """Why the peer's listener is at none of `ports`; empty if it answers. Tries again if refused: it may not be up
    yet."""
    deadline = time.monotonic() + PORTS_S
    wrong = ""
    while time.monotonic() < deadline:
        for port in ports:
            try:
                rest = max(0.1, deadline - time.monotonic())
                with socket.create_connection((peer["ip"], port), timeout=rest) as link:
                    link.settimeout(2)
                    if link.recv(256) == token.encode():
                        return ""
                wrong = f"port {port} is answered by another program"
            except TimeoutError:
                return f"port {port}: no answer (dropped on the way?)"
            except OSError as error:
                wrong = f"port {port}: {error.strerror or error}"
        time.sleep(0.1)
    return wrong


def ssh(peer: Peer) -> str:
    """Log in as the launcher does, twice if sshd was too busy to answer; returns what is wrong, empty: nothing."""
    wrong = ""
    for _ in range(2):
        wrong = ssh_once(peer["name"])
        if not any(sign in wrong for sign in ("kex_exchange_identification", "Connection closed", "reset by peer")):
            break
        time.sleep(0.5)
    return wrong


def ssh_once(name: str) -> str:
    """Why a login to this node fails; empty: it works."""
    # There are N^2 handshakes, and the default post-quantum key exchange takes most of a handshake's time. `^` only
    # changes the order of preference.
    command = ["ssh", "-n", "-T", *STRICT, "-o", "KexAlgorithms=^curve25519-sha256", name, "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * CONNECT_S, check=False)
    except FileNotFoundError:
        return "no ssh command here"
    except subprocess.TimeoutExpired:
        return f"no answer in {2 * CONNECT_S} s"
    return "" if done.returncode == 0 else reason(done.stderr) or f"ssh ended with exit code {done.returncode}"


def reason(stderr: str) -> str:
    """The reason for a failed login, from ssh's stderr; empty if that is empty."""
    if "Host key verification failed" in stderr:
        changed = "IDENTIFICATION HAS CHANGED" in stderr
        return "the host key is not the known one" if changed else "the host key is not known"
    return stderr.strip().rpartition("\n")[2].strip()
