"""Pieces that the pages, pictures and terminal output of all commands share."""
