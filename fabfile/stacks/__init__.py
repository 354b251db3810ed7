"""A stack's state and configuration, through Pulumi's command or the embedded engine."""
