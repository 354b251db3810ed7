"""The Pulumi program, the providers of its own, and what reads and writes the contract with the tasks."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

MOVED = {
    "infra.stack_id": "infra.state.stack_id",
    "infra.aws.gate": "infra.clouds.aws.builder",
    "infra.aws.room": "infra.clouds.aws.capacity",
    "infra.aws": "infra.clouds.aws",
    "infra.azure.command": "infra.clouds.azure.run_command",
    "infra.azure.stop": "infra.clouds.azure.builder_stop",
    "infra.azure": "infra.clouds.azure",
    "infra.local": "infra.clouds.local",
}
"""Old name -> new name of each module with a dynamic provider. A stack's state has its providers pickled by the names
of their modules, and destroys itself with them: without these names nobody could destroy a stack of before the move."""


class _Moved(MetaPathFinder, Loader):
    """Imports a module of MOVED under its old name: the same module object, not a copy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if self.new_name(name) else None

    def exec_module(self, module: object) -> None:
        name: str = module.__name__  # type: ignore[attr-defined]
        sys.modules[name] = importlib.import_module(self.new_name(name))

    @staticmethod
    def new_name(name: str) -> str:
        """The name that a module has now; "" for one that has not moved."""
        package, _, module = name.rpartition(".")
        return MOVED.get(name) or (f"{MOVED[package]}.{module}" if package in MOVED else "")


if not any(type(finder).__name__ == _Moved.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _Moved())  # first: the new package's folder would make a second copy of each module
