"""Read and change a stack's state and configuration, by Pulumi's command or by the embedded engine."""
