"""Two runs of PyTorch models, or files of them, and the arithmetic that tells them apart."""
