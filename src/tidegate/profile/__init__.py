"""A look at a table before any pipeline: which columns say what, and how its streams behave."""
