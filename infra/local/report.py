"""What a long operation tells the user."""


def say(line: str) -> None:
    """A line of progress: Pulumi shows what a provider prints, and so does the embedded engine."""
    print(line, flush=True)
