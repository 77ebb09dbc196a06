"""Attention's tensors, read from safetensors and npz files."""
