"""Attention in models that are not ours, whatever their framework: layers, numbers, files."""
