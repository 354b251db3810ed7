"""Print pip's settings of this machine as `export NAME=value` lines for uv and for Python's own TLS.

A company configures its index, proxy and certificates for pip; uv reads none of that. Variables that the environment
already has under uv's own name stay.
"""

import configparser
import os
import shlex
import sys
from pathlib import Path

# pip's option -> (variable, separator of several values).
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
    """In pip's order: a later file wins."""
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(os.environ.get("HOME", "/root"))
    config = Path(os.environ.get("XDG_CONFIG_HOME", home / ".config"))
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    own = os.environ.get("PIP_CONFIG_FILE")
    return [*files, Path(own)] if own else files


def pip_settings() -> dict[str, list[str]]:
    """pip's options, such as index-url, with their values. A variable PIP_* wins over every file."""
    settings: dict[str, list[str]] = {}
    for path in config_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            sys.exit(f"pip's {path} cannot be read: {str(error).splitlines()[0]}")
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key.replace("_", "-"): value.split() for key, value in parser.items(section)}
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value.split()
    return settings


def usable(option: str, value: str) -> bool:
    """pip ignores a folder or a file that does not exist; uv would stop."""
    if option not in ("find-links", "cert", "client-cert") or "://" in value or Path(value).exists():
        return True
    print(f"pip's {option} {value} does not exist on this machine: ignored", file=sys.stderr)
    return False


def main() -> None:
    """Print the lines. An option that uv has not, or whose files are not on this machine, is left out."""
    exports: dict[str, str] = {}
    for option, values in pip_settings().items():
        usable_values = [value for value in values if usable(option, value)]
        if option in NAMES and usable_values:
            name, separator = NAMES[option]
            exports[name] = separator.join(usable_values)
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
