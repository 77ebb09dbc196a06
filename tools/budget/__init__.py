"""`roundscope budget`: which operation of a model makes how much of its error."""
