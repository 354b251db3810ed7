"""A program's working directory on a node: its content as it was sent, a job's fresh copy, and what changed in it.

The content store has each file once, by its SHA-256, and a manifest for each state of a directory that was sent:

    blobs/ab/abcdef...     a file's content
    manifests/HASH.json    the list of files; HASH is the SHA-256 of this file
"""
