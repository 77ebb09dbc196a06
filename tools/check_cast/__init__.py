"""`roundscope check-cast`: ties, subnormals, overflow and NaN of a cast or a quantizer."""
