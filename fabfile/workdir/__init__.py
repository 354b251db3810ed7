"""A program's working directory on its way to the nodes: what belongs to it, its content hash, what a node lacks."""
