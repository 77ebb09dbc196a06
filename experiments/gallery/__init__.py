"""The gallery of the documentation: a page with every figure of each study.

    python -m roundscope.experiments.gallery [NAME...]

draws docs/gallery anew, or the pages of some studies only. Nothing is trained: figures are drawn
from the runs of record in docs/runs, computed where that takes a minute or so, or else the pictures
that are stored in docs/images.
"""
