"""Attention in PyTorch models: capture, choose plans, watch, correct."""
