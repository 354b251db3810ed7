"""probe.py URL SECONDS [TEXT]: exit 0 if the URL answers in time, with TEXT in it; else one line of reason, exit 1."""

import sys
import urllib.error
import urllib.request


def main() -> int:
    """The exit code. An error of HTTP, of TLS, of the name service or a timeout is 1, with its reason."""
    url, seconds, *text = sys.argv[1:]
    try:
        with urllib.request.urlopen(url, timeout=float(seconds)) as answer:
            body = answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        print(f"HTTP {error.code}")
        return 1
    except OSError as error:
        print(getattr(error, "reason", error))
        return 1
    if text and text[0] not in body:
        print(f"no {text[0]} there")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
