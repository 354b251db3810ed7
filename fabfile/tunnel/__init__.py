"""Ports of a node, reached from this machine over the connection that the verbs use."""
