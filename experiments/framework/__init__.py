"""The parts that every study calls: its command, store, verdicts, estimates and figures."""
