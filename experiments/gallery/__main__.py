"""Write docs/gallery: `python -m roundscope.experiments.gallery [NAME...]`."""

import sys

from roundscope.experiments.gallery.pages import write

if __name__ == "__main__":
    write(sys.argv[1:])
