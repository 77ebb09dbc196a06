"""The passport of kernels: which release of a library computes which bits."""
