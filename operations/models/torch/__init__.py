"""Recording the run of a PyTorch model, and running its operations again."""
