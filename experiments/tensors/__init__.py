"""Attention's tensors from safetensors and npz files."""
