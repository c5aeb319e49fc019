"""Networks: base learners and set encoders. All of them read whole sets, one row an example."""
