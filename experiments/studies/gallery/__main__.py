"""Write docs/gallery: `python -m roundscope.experiments.studies.gallery [NAME...]`."""

import sys

from roundscope.experiments.studies.gallery.write import write

if __name__ == "__main__":
    write(sys.argv[1:])
