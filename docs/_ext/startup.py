"""What the kernel of every executed page runs first (`PYTHONSTARTUP`): how `!command` prints.

IPython gives a command a terminal, so that progress bars end up on the page. Here a command has
none, and what it writes to stderr, which is progress, is shown only if it failed. A command that
ends in a traceback fails the page.
"""

import subprocess

from IPython import get_ipython


def system(command: str) -> None:
    """Run a command line of the shell and print what it prints."""
    line = get_ipython().var_expand(command, depth=1)
    done = subprocess.run(
        ["bash", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr, end="")
    if "Traceback (most recent call last)" in done.stderr:
        raise RuntimeError(f"{line}\n{done.stderr}")


get_ipython().system = system
