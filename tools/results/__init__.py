"""What results files of all commands share: opening, locking, and the machine they come from."""
