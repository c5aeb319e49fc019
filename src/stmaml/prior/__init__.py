"""A learner that has seen many tables with groups, and predicts the next one without being trained on it."""
