"""The user's configuration: its keys, their checks, and the stack's file."""
