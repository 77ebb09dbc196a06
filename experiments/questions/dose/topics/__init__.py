"""The four topics of `roundscope dose --study`: their cases, answers and pictures.

What they share is `cases`; how a dose is trained is in the folder above.
"""
