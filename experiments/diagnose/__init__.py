"""`roundscope diagnose`: carrier, coherence, origin and repair of an error that adds up, and a verdict."""
