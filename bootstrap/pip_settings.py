"""Print pip's settings of this machine as `export NAME=value` lines for uv and for Python's own TLS.

A company's index, proxy and certificates are written down for pip; uv reads none of it. What is already in the
environment under uv's own name stays.
"""

import configparser
import os
import shlex
import sys
from pathlib import Path

# pip's option -> the variable, and what joins several values.
NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
}


def config_files() -> list[Path]:
    """In pip's order: a later one wins."""
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(os.environ.get("HOME", "/root"))
    config = Path(os.environ.get("XDG_CONFIG_HOME", home / ".config"))
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    own = os.environ.get("PIP_CONFIG_FILE")
    return [*files, Path(own)] if own else files


def pip_settings() -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for path in config_files():
        parser = configparser.RawConfigParser()
        parser.read(path)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key.replace("_", "-"): value.split() for key, value in parser.items(section)}
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value.split()
    return settings


def usable(option: str, value: str) -> bool:
    """pip passes over a folder or a file that is not there; uv would stop."""
    if option not in ("find-links", "cert", "client-cert") or "://" in value or Path(value).exists():
        return True
    print(f"pip's {option} {value} is not on this machine: left out", file=sys.stderr)
    return False


def main() -> None:
    exports: dict[str, str] = {}
    for option, values in pip_settings().items():
        kept = [value for value in values if usable(option, value)]
        if option in NAMES and kept:
            name, joint = NAMES[option]
            exports[name] = joint.join(kept)
    if exports.get("UV_NO_INDEX", "").lower() in ("0", "false", "no", "off"):
        del exports["UV_NO_INDEX"]
    if "ALL_PROXY" in exports:  # uv reads ALL_PROXY, Python's urllib the others
        exports |= {"HTTPS_PROXY": exports["ALL_PROXY"], "HTTP_PROXY": exports["ALL_PROXY"]}
    if "UV_INDEX" in exports:  # pip takes the best of all indexes
        exports["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    for name, value in exports.items():
        if name not in os.environ:
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
