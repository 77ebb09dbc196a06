"""What a trace shows: its page, its pictures and its lines on a terminal."""
