"""`python -m fabfile`: the verbs, without an installed script."""

from fabfile.program import main

main()
