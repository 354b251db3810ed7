"""What the README says of `make`, sudo and a local node's boundary is what the Makefile and the code have.

Its tables and command lines are held in test_keys, test_reference, test_program, test_pages and acceptance/test_readme.
"""

from __future__ import annotations

import re
from pathlib import Path

from infra.clouds.local import ids

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
INSTALLED = {"debian": "Debian packages", "$(VENV)/.demo": ".venv", "pulumi-at-hand": "pulumi", "key": "an SSH key"}
"""What `make install` needs -> the README's word for it."""


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rules() -> dict[str, tuple[list[str], str]]:
    """The Makefile's targets: what each needs first, and its recipe."""
    found = re.findall(
        r"^([a-z-]+):(?! \w+ \+=)([^=\n]*)\n((?:\t.*\n?)*)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    return {target: (needs.split(), recipe) for target, needs, recipe in found}


def test_every_target_of_make_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?:`|\n +(?:# *)?\(?)make ([a-z-]+)", README))
    assert {"demo", "test", "install", "bench", "bare", "faults"} <= named <= set(rules())


def test_the_first_line_for_ones_own_cluster_says_all_that_it_installs() -> None:
    first, second = section("Your own cluster").strip().splitlines()[:2]
    said = first.strip().partition("  # once: ")
    assert said[0].strip() == "make install" and second.strip().startswith(". .venv/bin/activate")
    needs, _ = rules()["install"]
    assert needs == list(INSTALLED)
    assert said[2].startswith(", ".join(INSTALLED.values()))


def test_who_asks_sudo_is_said_where_the_commands_are() -> None:
    words = " ".join(section("Your own cluster").split())
    (asking,) = re.findall(
        r"begin with `sudo -i`.*?\(`make ([a-z]+)` and `make ([a-z]+)` ask sudo by themselves\)", words
    )
    for target in asking:
        assert "$(SUDO)" in rules()[target][1], target


def test_the_boundary_of_a_local_node_is_that_of_its_user_namespace() -> None:
    words = " ".join(section("What a local node is").split())
    kept, _, is_not = words.partition("What a node is kept from: ")[2].partition("What it is not: ")
    assert f"user namespace, ids {ids.FIRST} to {ids.FIRST + ids.COUNT - 1})" in kept
    assert is_not.startswith("a virtual machine.")
