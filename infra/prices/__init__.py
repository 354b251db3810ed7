"""What a stack costs: a dated table of prices, and how it is brought up to date."""
