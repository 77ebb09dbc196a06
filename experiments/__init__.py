"""Trainings, studies of papers and of questions of our own, and the command line as a whole."""

from roundscope.experiments.moved import find_moved_modules

find_moved_modules()
