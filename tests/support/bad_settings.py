"""Settings that must be refused: what is generated for each key, the obvious ones, and how a refusal reads."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from infra.config.keys import KEYS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
"""Any text that a file can hold: control characters, line ends, right-to-left marks, emoji."""
STRANGE = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\0",
        "null",
        "~",
        "NaN",
        "-inf",
        "1e3",
        "0x10",
        "1_0",
        "3.0",
        "٣",
        "\uff13",
        "²",
        "½",
        "1,5",
        "3 nodes",
    ]
) | st.sampled_from(["9" * 30, "9" * 5000, "-" + "9" * 400, "0" * 30 + "3", "3\n4", "3\0", "--yes", "$(reboot)", "'"])
OTHER_TYPES = st.one_of(
    st.booleans(),
    st.none(),
    st.floats(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["a", "b"]), st.integers(), max_size=2),
)


def _not(pattern: str) -> st.SearchStrategy[object]:
    """Any text and any other type, except what reads like the pattern."""
    return (STRANGE | TEXT | OTHER_TYPES).filter(lambda value: not re.fullmatch(pattern, as_text(value)))


BOOLEAN = (st.sampled_from(["True", "yes", "1", "on", "true ", "falsee"]) | STRANGE | TEXT | st.floats()).filter(
    lambda value: str(value) not in ("true", "false")
)


def _number(least: int, most: int) -> st.SearchStrategy[object]:
    beyond = st.integers(max_value=least - 1) | st.integers(min_value=most + 1, max_value=10**60)
    return beyond | _not(r"\s*[+-]?[0-9]+\s*") | st.sampled_from(["9" * 30, "9" * 5000, "0" * 30 + "3"])


def _choice(allowed: tuple[str, ...]) -> st.SearchStrategy[object]:
    near = [spoilt for word in allowed for spoilt in (word.upper(), f" {word}", f"{word}\n", word[:-1], word * 2)]
    return st.sampled_from(near) | _not("|".join(allowed))


PREFIX = st.integers(0, 32)
ADDRESS = st.tuples(*[st.integers(0, 255)] * 4)
PUBLIC = ADDRESS.filter(lambda a: not (a[0] == 10 or (a[0] == 172 and 16 <= a[1] < 32) or a[:2] == (192, 168)))


def _dotted(address: tuple[int, ...]) -> str:
    return ".".join(map(str, address))


CIDR = st.one_of(
    st.builds(lambda a, length: f"{_dotted(a)}/{length}", PUBLIC, PREFIX),
    st.builds(lambda a, b, length: f"10.{a}.{b}.1/{length}", *[st.integers(0, 255)] * 2, st.integers(8, 28)),
    st.builds(lambda length: f"10.0.0.0/{length}", st.integers(0, 7) | st.integers(29, 40)),
    st.ip_addresses(v=6).map(lambda address: f"{address}/64"),
    st.sampled_from(["::/0", "0.0.0.0/0", "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "240.0.0.0/8", "192.0.2.0/24"]),
    st.sampled_from(
        ["10.77.0.0", "10.77.0.0/", "10.77.0/24", "10.77.0.0/24/24", "10.77.0.0/-1", "10.77.0.0/" + "9" * 5000]
    ),
    st.sampled_from(
        ["010.077.0.0/24", "10.77.0.0/٢٤", "10.77.0.0/24\n", " 10.77.0.0/24", "300.0.0.0/8", "192.168.0.0/15"]
    ),
    _not(r"[0-9.]+/[0-9.]+"),
)

BAD: dict[str, st.SearchStrategy[object]] = {
    "cluster": _choice(KEYS["cluster"].choices),
    "nodes": _number(1, 64),
    "cpus": _number(1, 1024),
    "memoryMb": _number(256, 16 * 1024 * 1024),
    "scheduler": _choice(KEYS["scheduler"].choices),
    "cidr": CIDR,
    "profile": _choice(KEYS["profile"].choices),
    "collectives": _choice(KEYS["collectives"].choices),
    # No text is the path of a key here: every file that is there is something else.
    "publicKey": STRANGE
    | TEXT
    | OTHER_TYPES
    | st.sampled_from(["/", "~nobody-here/key.pub", "~\0", "README.md", "/dev/zero"]),
    "image": st.sampled_from(
        ["BAKE", "bake ", "0123456789abcde", "0123456789ABCDEF", "٣" * 16, "a" * 17, "../../etc/passwd"]
    )
    | _not("bake|[0-9a-f]{16}"),
    "maxHours": _number(0, 24 * 31),
    "idleMinutes": _number(0, 24 * 60),
    "region": _not("[a-z0-9-]*"),
    "zone": _not("[a-z0-9-]*"),
    "instanceType": _not(r"[A-Za-z0-9._-]*"),
    "spot": BOOLEAN,
    "diskGb": _number(30, 16 * 1024),
    "baseImage": _not(r"[A-Za-z0-9._:-]*"),
    "publicNodes": _choice(("head", "all")),
    "adminCidr": st.sampled_from(
        ["0.0.0.0/0", "::/0", "*", "Internet", "any", "10.0.0.0/8", "203.0.113.7/1", "2001:db8::/64"]
    )
    | _not(r"[0-9./]*"),
    "owner": _not(r"[A-Za-z0-9.@_-]*"),
    "alertEmail": _not(r"[A-Za-z0-9._%+@-]*"),
    "budgetUsd": _number(1, 10_000_000),
    "keepData": BOOLEAN,
    "flowLogs": BOOLEAN,
    "monitoring": BOOLEAN,
    "capacityReservation": st.sampled_from(["cr-1", "cr-0123456789ABCDEF0", "None", "lt-0123456789abcdef0"])
    | _not("(cr-[0-9a-f]*|none)?"),
    "replaceNodes": BOOLEAN,
}
"""For every key: values of which none may be used."""

OBVIOUS: dict[str, tuple[dict[str, object], str]] = {
    "no nodes": ({"nodes": 0}, "nodes"),
    "too many nodes": ({"nodes": 65}, "nodes"),
    "negative nodes": ({"nodes": -3}, "nodes"),
    "a network 20 bits too small": ({"cidr": "10.77.0.0/28", "nodes": 64}, "cidr"),
    "a network for one less": ({"cidr": "10.77.0.0/28", "nodes": 6}, "cidr"),
    "a single address": ({"cidr": "10.77.0.0/32"}, "cidr"),
    "host bits": ({"cidr": "10.77.0.1/24"}, "cidr"),
    "a public network": ({"cidr": "8.8.8.0/24"}, "cidr"),
    "every network": ({"cidr": "::/0"}, "cidr"),
    "a missing key file": ({"publicKey": "~/.ssh/no-such-key.pub"}, "publicKey"),
    "an unknown profile": ({"profile": "tensorflow"}, "profile"),
    "ccl without ipex": ({"collectives": "ccl", "profile": "native"}, "collectives"),
    "not an image's id": ({"image": "latest"}, "image"),
    "an unknown key": ({"node": 3}, "node"),
    "another case": ({"Nodes": 3}, "Nodes"),
    "an unknown cluster": ({"cluster": "aws-xeno"}, "cluster"),
    "too little memory": ({"memoryMb": 64}, "memoryMb"),
    "no CPU": ({"cpus": 0}, "cpus"),
}
"""What people do: the keys, and the one that the error must name."""


def as_text(value: object) -> str:
    """A value of YAML as the program sees it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def assert_names(line: str, key: str) -> None:
    """One short line: the key, the value, what is allowed."""
    assert len(line.splitlines()) == 1, line
    assert line.startswith(f"{key} = "), line
    assert ": must be " in line, line
    assert line.isprintable() and len(line) < 400, line
