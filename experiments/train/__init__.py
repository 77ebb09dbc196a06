"""Training a small GPT whose attention is emulated: deterministic, replayable, many arms in one executable."""
