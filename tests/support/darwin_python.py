"""Makes this Python what it is on macOS, as far as a program can see: imported at the start of every interpreter.

What Linux alone has is gone from the standard library, and sys.platform says darwin. psutil, which asks macOS's kernel
there, asks Linux's here, through the /proc that only it is told of. Which verbs are run is written down, for the test.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LINUX_ONLY = {
    "os": r"epoll|eventfd|memfd_|pidfd_|sched_|splice|copy_file_range|posix_fa|getrandom|.*xattr|fdatasync|pipe2"
    r"|unshare|setns|[gs]etres[ug]id|waitid|O_(PATH|TMPFILE|DIRECT|NOATIME|LARGEFILE|RSYNC)$|EFD_|MFD_|RWF_|GRND_"
    r"|CLONE_|XATTR_",
    "select": r"epoll|EPOLL",
    "fcntl": r"F_OFD_|F_[GS]ETPIPE|F_NOTIFY|F_[GS]ETLEASE|F_ADD_SEALS|F_GET_SEALS|LOCK_(MAND|READ|RW|WRITE)$|DN_",
    "socket": r"AF_(NETLINK|PACKET|VSOCK|ALG|CAN|TIPC|QIPCRTR)|SO_(BINDTODEVICE|PEER|MARK|DOMAIN|PROTOCOL|INCOMING)"
    r"|SOCK_(CLOEXEC|NONBLOCK)|TCP_(USER_TIMEOUT|KEEPIDLE|CORK|DEFER_ACCEPT|INFO|LINGER2|QUICKACK|SYNCNT|CONGESTION)",
    "signal": r"sigtimedwait|sigwaitinfo|SIG(RTM|PWR|STKFLT|POLL|CLD)",
    "time": r"CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
    "resource": r"prlimit|RLIMIT_(OFILE|MSGQUEUE|NICE|RTPRIO|RTTIME|SIGPENDING)",
}
"""Module -> what CPython has of it on Linux and not on macOS."""


def hide(name: str) -> None:
    module = __import__(name)
    for attribute in [entry for entry in dir(module) if re.match(LINUX_ONLY[name], entry)]:
        delattr(module, attribute)


def pretend() -> None:
    hide("select")  # before `selectors` looks what there is
    import psutil  # before sys.platform is another: it loads what fits the real one

    with contextlib.suppress(ImportError):  # likewise; it comes with the extra `kubernetes`
        import truststore  # noqa: F401
    sysconfig.get_config_vars()  # likewise
    psutil.PROCFS_PATH = os.environ["DARWIN_PROC"]
    for name in LINUX_ONLY:
        hide(name)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on: without sched_getaffinity it is the same function
        os.process_cpu_count = os.cpu_count
    # What urllib asks on macOS for the system's proxies.
    proxies = ModuleType("_scproxy")
    proxies._get_proxy_settings = proxies._get_proxies = dict  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = proxies
    sys.platform = "darwin"
    real = os.uname()
    answer = os.uname_result(("Darwin", real.nodename, "24.1.0", "Darwin Kernel Version 24.1.0", "arm64"))
    os.uname = lambda: answer
    platform.system = lambda: "Darwin"


class VerbRecorder:
    """Before the operator's verbs are imported: has each write how it ended, `train done`, to $DARWIN_VERBS."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        if name != "fabfile":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec and spec.loader
        load = spec.loader.exec_module

        def load_recorded(module: ModuleType) -> None:
            from invoke.tasks import Task

            make = Task.__init__

            def make_recorded(task: Any, body: Callable[..., None], *args: Any, **options: Any) -> None:
                make(task, body, *args, **options)
                if body.__module__.startswith("fabfile.verbs."):
                    task.body = recorded(task.name, body)

            Task.__init__ = make_recorded  # type: ignore[method-assign, assignment]
            load(module)

        spec.loader.exec_module = load_recorded  # type: ignore[method-assign]
        return spec


def recorded(verb: str, body: Callable[..., None]) -> Callable[..., None]:
    def write(how: str) -> None:
        with Path(os.environ["DARWIN_VERBS"]).open("a") as file:
            file.write(f"{verb} {how}\n")

    @functools.wraps(body)
    def run(*args: Any, **options: Any) -> None:
        write("begun")
        try:
            body(*args, **options)
        except BaseException as error:
            write("refused" if getattr(error, "code", None) == 2 else "failed")
            raise
        write("done")

    return run


if "DARWIN_PROC" in os.environ:
    pretend()
if "DARWIN_VERBS" in os.environ:
    sys.meta_path.insert(0, VerbRecorder())
