"""The trainings themselves, and what is measured in them."""
