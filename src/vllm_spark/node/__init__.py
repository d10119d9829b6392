"""Programs that run on a Spark by themselves: the standard library alone, Python 3.11 and later."""
