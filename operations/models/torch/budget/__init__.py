"""The error of one step of a PyTorch model, operation by operation."""
