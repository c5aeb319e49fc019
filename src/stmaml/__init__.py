"""Few-shot learning on heterogeneous, ambiguous tasks: ST-MAML and its peers."""
