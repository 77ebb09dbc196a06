"""Input that nobody meant: hostile words, calls, files and results, each case judged by itself."""
