"""What every study shares: verdicts, statistics, tables and figures.

Nothing here knows a particular study.
"""
