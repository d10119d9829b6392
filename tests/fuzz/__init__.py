"""Fuzzing of everything that the toolkit reads and has not written in the same run."""
