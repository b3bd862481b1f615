"""Candidates run and timed: at which sizes, within which limits, and what follows from it."""
