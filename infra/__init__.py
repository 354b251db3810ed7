"""The Pulumi program, its dynamic providers, and the inventory: the contract with the tasks."""

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
"""Old name -> new name of each module with a dynamic provider. A state holds its providers pickled with their modules'
names, and destroy needs them: without the old names, stacks made before the move could not be destroyed."""


class _Moved(MetaPathFinder, Loader):
    """Imports a module of MOVED under its old name: the same module object, not a copy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if self.new_name(name) else None

    def exec_module(self, module: object) -> None:
        name: str = module.__name__  # type: ignore[attr-defined]
        sys.modules[name] = importlib.import_module(self.new_name(name))

    @staticmethod
    def new_name(name: str) -> str:
        """The module's current name; "" if it has not moved."""
        package, _, module = name.rpartition(".")
        return MOVED.get(name) or (f"{MOVED[package]}.{module}" if package in MOVED else "")


if not any(type(finder).__name__ == _Moved.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _Moved())  # first: the normal finder would load a second copy from the new package
