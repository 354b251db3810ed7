"""The operator's verbs; `fab --list` lists them, and fabfile/verbs has their code."""

import sys

try:
    from fabfile.program import take_over
except KeyboardInterrupt:  # loading it takes a fifth of a second, in which nothing has begun yet
    print("interrupted", file=sys.stderr)
    sys.exit(130)

take_over()
