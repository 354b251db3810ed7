"""Components on AWS. Everything is named after its stack, and tagged by the provider."""
