"""What a module imports, read from its source: for the rules of who may import whom, and what an image must have."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator


def imports(source: str, name: str, known: Collection[str] = (), *, is_package: bool = False) -> Iterator[str]:
    """Dotted names of everything that a module imports, at any depth, also by `import_module("name")`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
                base = ".".join([*above, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (entry if entry in known else base for entry in names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value
