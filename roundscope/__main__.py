"""`python -m roundscope`: the command line."""

from roundscope.experiments.cli.main import main

if __name__ == "__main__":
    main()
