"""Probes of an attention kernel: inputs whose outputs show the order in which it adds."""
