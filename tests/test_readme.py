"""What the README says of `make` and of a local node's boundary is what the Makefile and the code have.

Its tables and command lines are held in test_keys, test_reference, test_program, test_pages and acceptance/test_readme.
"""

from __future__ import annotations

import re
from pathlib import Path

from infra.clouds.local import ids

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def targets() -> set[str]:
    """The Makefile's."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_target_of_make_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?:`|\n +(?:# *)?\(?)make ([a-z-]+)", README))
    assert {"demo", "test", "install", "bench", "bare", "faults"} <= named <= targets()


def test_the_boundary_of_a_local_node_is_that_of_its_user_namespace() -> None:
    words = " ".join(section("What a local node is").split())
    kept, _, is_not = words.partition("What a node is kept from: ")[2].partition("What it is not: ")
    assert f"user namespace, ids {ids.FIRST} to {ids.FIRST + ids.COUNT - 1})" in kept
    assert is_not.startswith("a virtual machine.")
