"""Few-shot learning on the groups of a table: fit once on many groups, then predict for new ones from a few rows."""
