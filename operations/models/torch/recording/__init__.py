"""The run of a PyTorch model as a tape, in memory and as a file."""
