"""Studies of questions of our own, a folder each."""
