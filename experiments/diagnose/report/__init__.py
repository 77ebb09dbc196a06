"""The page, the JSON and the terminal of a diagnosis."""
