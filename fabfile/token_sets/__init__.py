"""Token sets: where the text comes from, and how the tokens reach the nodes."""
