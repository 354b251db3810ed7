"""A key is declared once, in infra.config.keys: Pulumi.yaml, the README's table and the clouds' pages follow it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.config import stack_file
from infra.config.keys import KEYS, Key
from infra.config.kinds import CLOUDS
from infra.config.settings import ROOT

TYPES = {str: "string", int: "integer", bool: "boolean"}


def allowed(key: Key) -> str:
    """What a key may be, in words."""
    if isinstance(key.default, bool):
        return "true, false"
    if isinstance(key.default, int):
        in_clouds = "" if key.least_in_clouds is None else f", in a cloud {key.least_in_clouds} to {key.most}"
        return f"{key.least} to {key.most}{in_clouds}"
    return ", ".join(key.choices) or key.allowed


def for_pulumi(key: Key) -> dict[str, object]:
    """The key as Pulumi.yaml declares it."""
    notes = "; ".join(filter(None, [allowed(key), key.on]))
    return {"type": TYPES[type(key.default)], "default": key.default, "description": f"{key.help} ({notes})"}


def table() -> str:
    """The README's table."""
    rows = ["| key | default | allowed | read by | what it is |", "|---|---|---|---|---|"]
    for name, key in KEYS.items():
        default = str(key.default).lower() if isinstance(key.default, bool) else str(key.default) or "none"
        rows.append(f"| `{name}` | {default} | {allowed(key)} | {key.on or 'all'} | {key.help} |")
    return "\n".join(rows)


def test_pulumi_yaml_declares_the_same_keys() -> None:
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    wanted = {name: for_pulumi(key) for name, key in KEYS.items()}
    assert list(declared) == list(wanted)
    assert declared == wanted, f"put this there:\n{yaml.safe_dump({'config': wanted}, sort_keys=False, width=1000)}"


def test_the_readme_has_the_table_of_keys() -> None:
    assert table() in (ROOT / "README.md").read_text(), f"put this there:\n{table()}"


@pytest.mark.parametrize("stack", ["aws-xeon", "aws-gpu", "aws-slurm", "aws-eks", "azure-xeon"])
def test_a_page_names_keys_that_there_are_with_the_defaults_of_its_stack(stack: str) -> None:
    values = stack_file.read(stack)
    section = (ROOT / f"stacks/{stack}.md").read_text().split("## What can be set\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section, re.MULTILINE)
    named = [(re.findall(r"`(\w+)`", keys), default.split(", ")) for keys, default in rows]
    pages = {key: default for keys, each in named for key, default in zip(keys, each, strict=True)}
    assert len(pages) > 13 and set(pages) <= set(KEYS)
    wrong = {key: default for key, default in pages.items() if values[key] and default != values[key]}
    assert wrong == {}


# --- shared code asks the row of a cloud; it does not know its name ---

ROWS = ("infra/config/kinds.py", "infra/__init__.py")
"""Where clouds are named: their rows, and the old names of modules."""
OWN = tuple(f"infra/{folder}/{name}" for name in CLOUDS for folder in ("clouds", "clusters"))
RULES = "infra/policy/"  # a rule is about the declared resources of one cloud


def names_a_cloud(path: Path) -> Iterator[str]:
    """Identifiers and short texts of a module that are a cloud's or begin with its name; prose is not looked at."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        text = node.id if isinstance(node, ast.Name) else text
        if re.fullmatch(rf"(infra[./]clouds[./])?({'|'.join(CLOUDS)})([-_.:/][\w.:/-]*)?", text, re.IGNORECASE):
            yield text


def shared(folder: str) -> list[Path]:
    paths = (path for path in (ROOT / folder).rglob("*.py"))
    return [path for path in paths if not path.relative_to(ROOT).as_posix().startswith((*OWN, *ROWS, RULES))]


def test_shared_modules_of_infra_name_no_cloud() -> None:
    found = {str(path.relative_to(ROOT)): names for path in shared("infra") if (names := list(names_a_cloud(path)))}
    assert found == {"infra/config/keys.py": ["AWS", "AWS"]}, "a key that one cloud alone has; all else is in its row"


def test_a_new_cloud_is_a_row_and_a_folder() -> None:
    """The modules that shared code loads by a cloud's name are in the folder of each."""
    for cloud in CLOUDS:
        for module in ("account", "credentials", "machine_types", "names", "orphans", "price_list", "quota"):
            assert (ROOT / f"infra/clouds/{cloud}/{module}.py").is_file(), f"{cloud}: {module}"
