"""What every study shares: verdicts, statistics, tables, figures. Knows no particular study."""
