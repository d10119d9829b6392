"""The report of benchmarks: one HTML file from evidence files, without scripts and without anything from outside."""
