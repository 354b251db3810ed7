"""What a long operation tells the user."""

from infra.errors import visible


def say(line: str) -> None:
    """Print a line of progress: Pulumi shows what a provider prints, and so does the embedded engine."""
    print(visible(line), flush=True)
