"""The user's configuration: keys, their checks, and the stack's file."""
