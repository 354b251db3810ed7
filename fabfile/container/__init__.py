"""Container images of jobs: the tools that build and push them, and the repository that has them."""
