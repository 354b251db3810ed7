"""The live table of nodes and ranks of `fab top`."""
