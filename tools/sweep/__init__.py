"""`roundscope sweep`: axes make points, points make cells, cells make rows of an SQLite file."""
