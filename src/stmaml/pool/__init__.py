"""Several models for a table's groups, and one answer from all of them."""
