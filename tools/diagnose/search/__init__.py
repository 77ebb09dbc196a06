"""The smallest set of events that must be exact, of any model: ddmin and checks of its result."""
