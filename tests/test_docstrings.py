"""Whoever calls a public function reads what it returns, in which units and shapes, and what it raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_static import ROOT, files

PACKAGES = ("infra/*.py", "fabfile/*.py", "node/*.py", "training/*.py", "bootstrap/*.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def inside(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, those under its `if`, `try` and `with` among them; no function's own."""
    for one in body:
        yield one
        if isinstance(one, ast.If | ast.Try | ast.With):
            blocks = [one.body, *(getattr(one, name, []) for name in ("orelse", "finalbody"))]
            for block in [*blocks, *(handler.body for handler in getattr(one, "handlers", []))]:
                yield from inside(block)


def last_name(node: ast.expr) -> str:
    """`Protocol` of `typing.Protocol[T]`, `setter` of `name.setter`; nothing of what is no name."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def methods_of(one: ast.ClassDef) -> dict[str, bool]:
    """A class's own methods: whether each has a docstring."""
    return {each.name: bool(ast.get_docstring(each)) for each in inside(one.body) if isinstance(each, Function)}


def asked_by(protocol: ast.ClassDef) -> set[str]:
    """The methods that a class must have to fit a protocol; an attribute may stand for a property."""
    methods = [each for each in inside(protocol.body) if isinstance(each, Function)]
    return {each.name for each in methods if "property" not in map(last_name, each.decorator_list)}


def said_elsewhere(one: ast.ClassDef, classes: list[ast.ClassDef]) -> set[str]:
    """The methods whose docstring a base class has, or a protocol all of whose methods the class has.

    A protocol of a single method counts only as a base class: many a class has a `write` without any thought of it.
    """
    above, named = [one], {one.name}
    for each in above:  # grows meanwhile: bases of bases
        bases = {last_name(base) for base in each.bases} - named
        above += [other for other in classes if other.name in bases]
        named |= bases
    own = {name for each in above for name in methods_of(each)}
    protocols = [other for other in classes if "Protocol" in map(last_name, other.bases) and other.name not in named]
    above += [protocol for protocol in protocols if len(asked_by(protocol)) > 1 and asked_by(protocol) <= own]
    return {name for each in above[1:] for name, documented in methods_of(each).items() if documented}


def undocumented(trees: dict[str, ast.Module]) -> list[str]:
    """`file:line: name` of each public class, function and method that has no docstring and whose base has none."""
    classes = [one for tree in trees.values() for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    found: list[str] = []

    def look(file: str, body: list[ast.stmt], prefix: str, excused: set[str]) -> None:
        for one in inside(body):
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or one.name.startswith("_"):
                continue
            other_half = {"overload", "setter", "deleter"} & set(map(last_name, one.decorator_list))
            if not ast.get_docstring(one) and one.name not in excused and not other_half:
                found.append(f"{file}:{one.lineno}: {prefix}{one.name}")
            if isinstance(one, ast.ClassDef):
                look(file, one.body, f"{prefix}{one.name}.", said_elsewhere(one, classes))

    for file, tree in trees.items():
        look(file, tree.body, "", set())
    return found


def test_what_is_public_has_a_docstring() -> None:
    """What a caller cannot see in a signature: units, shapes, what is raised and when. Else make it private."""
    paths = files(*PACKAGES)
    assert len(paths) > 400, "this test looks into the right files"
    assert undocumented({str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("def f():\n    pass", ["x.py:1: f"]),
        ("def main():\n    pass", ["x.py:1: main"]),
        ("async def f():\n    pass", ["x.py:1: f"]),
        ("if True:\n    def f():\n        pass\nelse:\n    def g():\n        pass", ["x.py:2: f", "x.py:5: g"]),
        ("try:\n    import a\nexcept ImportError:\n    def a():\n        pass", ["x.py:4: a"]),
        ("def f():\n    'Says.'\n    def inner():\n        pass", []),
        ("def _f():\n    pass\nclass _C:\n    def f(self):\n        pass", []),
        ("class C:\n    def f(self):\n        pass", ["x.py:1: C", "x.py:2: C.f"]),
        ("class C:\n    'Says.'\n    def __init__(self):\n        pass", []),
        ("@typing.overload\ndef f(): ...\n@overload\ndef f(): ...\ndef f():\n    'Says.'", []),
        ("class C:\n    'Says.'\n    @property\n    def p(self): 'Says.'\n    @p.setter\n    def p(self, to): ...", []),
        ("class C:\n    'Says.'\n    @property\n    def p(self): ...", ["x.py:4: C.p"]),
    ],
)
def test_what_counts_as_public(text: str, missing: list[str]) -> None:
    assert undocumented({"x.py": ast.parse(text)}) == missing


def test_a_method_may_be_said_in_its_base_class_or_protocol() -> None:
    protocol = ast.parse("class P(Protocol[T]):\n    'Says.'\n    def f(self): 'Says.'\n    def g(self): 'Says.'")
    base = ast.parse("class A(P):\n    'Says.'\n    def h(self): 'Says.'\nclass B(m.A):\n    'Says.'")
    inherits = ast.parse("class C(B):\n    'Says.'\n    def f(self): ...\n    def h(self): ...\n    def i(self): ...")
    fits = ast.parse("class C:\n    'Says.'\n    def f(self): ...\n    def g(self): ...")
    does_not = ast.parse("class C:\n    'Says.'\n    def f(self): ...")
    above = {"p.py": protocol, "a.py": base}
    assert undocumented({**above, "x.py": inherits}) == ["x.py:5: C.i"]
    assert undocumented({**above, "x.py": fits}) == []
    assert undocumented({**above, "x.py": does_not}) == ["x.py:3: C.f"]
    single = ast.parse("class P(Protocol):\n    'Says.'\n    def f(self): 'Says.'")
    assert undocumented({"p.py": single, "x.py": does_not}) == ["x.py:3: C.f"]
