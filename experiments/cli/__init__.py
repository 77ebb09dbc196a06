"""The command line as a whole: the commands of the tools and those of experiments."""
