"""What a stack costs: a dated table of prices, and its refresh."""
