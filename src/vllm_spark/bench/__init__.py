"""Benchmarks: profiles, evidence files, their comparison and their report."""
