"""Sweeps, papers, diagnosis, reports and the command line: thin over `attention` and `emu`."""
