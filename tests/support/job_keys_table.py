"""Print the README's table of a job file's keys, made from their declarations.

PYTHONPATH=. python tests/support/job_keys_table.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
from typing import Any

from training import sections
from training.sections import CheckpointSection, DataSection, ModelSection, OuterSection, RunSection, TrainSection

SECTIONS: tuple[type[Any], ...] = (DataSection, ModelSection, TrainSection, OuterSection, CheckpointSection, RunSection)


def table() -> str:
    """A row for each key: section.key, default, allowed values, meaning."""
    meanings = _meanings()
    rows = ["| key | default | allowed | what it is |", "|---|---|---|---|"]
    for section in SECTIONS:
        for field in dataclasses.fields(section):
            default = json.dumps(field.default) if field.default != "" else "none"
            table_name = section.__name__.removesuffix("Section").lower()
            cells = (f"`{table_name}.{field.name}`", default, field.metadata["allowed"])
            meaning = " ".join(meanings[section.__name__, field.name].split())
            rows.append("| " + " | ".join(_cell(cell) for cell in (*cells, meaning)) + " |")
    return "\n".join(rows)


def _meanings() -> dict[tuple[str, str], str]:
    """(class, field) -> the docstring below the field in training/sections.py."""
    found = {}
    for node in ast.parse(inspect.getsource(sections)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                found[node.name, field.target.id] = str(below.value.value)  # type: ignore[union-attr]
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(table())
