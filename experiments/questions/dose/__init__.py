"""The dose-response of training to one rounded event: `roundscope dose`."""
