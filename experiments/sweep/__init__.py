"""`roundscope sweep`: axes -> points -> cells -> results -> one SQLite file -> pictures."""
