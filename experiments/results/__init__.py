"""What results files of all verbs share: opening, locking, and the machine that made them."""
