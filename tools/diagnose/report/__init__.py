"""The report, the JSON and the terminal output of a diagnosis."""
