"""The page of a sweep: tables, pictures and captions."""
