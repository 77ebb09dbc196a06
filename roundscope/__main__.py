"""`python -m roundscope`: the command line."""

from roundscope.experiments.cli.main import process

if __name__ == "__main__":
    process()
