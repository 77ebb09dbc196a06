"""What pages, pictures and terminal output of all verbs share."""
