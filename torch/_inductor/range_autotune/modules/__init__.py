"""Candidates as modules by themselves: generated, compiled in threads, and loaded."""
