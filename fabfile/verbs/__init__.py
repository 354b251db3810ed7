"""The verbs of fab, one file each: parse the arguments, make one call, print the next command."""
