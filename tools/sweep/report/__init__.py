"""The report of a sweep: tables, pictures and captions."""
