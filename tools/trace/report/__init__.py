"""Functions that make the HTML page, the figures and the terminal output of a trace."""
