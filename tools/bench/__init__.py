"""`roundscope bench`: our speed against named rivals, as ratios from one run."""
