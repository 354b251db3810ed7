"""Runs the node program only if its content is what was sent: hashed, and run from memory, by one process.

The program lies in folders that every job of the same user may write to. So its name says nothing. A command that
starts it has the SHA-256 of the content, and Python takes no module from the file itself: it copies the file into
memory, seals that, hashes it and runs it. What happens to the file meanwhile does not matter.

Trusted are what an account on the node has anyway: its shell with its start files, `python3` on its PATH, the kernel.
"""

from __future__ import annotations

MISSING = 78
"""Exit code where the program is not there, or is another one (EX_CONFIG; no command of the program exits with it)."""
CHECK = f"""import fcntl, hashlib, os, sys
sha256, path = sys.argv[1:3]
memory = os.memfd_create("node-program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
try:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file, open(memory, "wb", closefd=False) as copy:
        copy.write(file.read({1 << 24}))
except OSError:
    pass
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
if hashlib.sha256(os.pread(memory, {1 << 24}, 0)).hexdigest() != sha256:
    print(path + ": not the program that was sent", file=sys.stderr)
    sys.exit({MISSING})
del sys.argv[:2]
sys.path.insert(0, "/proc/self/fd/" + str(memory))
from node.main import main
sys.exit(main(sys.argv[1:]))
"""
"""Python for `python3 -I -c`, with the arguments SHA-256, PATH and the command's words.

The seals come before the hash, as another process of the same user can open this one's memory file. `sys.argv[0]` is
the path, as with `python3 PATH`, for commands that start the program on other nodes."""


def words(sha256: str) -> list[str]:
    """What stands between `python3 -I` and the program's path.

    Args:
        sha256: the content's hash, in hexadecimal
    """
    return ["-c", CHECK, sha256]
