"""Token sets: find the text, make the tokens, and bring them to the nodes."""
