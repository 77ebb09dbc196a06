"""`roundscope compare`: which operation makes two runs of a model differ."""
