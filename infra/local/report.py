"""Progress of a long operation: Pulumi shows what a provider prints, and so does the embedded engine."""


def say(line: str) -> None:
    print(line, flush=True)
