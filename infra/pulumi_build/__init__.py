"""Pulumi's command, built once on this machine where its own installer is out of reach."""
