"""Tables larger than memory: read in batches, gathered by group into shards, kept in the user's cache folder."""
