"""Components on AWS. Names contain the stack's name; the provider adds the tags."""
