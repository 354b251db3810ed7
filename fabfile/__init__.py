"""The operator's verbs; `fab --list` lists them, and fabfile/verbs has their code."""

from fabfile.program import take_over

take_over()
