"""`python -m fabfile`: the verbs, where no script of the installation is at hand."""

from fabfile.program import main

main()
