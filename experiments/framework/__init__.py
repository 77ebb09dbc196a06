"""What every study shares: verdicts, statistics, tables and figures."""
