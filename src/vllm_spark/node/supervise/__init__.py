"""The supervisor of one rank of a pair. Standard library only; deploy copies it to the Sparks."""
