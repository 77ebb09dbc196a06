"""Trainings, studies of papers and of questions of our own, and the command line as a whole."""
